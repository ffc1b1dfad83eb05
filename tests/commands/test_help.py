"""`--help` of every command of the project."""

from __future__ import annotations

from importlib import import_module
from typing import cast

import pytest
from scrapy.cmdline import ScrapyArgumentParser
from scrapy.commands import ScrapyHelpFormatter
from scrapy.settings import Settings

from site_spider.commands.site_command import SiteCommand
from tests.commands.project import Project

MODULES = [
    "seed",
    "dead_letters",
    "results",
    "progress",
    "demo",
    "frontier",
    "console",
    "top",
    "kibana",
    "service",
    "task",
    "items",
    "source",
]


def help_of(module: str) -> tuple[SiteCommand, str]:
    """As Scrapy makes it."""
    command = cast("SiteCommand", import_module(f"site_spider.commands.{module}").Command())
    command.settings = Settings()
    parser = ScrapyArgumentParser(formatter_class=ScrapyHelpFormatter, description=command.long_desc())
    command.add_options(parser)
    return command, parser.format_help()


@pytest.mark.parametrize("module", MODULES)
def test_help_ends_with_examples_as_they_are_typed(module: str) -> None:
    """One a line, each of the very command."""
    command, text = help_of(module)
    examples = text.partition("Examples:\n")[2].splitlines()
    assert examples
    assert all(f"scrapy {command.name}" in line for line in examples)
    assert command.name == module.replace("_", "-")


@pytest.mark.parametrize("columns", range(60, 100, 4))
def test_no_line_of_an_option_becomes_a_heading(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the lines break."""
    monkeypatch.setenv("COLUMNS", str(columns))
    _, text = help_of("dead_letters")
    assert "or the seed topic whose dead letters are meant (default: SITE_DEAD_LETTER_TOPIC" in " ".join(
        text.split()
    )


def test_scrapy_knows_every_command_by_its_name(project: Project) -> None:
    """And takes nothing else for one."""
    ran = project.scrapy()
    names = {line.split()[0] for line in ran.stdout.splitlines() if line.startswith("  ")}
    ours = {"crawl", "seed", "dead-letters", "results", "progress", "demo", "frontier", "console", "top"}
    assert names >= ours
    assert not {name for name in names if "_" in name}
