"""Which cores there are, and the CPU and memory of processes on them, as the kernel counts them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from tools.chaos.crew import Process, children

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


_LOOK_SECONDS = 0.5  # between two looks for new processes
_SCHEDULED = 2  # CPUCLOCK_SCHED: nanoseconds on a CPU, user and system, all threads, the ended ones too


@dataclass(frozen=True)
class Reading:
    """At one moment, of all processes that count."""

    at: float  # time.time()
    served: int  # pages, by then
    cpu_seconds: float  # since the start; those that have ended are in it
    resident_bytes: int
    peak_bytes: int
    site_cpu_seconds: float  # of the site
    servers_cpu_seconds: float  # of the servers that the race has started
    core_seconds: float  # that the crawler's core has worked, for whomever


def cpu_seconds(pid: int) -> float:
    """Of one process since its start. Raises OSError when it is gone."""
    return time.clock_gettime((~pid << 3) | _SCHEDULED)


@dataclass
class _Cost:
    cpu_seconds: float = 0.0
    resident_bytes: int = 0
    peak_bytes: int = 0

    def read(self, pid: int) -> None:
        """When the process is gone, its CPU stays counted, and its memory does not."""
        self.resident_bytes = self.peak_bytes = 0
        with suppress(OSError):
            self.cpu_seconds = cpu_seconds(pid)
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    self.peak_bytes = int(line.split()[1]) * 1024
                elif line.startswith("VmRSS:"):
                    self.resident_bytes = int(line.split()[1]) * 1024


class Meter:
    """A process and its descendants, those that count, and the cores they run on."""

    def __init__(self, root: int, counts: Callable[[Process], bool], cores: tuple[int, ...]) -> None:
        self._cores = cores
        self._root = root
        self._counts = counts
        self._costs: dict[int, _Cost] = {}
        self._looked = 0.0

    def read(self, served: int, site: int, servers: Iterable[int]) -> Reading:
        """What they have cost so far; and the site's process, and those of the servers."""
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self._look()
        for pid, cost in self._costs.items():
            cost.read(pid)
        costs = self._costs.values()
        return Reading(
            at=time.time(),
            served=served,
            cpu_seconds=sum(cost.cpu_seconds for cost in costs),
            resident_bytes=sum(cost.resident_bytes for cost in costs),
            peak_bytes=sum(cost.peak_bytes for cost in costs),
            site_cpu_seconds=cpu_seconds(site),
            servers_cpu_seconds=sum(map(cpu_seconds, servers)),
            core_seconds=busy_seconds(self._cores),
        )

    def _look(self) -> None:
        self._looked = time.monotonic()
        for process in [Process(self._root, 0), *descendants(self._root)]:
            if process.pid not in self._costs and self._counts(process):
                self._costs[process.pid] = _Cost()


def descendants(pid: int) -> list[Process]:
    """The living processes below one, the nearest first."""
    found = children(pid)
    for child in found:  # grows while it is read
        found += children(child.pid)
    return found
