"""Writes the parts of the documents that follow from the source: python -m tools.docs

These are the reference of commands and scripts, from what their --help is made of; the list of metrics, from
the catalogue; and the map of folders, from the first sentences of their docstrings.
"""

from __future__ import annotations

import argparse
import ast
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
from typing import Any

from scrapy import commands as scrapys
from scrapy.commands import ScrapyCommand
from scrapy.settings import Settings

from site_spider.observe.metrics.catalogue import METRICS, Metric

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "site_spider"
_MARKS = "<!-- {}: written by `python -m tools.docs` -->", "<!-- end of {} -->"
_OF_ALL = {"--help", "--spider", "--format"}  # described once, at the top of the page
_FOR_USERS = ("crawl_spider.sh",)
_OF_A_START = "start: "  # so begin the options of `scrapy task start` that are fields of a task
_ELSEWHERE = re.compile(r"Exit code|Environment:|options:")


def updated(name: str) -> str:
    """The document with the part of that name between its marks. Raises ValueError when one is missing."""
    document, write = PARTS[name]
    begin, end = (mark.format(name) for mark in _MARKS)
    before, found, rest = document.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{document} needs the marks {begin!r} and {end!r}")
    return f"{before}{begin}\n\n{write()}\n\n{end}{after}"


def wrapped(text: str, indent: str = "", first: str = "") -> str:
    kept = {"break_on_hyphens": False, "break_long_words": False}
    return textwrap.fill(text, 120, initial_indent=first, subsequent_indent=indent, **kept)


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def reference() -> str:
    """Our commands, Scrapy's that behave differently, and the scripts, as Markdown."""
    of_scrapy = {module.name for module in iter_modules(scrapys.__path__)}
    commands = dict(_commands())
    ours = [_section(name, command) for name, command in commands.items() if name not in of_scrapy]
    changed = defaultdict(list)
    for name in of_scrapy & commands.keys():
        said = (getdoc(commands[name]) or "").partition("\n\n")[0]
        changed[" ".join(said.split())].append(f"`{name}`")
    rows = sorted(f"- {', '.join(sorted(names))}: {said}" for said, names in changed.items())
    helps = {path.name: _help(path) for path in sorted((ROOT / "task_shell").glob("*.sh"))}
    others = [f"- `{name}`: {_in_short(said)}" for name, said in helps.items() if name not in _FOR_USERS]
    return "\n\n".join(
        [
            "## Commands of site_spider",
            *ours,
            "## Commands of Scrapy",
            "\n".join(rows),
            "## Scripts",
            *(f"### {name}\n\n```text\n{_usage(helps[name])}\n```" for name in _FOR_USERS),
            "\n".join(["Others:", "", *others]),
        ]
    )


def _commands() -> Iterator[tuple[str, ScrapyCommand]]:
    for name, place in _project()["project"]["entry-points"]["scrapy.commands"].items():
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
    sentences = re.split(r"(?<=\.) ", " ".join(command.long_desc().split()))
    said = sentences[0]  # --help has the others
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


def _help(path: Path) -> str:
    """What --help prints up to what has another place: exit codes, the environment, many options."""
    shown = subprocess.run([path, "--help"], capture_output=True, text=True, check=True).stdout
    paragraphs = [part.strip("\n") for part in shown.split("\n\n") if not part.startswith("usage:")]
    return "\n\n".join(takewhile(lambda part: not _ELSEWHERE.match(part), paragraphs))


def _usage(said: str) -> str:
    return said.partition("\n\n")[0]


def _in_short(said: str) -> str:
    paragraph = next(part for part in said.split("\n\n") if not part.startswith("Usage:"))
    return re.split(r"[,.]? \(|[,.](?:\s|$)", " ".join(paragraph.split()))[0]


def metrics() -> str:
    """A line for each metric: its name tells counters, and its meaning histograms."""
    return "\n".join(map(_line, METRICS))


def _line(metric: Metric) -> str:
    total = "_total" if metric.kind == "counter" else ""
    labels = f"{{{', '.join(metric.labels)}}}" if metric.labels else ""
    kind = " (histogram)" if metric.kind == "histogram" else ""
    return wrapped(f"- `{metric.family}{total}{labels}`: {metric.meaning}{kind}", "  ")


def modules() -> str:
    """The layers and all folders, in the order of import-linter's layers."""
    contracts = _project()["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    order = [*(name for layer in layers for name in layer.split(" | ")), "adapters"]  # nobody imports these
    folders = sorted(PACKAGE.glob("*/__init__.py"), key=lambda file: order.index(file.parent.name))
    rows = [wrapped(f"- **`{file.parent.name}/`** {_first_sentence(file)}", "  ") for file in folders]
    told = " > ".join(layer.replace(" | ", ", ") for layer in layers)
    return "\n".join(["Imports run down in this order:", "", wrapped(told, "    ", "    "), "", *rows])


def _first_sentence(file: Path) -> str:
    said = " ".join((ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split())
    return said.partition(". ")[0].rstrip(".") + "."


PARTS = {
    "commands": (ROOT / "docs" / "commands.md", reference),
    "metrics": (ROOT / "docs" / "observability.md", metrics),
    "modules": (ROOT / "docs" / "architecture.md", modules),
}

if __name__ == "__main__":
    for part, (file, _) in PARTS.items():
        file.write_text(updated(part), encoding="utf-8")
