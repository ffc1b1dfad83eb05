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

MOST_PROCESSES = 300
WINDOW_SECONDS = 3_600.0
_SILENT_INTERVALS = 3
_SILENT_SECONDS = 30.0  # at least
SILENT_FOR_GOOD_SECONDS = 120.0  # then another process may have its place, where places are few
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

    __slots__ = ("at", "is_near", "state")

    def __init__(self, state: ProcessState, at: float, *, is_near: bool = False) -> None:
        self.state = state
        self.at = at
        self.is_near = is_near  # of this host: it was asked itself

    def life(self, now: float) -> Life:
        """Running until nothing was heard for three intervals."""
        if self.state.is_ended:
            return Life.ENDED
        patience = max(_SILENT_INTERVALS * self.state.interval_seconds, _SILENT_SECONDS)
        return Life.SILENT if now - self.at > patience else Life.RUNNING


class Fleet:
    """One consumer group: snapshots in, sums out.

    Whoever may write to the topic may make up processes. So their number is bounded, and one that goes on
    speaking keeps its place: a new one gets that of a process that has ended or fallen silent. A process of
    this host gets that of the newest of the others.
    """

    def __init__(self) -> None:
        self.curves = Curves()
        self.left_out_at: float | None = None  # when a process was last left out
        self._seen: dict[str, LastSeen] = {}

    def take(self, state: ProcessState, seen_at: float, *, is_near: bool = False) -> None:
        """A snapshot; one that is not newer than the one known is passed over."""
        before = self._seen.get(state.name)
        if before is not None and state.at <= before.state.at:
            return
        if before is None and not self._make_place(seen_at, is_near=is_near):
            self.leave_out(seen_at)
            return
        self._note(before, state, seen_at)
        is_near = is_near or (before is not None and before.is_near)
        self._seen[state.name] = LastSeen(state, seen_at, is_near=is_near)

    def leave_out(self, now: float) -> None:
        """Note that a process has no place."""
        self.left_out_at = now

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

    def _make_place(self, now: float, *, is_near: bool) -> bool:
        """Ended processes go after an hour; when there are too many, what speaks no more goes, too."""
        for name in [name for name, seen in self._seen.items() if _is_past(seen, now)]:
            del self._seen[name]
        if len(self._seen) < MOST_PROCESSES:
            return True
        over = [
            name
            for name, seen in self._seen.items()
            if seen.state.is_ended or now - seen.at > SILENT_FOR_GOOD_SECONDS
        ]
        far = [name for name, seen in self._seen.items() if is_near and not seen.is_near]
        if not over and not far:
            return False
        del self._seen[min(over, key=lambda name: self._seen[name].at) if over else far[-1]]
        return True


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
