"""How much memory the crawlers hold, early in a run and at its end."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tools.chaos.processes import Process

EARLY_SECONDS = 300.0  # caches are filled then
_RESIDENT = re.compile(r"^VmRSS:\s+(\d+) kB", re.MULTILINE)


class Memory:
    """As in storm.Watched."""

    is_away = False
    waits_for = ""

    def __init__(self, crawlers: Callable[[], list[Process]]) -> None:
        self._crawlers = crawlers
        self._began = time.monotonic()
        self._early: list[int] | None = None
        self._last: list[int] = []

    def look(self) -> None:
        """As in Watched."""
        if self._early is None and time.monotonic() - self._began >= EARLY_SECONDS:
            self._early = self._now()

    def end(self) -> None:
        """Look a last time, before the crawlers stop."""
        self._last = self._now()

    def rows(self) -> list[tuple[str, object]]:
        """For the table; none for a short run."""
        if self._early is None:
            return []
        return [
            ("memory of each crawler at minute 5, MB", _shown(self._early)),
            ("memory of each crawler in the end, MB", _shown(self._last)),
        ]

    def _now(self) -> list[int]:
        found = (resident_kb(each.pid) for each in self._crawlers())
        return [size for size in found if size is not None]


def resident_kb(pid: int) -> int | None:
    """Of a process; None when it is gone."""
    with suppress(OSError):
        match = _RESIDENT.search(Path(f"/proc/{pid}/status").read_text())
        return int(match[1]) if match else None
    return None


def _shown(sizes_kb: list[int]) -> str:
    return ", ".join(f"{size / 1000:.0f}" for size in sizes_kb) or "-"
