"""The CPU and memory of a process and all that it started, as the kernel counts them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.processes import Process, children

_LOOK_SECONDS = 0.5  # between two looks for new processes
_SCHEDULED = 2  # CPUCLOCK_SCHED: nanoseconds on a CPU, user and system, all threads, the ended ones too


@dataclass(frozen=True)
class Reading:
    """At one moment."""

    at: float  # time.time()
    cpu_seconds: float  # since the start, of all processes, also those that have ended
    served: int  # pages, by then


def cpu_seconds(pid: int) -> float:
    """Of one process. Raises OSError when it is gone."""
    return time.clock_gettime((~pid << 3) | _SCHEDULED)


def peak_bytes(pid: int) -> int:
    """The most memory that a process ever had resident; 0 when it is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


class Meter:
    """A process and its descendants, those that count."""

    def __init__(self, root: int, counts: Callable[[Process], bool]) -> None:
        self._root = root
        self._counts = counts
        self._cpu: dict[int, float] = {}
        self._peak: dict[int, int] = {}
        self._looked = 0.0

    def cpu(self) -> float:
        """CPU seconds so far, of all of them."""
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self._look()
        for pid in self._cpu:
            self._peak[pid] = max(self._peak.get(pid, 0), peak_bytes(pid))
            with suppress(OSError):
                self._cpu[pid] = cpu_seconds(pid)
        return sum(self._cpu.values())

    def peak_bytes(self) -> int:
        """The peaks of all of them together."""
        return sum(self._peak.values())

    def _look(self) -> None:
        self._looked = time.monotonic()
        for process in [Process(self._root, 0), *descendants(self._root)]:
            if process.pid in self._cpu or self._counts(process):
                self._cpu.setdefault(process.pid, 0.0)


def descendants(pid: int) -> list[Process]:
    """The living processes below one, the nearest first."""
    found = children(pid)
    for child in found:  # grows while it is read
        found += children(child.pid)
    return found
