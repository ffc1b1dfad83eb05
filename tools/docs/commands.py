"""Writes the reference of commands and scripts into docs/commands.md, from what their --help is made of.

python -m tools.docs.commands
"""

from __future__ import annotations

import argparse
import re
import subprocess
import textwrap
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from inspect import getdoc
from itertools import takewhile
from pathlib import Path
from pkgutil import iter_modules

from scrapy import commands as scrapys
from scrapy.commands import ScrapyCommand
from scrapy.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "commands.md"
BEGIN = "<!-- commands: written by `python -m tools.docs.commands` -->"
_OF_ALL = {"--help", "--spider", "--format"}  # described once, at the top of the page
_FOR_USERS = ("crawl_spider.sh",)
_OF_A_START = "start: "  # so begin the options of `scrapy task start` that are fields of a task
_EXIT_CODES = re.compile(r" ?\bThe exit code is [^.]*\.")  # they have a table of their own
_ELSEWHERE = re.compile(r"Exit code|Environment:|options:")


def updated(text: str) -> str:
    """The document with the reference below its marker. Raises ValueError when that is missing."""
    before, begin, _ = text.partition(BEGIN)
    if not begin:
        raise ValueError(f"{DOCUMENT} needs the marker {BEGIN!r}")
    return f"{before}{begin}\n\n{reference()}\n"


def reference() -> str:
    """Our commands, Scrapy's that behave differently, and the scripts, as Markdown."""
    of_scrapy = {module.name for module in iter_modules(scrapys.__path__)}
    commands = dict(_commands())
    ours = [_section(name, command) for name, command in commands.items() if name not in of_scrapy]
    changed = defaultdict(list)
    for name in of_scrapy & commands.keys():
        changed[_difference(commands[name])].append(f"`{name}`")
    rows = sorted(f"| {', '.join(sorted(names))} | {said} |" for said, names in changed.items())
    helps = {path.name: _help(path) for path in sorted((ROOT / "task_shell").glob("*.sh"))}
    others = [f"| `{name}` | {_in_short(said)} |" for name, said in helps.items() if name not in _FOR_USERS]
    return "\n\n".join(
        [
            "## Commands of site_spider",
            *ours,
            "## Commands of Scrapy",
            "\n".join(["| command | difference |", "|---|---|", *rows]),
            "## Scripts",
            *(f"### {name}\n\n```text\n{helps[name]}\n```" for name in _FOR_USERS),
            "\n".join(["| other script | meaning |", "|---|---|", *others]),
        ]
    )


def _commands() -> Iterator[tuple[str, ScrapyCommand]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name, place in project["entry-points"]["scrapy.commands"].items():
        module, _, attribute = place.partition(":")
        yield name, getattr(import_module(module), attribute)()


def _section(name: str, command: ScrapyCommand) -> str:
    parser = argparse.ArgumentParser(conflict_handler="resolve", add_help=False)
    command.settings = Settings()
    command.add_options(parser)
    shared = next(group for group in parser._action_groups if group.title == "Global Options")
    options = [
        action
        for action in parser._actions
        if action not in shared._group_actions and not _OF_ALL.intersection(action.option_strings)
    ]
    said = _EXIT_CODES.sub("", command.long_desc())
    usage = "" if command.syntax() == "[options]" else f"\n\n    scrapy {name} {command.syntax()}"
    return "\n\n".join([f"### scrapy {name}{usage}", wrapped(said), "\n".join(_options(options))]).rstrip()


def _options(options: list[argparse.Action]) -> Iterator[str]:
    fields = [action for action in options if (action.help or "").startswith(_OF_A_START)]
    for action in options:
        if action not in fields:
            yield wrapped(f"- {_named(action)}: {action.help}", "  ")
    if fields:
        names = ", ".join(map(_named, fields))
        yield wrapped(f"- {names}: start: [fields](tasks.md#fields) of the task", "  ")


def _named(action: argparse.Action) -> str:
    value = f" {action.metavar}" if action.metavar else ""
    return f"`{', '.join(action.option_strings)}{value}`"


def wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def _difference(command: ScrapyCommand) -> str:
    return " ".join((getdoc(command) or "").partition("\n\n")[0].split())


def _help(path: Path) -> str:
    """What --help prints up to what has another place: exit codes, the environment, many options."""
    shown = subprocess.run([path, "--help"], capture_output=True, text=True, check=True).stdout
    paragraphs = [part.strip("\n") for part in shown.split("\n\n") if not part.startswith("usage:")]
    return "\n\n".join(takewhile(lambda part: not _ELSEWHERE.match(part), paragraphs))


def _in_short(said: str) -> str:
    paragraph = next(part for part in said.split("\n\n") if not part.startswith("Usage:"))
    return re.split(r"[,.]? \(|[,.](?:\s|$)", " ".join(paragraph.split()))[0]


if __name__ == "__main__":
    DOCUMENT.write_text(updated(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
