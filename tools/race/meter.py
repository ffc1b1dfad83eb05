"""The CPU and memory of a process and all that it started, as the kernel counts them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tools.chaos.crew import Process, children
from tools.race.machine import busy_seconds

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
