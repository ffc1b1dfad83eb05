"""All processes that were heard of within the hour, and what they did.

Theory: a process counts from zero and its name is its own, so the difference of two snapshots is what
it did between them. A process that is heard of for the first time counts from its start if that lies
within the hour. `seen_at` is the time of whoever asks, because the clocks of machines differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum

from site_spider.console.model.curves import Curves
from site_spider.console.model.state import ProcessState

MOST_PROCESSES = 1_000
WINDOW_SECONDS = 3_600.0
_SILENT_INTERVALS = 3
_SILENT_SECONDS = 30.0  # at least
_LONGEST_GAP_SECONDS = 600.0  # what a process did before it was first heard of is spread over no more

DONE, PAGES, BYTES, CONSUMED = "done", "pages", "bytes", "consumed"
OUTCOME, FAILURE, PAUSE = "outcome/", "failure/", "pause/"


class Life(StrEnum):
    """What is known of a process."""

    RUNNING = "running"
    SILENT = "silent"
    ENDED = "ended"


class LastSeen:
    """The newest snapshot of a process, and when it came."""

    __slots__ = ("at", "state")

    def __init__(self, state: ProcessState, at: float) -> None:
        self.state = state
        self.at = at

    def life(self, now: float) -> Life:
        """Running until nothing was heard for three intervals."""
        if self.state.is_ended:
            return Life.ENDED
        patience = max(_SILENT_INTERVALS * self.state.interval_seconds, _SILENT_SECONDS)
        return Life.SILENT if now - self.at > patience else Life.RUNNING


class Fleet:
    """One consumer group: snapshots in, sums out."""

    def __init__(self) -> None:
        self.curves = Curves()
        self._seen: dict[str, LastSeen] = {}

    def take(self, state: ProcessState, seen_at: float) -> None:
        """A snapshot; one that is not newer than the one known is passed over."""
        before = self._seen.get(state.name)
        if before is not None and state.at <= before.state.at:
            return
        self._note(before, state, seen_at)
        self._seen[state.name] = LastSeen(state, seen_at)
        self._forget(seen_at)

    def end(self, name: str, now: float) -> None:
        """This process has ended in good order: what it last said stays."""
        if name in self._seen:
            self._seen[name] = LastSeen(replace(self._seen[name].state, is_ended=True), now)

    def mark(self, now: float, lag: int | None = None) -> None:
        """Note what the fleet holds now, for the curves."""
        states = [seen.state for seen in self._seen.values() if seen.life(now) is Life.RUNNING]
        gauges: dict[str, float] = {
            "in_flight": sum(state.in_flight for state in states),
            "waiting": sum(state.waiting for state in states),
            "memory_bytes": sum(state.memory_bytes for state in states),
            "processes": len(states),
        }
        self.curves.gauge(now, gauges if lag is None else gauges | {"lag": lag})

    @property
    def seen(self) -> Mapping[str, LastSeen]:
        """All processes by name."""
        return self._seen

    def living(self, now: float) -> list[ProcessState]:
        """Those that run, as far as is known."""
        return [seen.state for seen in self._seen.values() if seen.life(now) is Life.RUNNING]

    def _note(self, before: LastSeen | None, state: ProcessState, seen_at: float) -> None:
        if before is not None:
            self.curves.add(before.at, seen_at, _increases(_counters(before.state), _counters(state)))
        elif (age := state.at - state.started_at) <= _LONGEST_GAP_SECONDS:
            self.curves.add(seen_at - max(age, 0.1), seen_at, _counters(state))

    def _forget(self, now: float) -> None:
        """Ended processes after an hour, and silent ones when there are too many: the oldest first."""
        for name in [name for name, seen in self._seen.items() if _is_past(seen, now)]:
            del self._seen[name]
        while len(self._seen) > MOST_PROCESSES:
            del self._seen[min(self._seen, key=lambda name: self._seen[name].at)]


def _is_past(seen: LastSeen, now: float) -> bool:
    return seen.state.is_ended and now - seen.at > WINDOW_SECONDS


def _counters(state: ProcessState) -> dict[str, float]:
    return {
        DONE: state.completed,
        CONSUMED: state.consumed,
        PAGES: state.pages,
        BYTES: state.bytes,
        **{OUTCOME + name: count for name, count in state.outcomes.items()},
        **{FAILURE + name: count for name, count in state.failures.items()},
        **{PAUSE + name: seconds for name, seconds in state.paused.items()},
    }


def _increases(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: max(0, value - before.get(name, 0)) for name, value in after.items()}


def summed(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """The sum of counts by name."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return total
