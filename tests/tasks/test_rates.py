"""How processes share the rate of a task."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from site_spider.contracts.seed_log import Message, Partition
from site_spider.frontier.frontier import Frontier
from site_spider.frontier.priority_queue import HostPolicy
from site_spider.frontier.waiter import TaskFlow, TaskRates
from site_spider.tasks.board import Board, pace_key
from site_spider.tasks.declaration import Pace
from site_spider.tasks.rates import GroupRates, part

FLOW = TaskFlow("t", "seeds")
STEP = 0.02  # seconds
DELAY = 0.3  # of the task topic


class Process:
    """A frontier with pages of the task, each of which comes back at once."""

    def __init__(self, name: str, topic: Topic, share: float, host_delay: float) -> None:
        self.begun: list[float] = []
        self.is_alive = True
        self._board = Board()
        self._board.take(record(b"t", topic.task))
        rates = TaskRates(self._board.rate_of, lambda _topic: share)
        self._group = GroupRates(self._board, rates, name, topic.send)
        self._frontier: Frontier[int] = Frontier(lambda _host: HostPolicy(8, host_delay), rates=rates)

    def add(self, pages: int) -> None:
        for number in range(pages):
            self._frontier.push(0, "h", number, 0.0, flow=FLOW)

    def run(self, now: float, news: list[Message]) -> None:
        for message in news:
            self._board.take(message)
        while self._frontier.pop(now) is not None:
            self.begun.append(now)
            self._frontier.release("h", now)
        self._group.look(now)


class Topic:
    """The task topic, and the group that follows it."""

    def __init__(self, rate: float, shares: list[float], host_delays: dict[int, float] | None = None) -> None:
        self.task = b'{"task_id": "t", "rate": %f}' % rate
        self._now = 0.0
        self._told: deque[tuple[float, Message]] = deque()
        delays = host_delays or {}
        self.processes = [Process(f"p{n}", self, share, delays.get(n, 0.0)) for n, share in enumerate(shares)]
        self.hears: Callable[[Process], bool] = lambda _process: True

    def send(self, key: bytes, value: bytes | None) -> None:
        self._told.append((self._now + DELAY, record(key, value)))

    def run(self, seconds: float) -> float:
        """Returns how many pages began in a second, by all processes."""
        since = self._now
        while self._now < since + seconds:
            self._now += STEP
            news = []
            while self._told and self._told[0][0] <= self._now:
                news.append(self._told.popleft()[1])
            for process in self.processes:
                if process.is_alive:
                    process.run(self._now, news if self.hears(process) else [])
        return sum(moment > since for process in self.processes for moment in process.begun) / seconds


def record(key: bytes, value: bytes | None) -> Message:
    return Message(Partition("seeds.tasks", 0), 0, key, value, ())


@pytest.mark.parametrize("shares", [[0.5, 0.5], [1 / 8, 3 / 8, 4 / 8], [1 / 12] * 12])
def test_a_rate_is_kept_where_all_have_enough(shares: list[float]) -> None:
    """From the first second on."""
    topic = Topic(20, shares)
    for process in topic.processes:
        process.add(2_000)
    assert topic.run(5) == pytest.approx(20, rel=0.15)
    assert topic.run(10) == pytest.approx(20, rel=0.1)


def test_what_a_polite_host_leaves_is_for_the_others() -> None:
    topic = Topic(10, [0.5, 0.5], {0: 1.0})
    for process in topic.processes:
        process.add(5_000)
    topic.run(5)
    assert topic.run(60) == pytest.approx(10, rel=0.1)
    assert len(topic.processes[0].begun) == pytest.approx(65, abs=2)


def test_a_process_that_comes_dies_or_is_done_changes_the_parts() -> None:
    topic = Topic(10, [0.5, 0.5])
    first, second = topic.processes
    first.add(5_000)
    topic.run(5)
    second.add(200)
    assert topic.run(10) == pytest.approx(10, rel=0.15)
    assert topic.run(60) == pytest.approx(10, rel=0.1), "the second is done after 40 s"
    second.add(5_000)
    topic.run(5)
    second.is_alive = False
    topic.run(5)
    assert topic.run(60) == pytest.approx(10, rel=0.1)


def test_a_process_that_hears_nothing_keeps_to_the_part_of_its_partitions() -> None:
    topic = Topic(10, [0.25, 0.75])
    topic.processes[0].add(5_000)
    topic.hears = lambda _process: False
    topic.run(5)
    assert topic.run(60) == pytest.approx(2.5, rel=0.1)


def test_who_is_not_held_back_leaves_the_rest() -> None:
    quick, slow = Pace.of(9.0, is_held=True), Pace.of(2.0, is_held=False)
    assert part(10, []) == 10
    assert part(10, [slow]) == 8
    assert part(10, [slow, quick]) == 4
    assert part(10, [quick] * 9) == 1
    assert part(10, [slow] * 9) > 0


def test_paces_are_bounded() -> None:
    board = Board()
    for number in range(5_000):
        board.take(record(pace_key("t", f"p{number}"), b"{}"))
    assert len(board.paces("t")) <= 1_000
