"""pyproject.toml agrees with the code and with requirements.txt."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from pathlib import Path

from scrapy.cmdline import _get_commands_from_module

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+?)(?:;.*)?(?:\s|$)", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements: list[str]) -> set[str]:
    return {normal(_NAME.match(line)[0]) for line in requirements}  # type: ignore[index]


def test_every_command_comes_with_the_package() -> None:
    """By an entry point of the name that people type."""
    commands = _get_commands_from_module("site_spider.commands", inproject=True)
    entries = PROJECT["entry-points"]["scrapy.commands"]
    assert entries.keys() == commands.keys()
    for name, path in entries.items():
        module, _, attribute = path.partition(":")
        assert getattr(import_module(module), attribute) is type(commands[name])


def test_what_the_package_needs_is_pinned_for_the_service() -> None:
    """All of requirements.txt that is not needed by something else, and the other way round."""
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    direct, _, indirect = text.partition("# --- what those need")
    extras = PROJECT["optional-dependencies"]
    ours = ("redis", "hbase", "text")
    needed = names(PROJECT["dependencies"]).union(*(names(extras[extra]) for extra in ours))
    assert {normal(name) for name, _ in _PINNED.findall(direct)} == needed
    assert not needed & {normal(name) for name, _ in _PINNED.findall(indirect)}


def test_the_license_is_that_of_the_file() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert (ROOT / "site_spider" / "py.typed").exists()
