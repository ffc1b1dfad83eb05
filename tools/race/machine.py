"""Which cores there are, and who runs on which."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from shutil import which

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cores:
    """The crawler has a core for itself where there are two; all else shares the others."""

    crawler: tuple[int, ...]
    servers: tuple[int, ...]

    @classmethod
    def of_this_machine(cls) -> Cores:
        cores = sorted(os.sched_getaffinity(0))
        return cls((cores[-1],), tuple(cores[:-1]) or (cores[-1],))

    @classmethod
    def all_for_all(cls) -> Cores:
        """For crawls that are to have every core."""
        cores = tuple(sorted(os.sched_getaffinity(0)))
        return cls(cores, cores)

    @property
    def are_apart(self) -> bool:
        return not set(self.crawler) & set(self.servers) and which("taskset") is not None

    @property
    def note(self) -> str:
        """What a reader of the table has to know."""
        if self.are_apart:
            return (
                f"crawler on core {listed(self.crawler)}; site, servers and runner on {listed(self.servers)}"
            )
        if len(self.crawler) > 1:
            return f"crawlers, site, servers and runner share the cores {listed(self.crawler)}"
        return "ONE CORE, or no taskset: crawler, site and servers take turns, so pages/s says little"


def busy_seconds(cores: Iterable[int]) -> float:
    """How long these cores have worked since the machine was started, for whomever."""
    lines = dict(line.split(maxsplit=1) for line in Path("/proc/stat").read_text().splitlines())
    user, nice, system, _idle, _waiting, *interrupts = (
        sum(column) for column in zip(*(map(int, lines[f"cpu{core}"].split()) for core in cores), strict=True)
    )
    return (user + nice + system + sum(interrupts[:3])) / _TICKS_PER_SECOND


def listed(cores: tuple[int, ...]) -> str:
    return ",".join(map(str, cores))


def pinned(cores: tuple[int, ...]) -> list[str]:
    """In front of a command: these cores and no others."""
    return ["taskset", "-c", listed(cores)] if which("taskset") else []
