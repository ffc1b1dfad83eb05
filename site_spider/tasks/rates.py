"""How processes share the rate of a task. Pure: time is an argument, in seconds of the event loop's clock.

Theory. A process that has requests of a task with a rate tells its pace once a second: how many requests a
second begin here, and whether the rate holds back further ones. Processes that are not held back leave the
rest of the rate to those that are, in equal parts. So a task of one host has its whole rate in the process
that owns the host. The records have one order, and whoever is active repeats its own: when a process has read
for a moment what it tells itself, it knows all others. Until then, and while the topic cannot be read, its
part is that of the partitions that it has. These parts add up to the rate as well, so it is not exceeded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from site_spider.frontier.waiter import TaskRates
from site_spider.tasks.board import Board, pace_key
from site_spider.tasks.declaration import Pace

TELL_SECONDS = 1.0
_STALE_SECONDS = 4.0  # without a word, a process is gone, or this one does not hear
_KNOWN_SECONDS = 1.5  # of hearing oneself, before all others are known
_HELD_SECONDS = 1.5  # since the rate held something back
_WINDOW_SECONDS, _LONGEST_WINDOW_SECONDS = 3.0, 60.0  # over which requests are counted
_WINDOW_REQUESTS = 6.0  # that it has at the task's rate, if it does not become too long
_LEAST_SHARE = 0.02  # of the rate, for who comes while others use all of it and have not heard yet
_MOST_TASKS = 200  # in one go


def part(rate: float, others: Iterable[Pace]) -> float:
    """What one process may take of a rate, by what the others tell."""
    paces = list(others)
    rest = rate - sum(pace.per_second for pace in paces if not pace.is_held)
    return max(rest, _LEAST_SHARE * rate) / (1 + sum(pace.is_held for pace in paces))


class _Here:
    """One task in this process."""

    def __init__(self) -> None:
        self.begun: deque[tuple[float, int]] = deque()  # moments, and how many had begun
        self.heard: dict[str, tuple[Pace, float]] = {}  # by process, and when that was new
        self.known_at: float | None = None  # since when this process hears itself

    def pace(self, now: float, begun: int, rate: float, *, is_held: bool) -> Pace:
        """What the others are told."""
        window = min(_LONGEST_WINDOW_SECONDS, max(_WINDOW_SECONDS, _WINDOW_REQUESTS / rate))
        self.begun.append((now, begun))
        while len(self.begun) > 2 and self.begun[1][0] <= now - window:
            self.begun.popleft()
        since, before = self.begun[0]
        return Pace.of((begun - before) / max(now - since, TELL_SECONDS), is_held=is_held)

    def fresh(self, paces: dict[str, Pace], now: float) -> dict[str, Pace]:
        """What was told of late; whoever is active repeats it, as a new record."""
        before = self.heard
        self.heard = {
            process: before[process] if process in before and before[process][0] is pace else (pace, now)
            for process, pace in paces.items()
        }
        return {process: pace for process, (pace, at) in self.heard.items() if now - at < _STALE_SECONDS}


class GroupRates:
    """Tells the others what begins here of tasks with a rate. On the event loop's thread only."""

    def __init__(
        self, board: Board, rates: TaskRates, process: str, send: Callable[[bytes, bytes | None], object]
    ) -> None:
        self._board = board
        self._rates = rates
        self._process = process
        self._send = send
        self._here: dict[str, _Here] = {}

    def look(self, now: float) -> None:
        """To be called every second (`TELL_SECONDS`), at a time of the event loop."""
        rates = (
            (task_id, self._board.rate_of(task_id)) for task_id in self._rates.active(now - _LONGEST_WINDOW_SECONDS)
        )
        active = dict(islice(((task_id, rate) for task_id, rate in rates if rate is not None), _MOST_TASKS))
        for task_id in self._here.keys() - active.keys():
            self._leave(task_id)
        for task_id, rate in active.items():
            self._share(task_id, rate, now)

    def close(self) -> None:
        """The others need not wait until this process is forgotten."""
        for task_id in list(self._here):
            self._leave(task_id)

    def _leave(self, task_id: str) -> None:
        del self._here[task_id]
        self._rates.share(task_id, None)
        self._send(pace_key(task_id, self._process), None)

    def _share(self, task_id: str, rate: float, now: float) -> None:
        here = self._here.setdefault(task_id, _Here())
        use = self._rates.use(task_id)
        pace = here.pace(now, use.begun, rate, is_held=now - use.held_at < _HELD_SECONDS)
        self._send(pace_key(task_id, self._process), pace.value())
        others = here.fresh(self._board.paces(task_id), now)
        if others.pop(self._process, None) is None:
            here.known_at = None
        elif here.known_at is None:
            here.known_at = now
        is_known = here.known_at is not None and now - here.known_at >= _KNOWN_SECONDS
        self._rates.share(task_id, part(rate, others.values()) if is_known else None)
