"""All processes that were heard of within the hour, and what they did.

Theory: a process counts from zero and its name is its own, so the difference of two snapshots is what
it did between them. A process that is heard of for the first time counts from its start if that lies
within the hour. `seen_at` is the time of whoever asks, because the clocks of machines differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import NamedTuple

from site_spider.console.process_state import ProcessState
from site_spider.contracts.seed_log import Partition
from site_spider.observe.progress import Progress, total
from site_spider.tasks.orders import TaskFacts

# --- curves: what a fleet did in each stretch of ten seconds of the last hour ----------------------------
# An increase of a counter is spread evenly over the time since the process was heard of before, so that
# curves do not depend on how often a process speaks.

STEP_SECONDS = 10
_STEPS = 360
_MOST_NAMES = 100  # of reasons, outcomes and causes in one step


@dataclass(slots=True)
class Stretch:
    """One stretch of time; `process_seconds` says for how long how many processes are known in it."""

    number: int
    counts: Counter[str] = field(default_factory=Counter)
    gauges: dict[str, float] = field(default_factory=dict)
    process_seconds: float = 0.0


class Curves:
    """Memory is bounded: steps of one hour, and names in a step."""

    def __init__(self) -> None:
        self._steps: dict[int, Stretch] = {}
        self._newest = 0

    def add(self, since: float, until: float, increases: Mapping[str, float]) -> None:
        since = max(since, until - _STEPS * STEP_SECONDS)
        length = until - since
        if length <= 0:
            return
        for number in range(int(since // STEP_SECONDS), int(until // STEP_SECONDS) + 1):
            begin, end = number * STEP_SECONDS, (number + 1) * STEP_SECONDS
            overlap = min(end, until) - max(begin, since)
            if overlap > 0 and (step := self._step(number)) is not None:
                step.process_seconds += overlap
                _add(step.counts, increases, overlap / length)

    def gauge(self, at: float, values: Mapping[str, float]) -> None:
        step = self._step(int(at // STEP_SECONDS))
        if step is not None:
            step.gauges.update(values)

    def between(self, since: float, until: float) -> Iterator[Stretch]:
        """The steps that lie in a time altogether, in order."""
        first, last = -(-since // STEP_SECONDS), until // STEP_SECONDS
        return (self._steps[number] for number in sorted(self._steps) if first <= number < last)

    def _step(self, number: int) -> Stretch | None:
        """The step of this number, made when it is new; None for one that is forgotten."""
        if number <= self._newest - _STEPS:
            return None
        if number > self._newest:
            self._newest = number
            self._steps = {known: step for known, step in self._steps.items() if known > number - _STEPS}
        if number not in self._steps:
            self._steps[number] = Stretch(number)
        return self._steps[number]


def _add(counts: Counter[str], increases: Mapping[str, float], share: float) -> None:
    for name, increase in increases.items():
        if name in counts or len(counts) < _MOST_NAMES:
            counts[name] += increase * share  # type: ignore[assignment]


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


class LastSeen(NamedTuple):
    """The newest snapshot of a process, and when it came."""

    state: ProcessState
    at: float
    is_near: bool = False  # of this host: it was asked itself

    def life(self, now: float) -> Life:
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
        self.seen: dict[str, LastSeen] = {}  # all processes by name

    def take(self, state: ProcessState, seen_at: float, *, is_near: bool = False) -> None:
        """A snapshot; one that is not newer than the one known is passed over.

        Each way tells of them in order, also of a process whose clock goes back; the topic is behind the socket.
        """
        before = self.seen.get(state.name)
        if before is not None and state.at <= before.state.at:
            is_behind = before.is_near and not is_near
            if is_behind or seen_at <= before.at or state.at == before.state.at:
                return
        if before is None and not self._make_place(seen_at, is_near=is_near):
            self.leave_out(seen_at)
            return
        self._note(before, state, seen_at)
        is_near = is_near or (before is not None and before.is_near)
        self.seen[state.name] = LastSeen(state, seen_at, is_near=is_near)
        if before is None or before.state.is_ended:
            self._end_replaced(state.slot)

    def leave_out(self, now: float) -> None:
        self.left_out_at = now

    def end(self, name: str, now: float) -> None:
        """This process has ended: what it last said stays."""
        if name in self.seen:
            seen = self.seen[name]
            self.seen[name] = seen._replace(state=replace(seen.state, is_ended=True), at=now)

    def mark(self, now: float) -> None:
        states = self.living(now)
        gauges = {
            "in_flight": sum(state.in_flight for state in states),
            "waiting": sum(state.waiting for state in states),
            "memory_bytes": sum(state.memory_bytes for state in states),
            "processes": len(states),
        }
        self.curves.gauge(now, gauges)

    def living(self, now: float) -> list[ProcessState]:
        return [seen.state for seen in self.seen.values() if seen.life(now) is Life.RUNNING]

    def _note(self, before: LastSeen | None, state: ProcessState, seen_at: float) -> None:
        if before is not None:
            known = _counters(before.state)
            grown = {name: max(0, value - known.get(name, 0)) for name, value in _counters(state).items()}
            self.curves.add(before.at, seen_at, grown)
        elif (age := state.at - state.started_at) <= _LONGEST_GAP_SECONDS:
            self.curves.add(seen_at - max(age, 0.1), seen_at, _counters(state))

    def _end_replaced(self, slot: str) -> None:
        """Two live processes never have one place: who said nothing since the newest began was killed."""
        of_place = [seen for seen in self.seen.values() if slot and seen.state.slot == slot]
        began_at = max((seen.state.started_at for seen in of_place), default=0.0)
        for seen in of_place:
            if seen.state.at < began_at > seen.state.started_at:
                self.end(seen.state.name, seen.at)

    def _make_place(self, now: float, *, is_near: bool) -> bool:
        """Ended processes go after an hour; when there are too many, what speaks no more goes, too."""
        for name, seen in list(self.seen.items()):
            if seen.state.is_ended and now - seen.at > WINDOW_SECONDS:
                del self.seen[name]
        if len(self.seen) < MOST_PROCESSES:
            return True
        over = [
            name for name, seen in self.seen.items() if seen.state.is_ended or now - seen.at > SILENT_FOR_GOOD_SECONDS
        ]
        far = [name for name, seen in self.seen.items() if is_near and not seen.is_near]
        if not over and not far:
            return False
        del self.seen[min(over, key=lambda name: self.seen[name].at) if over else far[-1]]
        return True


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


def summed(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """The sum of counts by name."""
    found: Counter[str] = Counter()
    for each in counts:
        found.update(each)
    return found


# --- pace: how fast a fleet is, and how long the rest takes ----------------------------------------------

NOW_SECONDS = 60
_UNITS = (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1))
_WINDOWS = (60, 300, 900)  # whose rates make the range
Range = tuple[float, float]  # seconds, at the fastest and at the slowest of these rates


def rates(curves: Curves, until: float, seconds: float) -> dict[str, float] | None:
    """What was done per second, by name: the mean over the time before `until`; None without a step in it."""
    steps = list(curves.between(until - seconds, until))
    if not steps:
        return None
    covered = until - steps[0].number * STEP_SECONDS
    return {name: sum(step.counts[name] for step in steps) / covered for name in (DONE, PAGES, BYTES, CONSUMED)}


def time_left(curves: Curves, until: float, lag: int) -> Range | None:
    """The range for this lag, if no more seeds come; None while nothing gets done."""
    if lag == 0:
        return 0.0, 0.0
    found = [rates(curves, until, seconds) for seconds in _WINDOWS]
    speeds = [rate[DONE] for rate in found if rate is not None and rate[DONE] > 0]
    if not speeds:
        return None
    return lag / max(speeds), lag / min(speeds)


def duration(seconds: float) -> str:
    """As people say it: two units at most."""
    whole = max(0, round(seconds))
    for unit, size, smaller, part in _UNITS:
        if whole >= size:
            rest = whole % size // part
            shown = rest and whole < 10 * size
            return f"{whole // size} {unit} {rest} {smaller}" if shown else f"{whole // size} {unit}"
    return f"{whole} s"


def spoken(left: Range | None) -> str:
    """The range in words; a forecast needs no seconds beside minutes."""
    if left is None:
        return "unknown"
    rounded = (round(seconds / 60) * 60 if seconds > 120 else seconds for seconds in left)
    shortest, longest = map(duration, rounded)
    if left[1] == 0:
        return "none"
    return shortest if shortest == longest else f"{shortest} to {longest}"


# --- view: what all pages and the rules of `diagnosis` are made of ---------------------------------------

LOOK_BACK_SECONDS = 600


class Weight(IntEnum):
    """How much a cause matters."""

    BUG = 0
    STOP = 1
    SLOW = 2
    NOTE = 3


class Cause(NamedTuple):
    """One sentence; `page` of the console says more."""

    weight: Weight
    text: str
    page: str


@dataclass(frozen=True, slots=True)
class LogView:
    """What the seed log said of the group, and when."""

    at: float
    partitions: tuple[tuple[Partition, Progress], ...]
    unowned: frozenset[Partition] | None = None  # that no process has; None while that is not known

    @property
    def tiers(self) -> dict[str, Progress]:
        parts: dict[str, list[Progress]] = {}
        for partition, progress in self.partitions:
            parts.setdefault(partition.topic, []).append(progress)
        return {topic: total(found) for topic, found in parts.items()}

    @property
    def total(self) -> Progress:
        return total(part for _, part in self.partitions)


@dataclass(frozen=True, slots=True)
class View:
    """The fleet at one moment; `log` is None until the seed log has answered."""

    fleet: Fleet
    now: float
    group: str
    topic: str
    address: str
    log: LogView | None = None
    tasks: tuple[TaskFacts, ...] = ()
    troubles: tuple[str, ...] = ()
    others: tuple[str, ...] = ()  # processes of this host in other groups

    @property
    def living(self) -> list[ProcessState]:
        return self.fleet.living(self.now)

    @property
    def until(self) -> float:
        """Up to when the curves are complete: processes speak once in an interval."""
        interval = max((state.interval_seconds for state in self.living), default=0.0)
        return (self.now - interval) // STEP_SECONDS * STEP_SECONDS

    @property
    def lag(self) -> int | None:
        """None while the log does not answer."""
        return None if self.log is None else self.log.total.lag

    @property
    def is_unknown(self) -> bool:
        return self.log is None and not self.fleet.seen

    @property
    def parked(self) -> int:
        return sum(task.parked for task in self.tasks)

    def of_late(self) -> list[Stretch]:
        until = self.until
        return list(self.fleet.curves.between(until - LOOK_BACK_SECONDS, until))

    def counted(self, prefix: str) -> Counter[str]:
        counts: Counter[str] = Counter()
        for step in self.of_late():
            for name, count in step.counts.items():
                if name.startswith(prefix):
                    counts[name.removeprefix(prefix)] += count
        return counts
