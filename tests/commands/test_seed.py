"""`scrapy seed`: as people run it, and what it does with lines: bounded, counted, clear about what failed."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import termios
from concurrent.futures import Future
from pathlib import Path
from unittest.mock import Mock

import pytest

from site_spider.commands.output import progress_bar
from site_spider.commands.seed import Line, Seeding, seed_lines
from site_spider.errors import EXIT_CONFIG, LogUnavailable, SeedError, SinkRejected
from site_spider.seed.fields import MAX_MESSAGE_BYTES
from site_spider.service import seed_producer
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


def test_callbacks_are_those_of_the_spider(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of crawl_spider, which has `parse` alone. What only a running spider knows is left to it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "spiders_of_callbacks.py").write_text(
        "from site_spider import SeedSpider\n"
        "class News(SeedSpider):\n    name = 'news'\n    seed_callbacks = ('parse', 'article')\n"
        "class Late(SeedSpider):\n    name = 'late'\n    seed_callbacks = property(lambda self: ('parse', 'article'))\n"
    )
    lines = "".join(
        f'{{"url": "http://a.test/", "callback": "{name}"}}\n' for name in ("article", "parse", "os.system")
    )
    named = "site_spider.spiders,spiders_of_callbacks"
    modules = ("-s", f"SPIDER_MODULES={named}")
    for options, of_environment in ((modules, {}), ((), {"SPIDER_MODULES": named})):
        ran = project.scrapy("seed", *options, "--spider", "news", stdin=lines, **of_environment)
        assert (ran.returncode, ran.stdout) == (1, "produced 2, refused 1\n")
        assert ran.stderr == "line 3: callback: 'os.system' is not allowed; known: article, parse\n"
    ran = project.scrapy("seed", *modules, stdin=lines)
    assert (ran.returncode, ran.stdout) == (1, "produced 1, refused 2\n")
    ran = project.scrapy("seed", *modules, "--spider", "late", stdin=lines)
    assert (ran.returncode, ran.stdout) == (1, "produced 2, refused 1\n")
    assert ran.stderr == "line 3: callback: 'os.system' is not allowed; known: those in seed_callbacks of the spider\n"


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


# --- lines of a file of seeds, and producing them


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (b"\xef\xbb\xbfhttp://a/\r\n\n  \t\n# no\n  # no\nhttp://b/", [(1, "http://a/"), (6, "http://b/")]),
        (b"\xef\xbb\xbf# no\nhttp://b/\n", [(2, "http://b/")]),  # the mark does not hide the comment
        *((b"x" * MAX_MESSAGE_BYTES + ending, [(1, "x" * MAX_MESSAGE_BYTES)]) for ending in (b"", b"\n")),
    ],
)
def test_a_line_keeps_its_number_and_the_sizes_add_up_to_the_file(raw: bytes, found: list[tuple[int, str]]) -> None:
    """Whatever ends it, and whatever was skipped before it; the limit itself is not too long."""
    sizes: list[int] = []
    lines = list(seed_lines(io.BytesIO(raw), sizes.append))
    assert [(line.number, line.text()) for line in lines] == found
    assert sum(sizes) == len(raw)


def test_a_line_longer_than_any_seed_is_never_held_as_a_whole() -> None:
    """It is refused, and the next one follows; no read asks for more than the limit."""
    asked: list[int] = []

    class Stream(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            asked.append(size or 0)
            return super().readline(size)

    raw = b"x" * (3 * MAX_MESSAGE_BYTES) + b"\nhttp://b/\n"
    sizes: list[int] = []
    first, second = seed_lines(Stream(raw), sizes.append)
    with pytest.raises(SeedError, match="longer than"):
        first.text()
    assert (second.number, second.text()) == (2, "http://b/")
    assert sum(sizes) == len(raw)
    assert max(asked) <= MAX_MESSAGE_BYTES + 1


def scripted(answers: dict[bytes, Exception | None] | None = None) -> Mock:
    """A producer that answers when told, or at once with what stands in `answers` for a key."""
    opened: list[Future[None]] = []

    def send(_topic: str, key: bytes | None, _value: bytes | None) -> Future[None]:
        future: Future[None] = Future()
        if answers is None:
            opened.append(future)
        elif error := answers.get(key or b""):
            future.set_exception(error)
        else:
            future.set_result(None)
        return future

    return Mock(send=send, open=opened)


def line(number: int, text: str = "http://a/") -> Line:
    return Line(number, text.encode())


def test_bad_lines_and_refused_messages_are_counted_and_named() -> None:
    """Both kinds are told by line number, and the rest goes on."""
    complaints: list[tuple[int, str]] = []
    producer = scripted({b"big": SinkRejected("too large")})
    work = Seeding(producer, "t", lambda number, reason: complaints.append((number, reason)))
    for number, text in enumerate(["http://a/", "nonsense", "http://big/", "http://b/"], start=1):
        work.take(line(number, text))
    work.flush()
    assert (work.produced, work.refused) == (2, 2)
    assert [number for number, _ in complaints] == [2, 3]
    assert complaints[1][1] == "too large"


def test_a_field_that_goes_into_meta_is_said_once() -> None:
    """However many lines have it: the whole file has the same form."""
    complaints: list[tuple[int, str]] = []
    work = Seeding(scripted({}), "t", lambda number, reason: complaints.append((number, reason)))
    for number in range(1, 4):
        work.take(line(number, '{"url": "http://a/", "task_id": "x"}'))
    work.take(line(4, '{"url": "http://a/", "task_id": "x", "depth": 1}'))
    work.flush()
    assert (work.produced, work.refused) == (4, 0)
    assert complaints == [
        (1, "task_id stands beside the URL; it is taken as meta.task_id, here and below"),
        (4, "depth stands beside the URL; it is taken as meta.depth, here and below"),
    ]


def test_no_more_than_the_limit_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking one more waits for the oldest."""
    monkeypatch.setattr(seed_producer, "MOST_UNDER_WAY", 2)
    producer = scripted()
    work = Seeding(producer, "t", print)
    work.take(line(1))
    work.take(line(2))
    assert work.produced == 0
    waited: list[int] = []

    def answer(self: Future[None], timeout: float | None = None) -> None:
        waited.append(producer.open.index(self))

    monkeypatch.setattr(Future, "result", answer)
    work.take(line(3))
    assert waited == [0]
    assert work.produced == 1
    monkeypatch.setattr(seed_producer, "MOST_BYTES_UNDER_WAY", 10)  # a few large seeds count like many small ones
    work.take(line(4))
    assert (waited, work.produced) == ([0, 1, 2, 3], 4)


def test_a_log_that_gives_up_is_named_with_the_line() -> None:
    work = Seeding(scripted({b"b": LogUnavailable("gone")}), "t", print)
    work.take(line(1, "http://a/"))
    with pytest.raises(LogUnavailable, match=r"line 2 could not be produced: gone"):
        work.take(line(2, "http://b/"))
    work.end(closes=False)
    assert work.produced == 1


def test_an_end_counts_what_is_durable_and_does_not_wait_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seed_producer, "_LAST_CHANCE_SECONDS", 0)
    producer = scripted()
    work = Seeding(producer, "t", print)
    for number in range(3):
        work.take(line(number))
    producer.open[0].set_result(None)
    producer.open[1].set_exception(LogUnavailable("gone"))
    work.end(closes=False)
    assert work.produced == 1
