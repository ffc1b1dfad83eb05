"""Who a process is, for everybody who looks at several."""

from __future__ import annotations

import os
import re
import socket
import tomllib
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from string import Formatter
from typing import Any, Final

from site_spider import options, runtime
from site_spider.engine.scrapy_parts import load_class
from site_spider.errors import ConfigError
from site_spider.observe.counters import iso
from site_spider.options import SettingsView


class Identity:
    """Of one crawl. `member_name` is asked anew each time: the group is joined later."""

    def __init__(self, spider: str, group: str, topic: str, member_name: Callable[[], str]) -> None:
        self.spider = spider
        self.group = group
        self.topic = topic
        self.host_name = socket.gethostname()
        self.pid = os.getpid()
        self.started_at = runtime.time()
        self.version = _version()
        self._member_name = member_name

    @property
    def process(self) -> str:
        """A name of its own for this crawl, which no other has on any host at any time."""
        return f"{self.host_name}-{self.pid}-{int(self.started_at)}"

    @property
    def slot(self) -> str:
        """A name that the process which takes the place of this one has again; empty without one."""
        return self._member_name()

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "spider": self.spider,
            "group": self.group,
            "topic": self.topic,
            "process": self.process,
            "slot": self.slot,
            "host_name": self.host_name,
            "pid": self.pid,
            "started_at": iso(self.started_at),
            "version": self.version,
        }


def _version() -> str:
    try:
        return version("site-spider")
    except PackageNotFoundError:
        return _version_of_checkout()


def _version_of_checkout() -> str:
    try:
        text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
        return str(tomllib.loads(text)["project"]["version"])
    except (OSError, ValueError, KeyError):
        return "unknown"


# --- statistics id ---------------------------------------------------------------------------------------
# The name that statistics documents give their spider: SITE_STATS_ID.


SETTING: Final = "SITE_STATS_ID"
LONGEST: Final = 300  # characters

_PATH: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)


def statistics_id(settings: SettingsView, identity: Identity) -> str:
    """A format of names in braces, or what the callable of a dotted path returns. Raises ConfigError."""
    value = options.text(settings, SETTING, required=True)
    names = {
        "spider": identity.spider,
        "host": identity.host_name,
        "process": identity.pid,
        "start": int(identity.started_at),
        "group": identity.group,
        "topic": identity.topic,
    }
    found = _called(value, names) if _PATH.fullmatch(value) else _formatted(value, names)
    return found[:LONGEST]


def _formatted(value: str, names: Mapping[str, Any]) -> str:
    said = f"{SETTING} is {value!r}, but"
    try:
        fields = [(name, spec, turn) for _, name, spec, turn in Formatter().parse(value) if name is not None]
    except ValueError as error:
        raise ConfigError(f"{said} is no format: {error}. Such as {{spider}}-{{host}}-{{process}}.") from None
    for name, spec, conversion in fields:
        if name not in names or spec or conversion:
            known = ", ".join(f"{{{one}}}" for one in names)
            raise ConfigError(f"{said} a format has {known}, and nothing else in braces.")
    return value.format_map(names)


def _called(path: str, names: Mapping[str, Any]) -> str:
    made = load_class(SETTING, path)
    try:
        found = made(**names)
    except Exception as error:
        raise ConfigError(
            f"{SETTING} names {path}, which cannot be called with {', '.join(names)}: {error!r}."
        ) from error
    if not isinstance(found, str) or not found.strip():
        raise ConfigError(f"{SETTING} names {path}, which returns {found!r:.100}, but must return a name.")
    return found
