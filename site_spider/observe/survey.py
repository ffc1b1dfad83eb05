"""Counts of what waits in the frontier by reason, and the hosts with the longest queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from heapq import heappush, heappushpop
from typing import Any

from site_spider.frontier.host_queue import HostView

MOST_HOSTS = 1000  # that anybody may ask for
_MOST_REASONS = 20
_LONGEST_NAME = 253  # characters


class Survey:
    """Gathers views of hosts one by one; memory is bounded by `most` hosts."""

    def __init__(self, most: int = 0) -> None:
        self._most = min(most, MOST_HOSTS)
        self._largest: list[tuple[int, int, HostView]] = []  # heap: waiting, number, view
        self._reasons: Counter[str] = Counter()
        self.hosts = 0  # of which something waits
        self.items = 0  # that wait for their host
        self.out = 0

    def add(self, views: Iterable[HostView]) -> None:
        """Some more hosts, each once."""
        for view in views:
            self.out += view.out
            if not view.waiting:
                continue
            self.hosts += 1
            self.items += view.waiting
            self._count(view.reason)
            self._keep(view)

    def _count(self, reason: str) -> None:
        known = reason in self._reasons or len(self._reasons) < _MOST_REASONS
        self._reasons[reason if known else "other"] += 1

    def _keep(self, view: HostView) -> None:
        entry = (view.waiting, -self.hosts, view)
        if len(self._largest) < self._most:
            heappush(self._largest, entry)
        elif self._most:
            heappushpop(self._largest, entry)

    def counts(self) -> dict[str, int]:
        """Hosts of which something waits: all of them, and by the reason why nothing of them starts."""
        return {"waiting": self.hosts} | {reason: self._reasons[reason] for reason in sorted(self._reasons)}

    def largest(self, now: float) -> list[dict[str, Any]]:
        """The hosts of which most waits, with what each waits for."""
        return [_described(view, now) for _, _, view in sorted(self._largest, reverse=True)]


def _described(view: HostView, now: float) -> dict[str, Any]:
    is_timed = view.reason not in ("ready", "busy")
    return {
        "host": view.host[:_LONGEST_NAME],
        "waiting": view.waiting,
        "out": view.out,
        "reason": view.reason,
        "next_in_seconds": round(max(0.0, view.next_at - now), 3) if is_timed else None,
    }
