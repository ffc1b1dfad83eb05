"""`scrapy seed` as people run it."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from site_spider.commands.output import progress_bar
from site_spider.errors import EXIT_CONFIG
from tests.commands.project import ROOT, SCRAPY, Project, environment


def test_good_lines_are_produced_and_bad_ones_refused_by_number(project: Project, tmp_path: Path) -> None:
    """Reasons on stderr, the counts in the last line of stdout, exit code 1."""
    file = tmp_path / "seeds.txt"
    file.write_bytes(
        b'\xef\xbb\xbfhttp://a.test/\r\n\n# comment\nnonsense\n{"url": "http://b.test/", "priority": 3}\n\xff'
    )
    options = ("--task-id", "job", "--topic", "mine", "--method", "HEAD", "--not-extract")
    ran = project.scrapy("seed", str(file), *options)
    assert ran.returncode == 1
    assert ran.stdout == "produced 2, refused 2\n"
    first, second = ran.stderr.splitlines()
    assert first.startswith("line 4: url: 'nonsense' has no scheme")
    assert second == "line 6: line: not UTF-8 at byte 1"
    found = {message.key: json.loads(message.value or b"") for message in project.log.read("mine")}
    meant = {"method": "HEAD", "meta": {"task_id": "job", "NotExtract": True}}
    assert found == {
        b"a.test": {"url": "http://a.test/"} | meant, b"b.test": {"url": "http://b.test/", "priority": 3} | meant
    }  # fmt: skip


def test_standard_input_is_read_and_all_good_is_exit_code_0(project: Project) -> None:
    """The topic is that of the settings, here of the environment."""
    ran = project.scrapy("seed", "-", stdin="http://a.test/\n", SITE_SEED_TOPIC="from-environment")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "produced 1, refused 0\n", "")
    assert len(list(project.log.read("from-environment"))) == 1


def test_a_reader_of_its_output_that_has_gone_is_no_fault_of_the_file(project: Project, tmp_path: Path) -> None:
    file = tmp_path / "seeds.txt"
    file.write_text("http://a.test/\n")
    nobody, output = os.pipe()
    os.close(nobody)
    command, env = [*SCRAPY, "seed", str(file)], environment(project.data)
    ran = subprocess.run(command, cwd=ROOT, env=env, stdout=output, stderr=subprocess.PIPE, check=False)
    os.close(output)
    assert (ran.returncode, ran.stderr) == (1, b"")


def test_who_reads_the_topic_is_said_where_spiders_have_topics_of_their_own(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --spider: the seeds of another spider would wait for ever."""
    monkeypatch.syspath_prepend(str(tmp_path))
    own = {"SITE_SEED_TOPIC": "news"}
    (tmp_path / "spiders_of_test_seed.py").write_text(
        "from site_spider import SeedSpider\n"
        f"class News(SeedSpider):\n    name = 'news'\n    custom_settings = {own}\n"
        "class Same(SeedSpider):\n    name = 'same'\n"
        "class Wrong(SeedSpider):\n    name = 'wrong'\n    custom_settings = {'SITE_SEED_TOPICS': 'news:many'}\n"
    )

    def seed(*options: str, **more: str) -> str:
        modules = ("-s", "SPIDER_MODULES=site_spider.spiders,spiders_of_test_seed")
        ran = project.scrapy("seed", *modules, *options, stdin="http://a.test/", **more)
        assert (ran.returncode, ran.stdout) == (0, "produced 1, refused 0\n")
        return ran.stderr

    theirs = "spider news reads topic news (--spider news).\n"
    assert seed() == f"Topic seeds is read by spider crawl_spider, same; {theirs}"
    assert seed("--topic", "nobodys").startswith("Topic nobodys is read by no spider; ")
    assert seed("--spider", "news") == ""
    assert seed(SITE_SEED_TOPIC="all") == ""
    assert len(list(project.log.read("news"))) == 1


def test_a_limit_that_cannot_be_kept_begins_no_task(project: Project) -> None:
    """The task would wait for the end of a producer that never was."""
    options = ("--task-id", "t", "--max-lag", "5", "-s", "SITE_CONSUMER_GROUP=")
    ran = project.scrapy("seed", "-", *options, stdin="http://a.test/\n")
    assert (ran.returncode, ran.stdout) == (EXIT_CONFIG, "")
    assert not project.log.partitions("seeds.tasks.control")


def test_a_data_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """The setting, its value and what is wrong, in one line."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    ran = Project(blocked).scrapy("seed", stdin="http://a.test/")
    assert ran.returncode == 78
    assert len(ran.stderr.splitlines()) == 1
    assert str(blocked) in ran.stderr


@pytest.mark.parametrize("size", [(24, 80), (0, 0)])
def test_a_progress_bar_is_drawn_on_a_terminal_only(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on one that does not know its size."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, size)
    with os.fdopen(os.dup(theirs), "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with progress_bar("seeds", "B", 150) as bar:
            bar.update(10)
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        with progress_bar("seeds", "B", 150) as bar:
            assert bar.disable
    os.write(theirs, b"end")  # so that there is something to be read in any case
    drawn = os.read(ours, 10_000).decode()
    os.close(theirs)
    os.close(ours)
    assert "seeds:" in drawn
