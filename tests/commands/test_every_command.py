"""What holds for every command: its help, and that a wrong setting ends it with 78 and one line."""

from __future__ import annotations

from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from scrapy.cmdline import ScrapyArgumentParser
from scrapy.commands import ScrapyHelpFormatter
from scrapy.settings import Settings

from site_spider import commands
from site_spider.commands.site_command import SiteCommand
from tests.commands.project import Project

PAGE = "http://127.0.0.1:1/"
SCRAPYS = {
    **dict.fromkeys(("bench", "check", "list", "shell"), ()),
    **dict.fromkeys(("fetch", "parse", "view"), (PAGE,)),
}
OURS = {
    **dict.fromkeys(("dead-letters", "frontier", "items", "progress", "recrawl", "results"), ()),
    **dict.fromkeys(("demo", "seed", "service", "top"), ()),
    **dict.fromkeys(("source", "task"), ("list",)),
    "console": ("--port", "0"),
    "kibana": ("import", "--url", PAGE),
    "urls": ("explain", PAGE),
}
OTHERS = {"crawl", "genspider", "settings", "version"}  # crawl: see test_crawl; the others use no setting
SHARED = {"__init__", "output", "site_command"}
ODD = [f"results --status {'9' * 23}", f"results --limit {'9' * 5_000}", "items --limit -1", "demo --port 99999"]
ODD += ("seed --task-id ", f"seed --task-id {'é' * 257}", "seed --task-id a\x1f", "seed --max-lag task:0")
ODD += (f"{line} \udcff" for line in ("results --url-id", "recrawl --host", "progress --topic", "seed --task-id"))
TOPICS = ("seed", "top", "console", "progress", "dead-letters", "recrawl")
ODD += (f"{name} --topic {topic}" for name in TOPICS for topic in ("", "a:b"))
ODD += ("progress --group ", "top --group ", "seed --spider ")
ODD += (f"task {words} \udcff" for words in ("start t --scope", "start t --deny", "show"))


def help_of(name: str) -> tuple[SiteCommand, str]:
    """As Scrapy makes it."""
    module = import_module(f"site_spider.commands.{name.replace('-', '_')}")
    command = cast("SiteCommand", module.Command())
    command.settings = Settings()
    parser = ScrapyArgumentParser(formatter_class=ScrapyHelpFormatter, description=command.long_desc())
    command.add_options(parser)
    return command, parser.format_help()


@pytest.mark.parametrize("name", OURS)
def test_help_ends_with_examples_as_they_are_typed(name: str) -> None:
    """One a line, each of the very command."""
    command, text = help_of(name)
    examples = text.partition("Examples:\n")[2].splitlines()
    assert examples
    assert all(f"scrapy {command.name}" in line for line in examples)
    assert command.name == name


@pytest.mark.parametrize("columns", range(60, 100, 4))
@pytest.mark.parametrize("name", OURS)
def test_no_line_of_an_option_becomes_a_heading(name: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the lines break."""
    monkeypatch.setenv("COLUMNS", str(columns))
    _, text = help_of(name)
    before = text.partition("Examples:\n")[0].splitlines()
    assert [line for line, under in pairwise(before) if set(under) == {"="}] in (["Usage", "Options"], ["Options"])


def test_scrapy_knows_every_command_by_its_name(project: Project) -> None:
    """And takes nothing else for one."""
    ran = project.scrapy()
    names = {line.split()[0] for line in ran.stdout.splitlines() if line.startswith("  ")}
    assert names >= {*OURS, *SCRAPYS, *OTHERS}
    assert not {name for name in names if "_" in name}


@pytest.mark.parametrize("wrong", ["SITE_KAFKA_BROKER=x:1", "SITE_MAX_SPAN_OFFSETS=many"])
@pytest.mark.parametrize("name", [*OURS, *SCRAPYS])
def test_an_unknown_name_and_a_wrong_type_end_each_command(project: Project, name: str, wrong: str) -> None:
    """Before anything is done, also where the command does not use the setting."""
    ran = project.within(name, *(OURS | SCRAPYS)[name], "-s", wrong)
    assert (ran.returncode, ran.stdout) == (78, ""), ran.stderr
    assert ran.stderr.startswith(f"scrapy {name}: {wrong.partition('=')[0]} is ")
    assert ran.stderr.count("\n") == 1
    assert not project.data.exists()


@pytest.mark.parametrize("name", ["results", "items", "recrawl"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"SITE_SINKS": "elasticsearch", "SITE_ELASTICSEARCH_HOSTS": "nowhere:x"},
            "SITE_ELASTICSEARCH_HOSTS cannot be used: ",
        ),
        ({"SITE_SINKS": "kafka"}, "SITE_SINKS is 'kafka', but results can be read back from "),
    ],
)
def test_a_store_that_cannot_be_read_ends_what_uses_it(
    project: Project, name: str, given: dict[str, str], said: str
) -> None:
    """Also when the environment names it."""
    ran = project.within(name, **given)
    assert (ran.returncode, ran.stdout) == (78, ""), ran.stderr
    assert ran.stderr.startswith(f"scrapy {name}: {said}")


@pytest.mark.parametrize("line", ODD)
def test_an_odd_value_is_refused_with_the_name_of_its_option(project: Project, line: str) -> None:
    ran = project.within(*line.split(" "))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert line.split(" ")[-2] in ran.stderr
    assert not project.data.exists()


@pytest.mark.parametrize("line", ["seed no\udcff", "source check no\udcff", "task start t --file no\udcff"])
def test_a_file_may_have_a_name_of_any_bytes(project: Project, line: str) -> None:
    ran = project.within(*line.split())
    assert (ran.returncode, "no\\udcff" in ran.stderr) == (1, True)


def test_every_command_is_here() -> None:
    """One that is added, too."""
    modules = {path.stem for path in Path(commands.__file__).parent.glob("*.py")}
    assert {name.replace("-", "_") for name in {*OURS, *SCRAPYS, *OTHERS}} == modules - SHARED
