"""Who a process is, for everybody who looks at several."""

from __future__ import annotations

import os
import socket
import tomllib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from site_spider import runtime
from site_spider.observe.moments import iso


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
