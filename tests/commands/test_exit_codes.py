"""A setting that cannot be used ends every command with 78 and one line that names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from site_spider import commands
from tests.commands.project import Project

PAGE = "http://127.0.0.1:1/"
READING = {
    **dict.fromkeys(("bench", "check", "dead-letters", "frontier", "items", "list", "progress"), ()),
    **dict.fromkeys(("recrawl", "results", "seed", "service", "shell", "top"), ()),
    **dict.fromkeys(("fetch", "parse", "view"), (PAGE,)),
    "console": ("--port", "0"),
    "demo": ("--produce",),
    "kibana": ("import", "--url", PAGE),
    "source": ("list",),
    "task": ("list",),
    "urls": ("explain", PAGE),
}
OTHERS = {"crawl", "genspider", "settings", "version"}  # crawl: see test_crawl; the others use no setting
SHARED = {"__init__", "output", "site_command"}


@pytest.mark.parametrize("wrong", ["SITE_KAFKA_BROKER=x:1", "SITE_MAX_SPAN_OFFSETS=many"])
@pytest.mark.parametrize("name", READING)
def test_an_unknown_name_and_a_wrong_type_end_each_command(project: Project, name: str, wrong: str) -> None:
    """Before anything is done, also where the command does not use the setting."""
    ran = project.within(name, *READING[name], "-s", wrong)
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


def test_every_command_is_here() -> None:
    """One that is added, too."""
    modules = {path.stem for path in Path(commands.__file__).parent.glob("*.py")}
    assert {name.replace("-", "_") for name in {*READING, *OTHERS}} == modules - SHARED
