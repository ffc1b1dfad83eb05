"""The batcher against a brute-force model, and its rules one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from site_spider.contracts.sink import ACKNOWLEDGED, Answer, Record, Verdict
from site_spider.errors import BatchError
from site_spider.results.batches_and_retries import Batch, Batcher, BatchLimits

RETRY = Verdict(Answer.RETRY, "busy")
REJECTED = Verdict(Answer.REJECTED, "bad")
LIMITS = BatchLimits(size_bytes=100, count=4, age_seconds=1.0, under_way=2)


def record(key: str, size_bytes: int = 10) -> Record:
    return Record(key, {}, size_bytes)


def accept(batcher: Batcher, *keys: str, size_bytes: int = 10, now: float = 0) -> list[int]:
    return [batcher.accept(record(key, size_bytes), now) for key in keys]


def keys_of(batch: Batch | None) -> list[str]:
    return [item.key for item in batch.records]


def settle(batcher: Batcher, batch: Batch | None, *verdicts: Verdict, now: float = 0) -> list[int]:
    assert batch is not None
    endings = batcher.settle(batch.number, verdicts or [ACKNOWLEDGED] * len(batch.records), now, 0)
    return [ending.ticket for ending in endings]


def test_a_batch_is_due_by_count() -> None:
    batcher = Batcher(LIMITS)
    accept(batcher, "a", "b", "c")
    assert batcher.take(0) is None
    accept(batcher, "d", "e")
    assert keys_of(batcher.take(0)) == ["a", "b", "c", "d"]
    assert batcher.take(0) is None


def test_a_batch_is_due_by_the_age_of_its_oldest_record() -> None:
    """A lone record leaves after the age limit, and `next_at` says when."""
    batcher = Batcher(LIMITS)
    accept(batcher, "a", now=5)
    assert batcher.take(5.9) is None
    assert batcher.next_at(5.9) == 6
    assert keys_of(batcher.take(6)) == ["a"]
    assert batcher.next_at(6) is None


def test_what_is_void_by_its_turn_is_left_out_and_what_waited_behind_it_is_not() -> None:
    """The later document of the same key goes out at once."""
    batcher, is_void = Batcher(LIMITS), False
    ticket = batcher.accept(record("a"), 0, lambda: is_void)
    accept(batcher, "b", "a", "c", "d")
    is_void = True
    assert keys_of(batcher.take(0)) == ["b", "a", "c", "d"]
    assert (batcher.take_void(), batcher.backlog_count, batcher.backlog_bytes) == ([ticket], 4, 40)


def test_a_sink_that_is_away_counts_as_there_when_nothing_waits_for_it_any_more() -> None:
    """Else nothing would find out that it is back."""
    batcher, is_void = Batcher(LIMITS), False
    batcher.accept(record("a"), 0, lambda: is_void)
    batcher.fail(batcher.take(1).number, 1, 0)
    is_void = True
    assert batcher.unavailable_since == 1
    assert batcher.take(20) is None
    assert batcher.unavailable_since is None


def test_a_retried_record_pauses_longer_each_time() -> None:
    """The pause doubles, while the sink counts as available because others pass."""
    batcher = Batcher(LIMITS)
    ticket, *_ = accept(batcher, "bad", "x")
    now = 1.0
    pauses = []
    for number in range(3):
        batch = batcher.take(now)
        verdicts = [RETRY if key == "bad" else ACKNOWLEDGED for key in keys_of(batch)]
        settle(batcher, batch, *verdicts, now=now)
        assert batcher.unavailable_since is None
        wake = batcher.next_at(now)
        pauses.append(wake - now)
        accept(batcher, f"x{number}", now=wake - 1)
        now = wake
    assert pauses == [0.5, 1, 2]
    assert ticket in settle(batcher, batcher.take(now), now=now)


def test_a_failed_batch_goes_back_and_closes_the_gate_for_a_growing_while() -> None:
    """Nothing is handed out before the pause is over; the pause grows to its cap."""
    batcher = Batcher(LIMITS)
    accept(batcher, "a", "b")
    now = 1.0
    pauses = []
    for _ in range(9):
        batch = batcher.take(now)
        batcher.fail(batch.number, now, jitter=1)
        assert batcher.unavailable_since == 1.0
        resume = batcher.next_at(now)
        assert batcher.take(resume - 0.001) is None
        pauses.append(resume - now)
        now = resume
    assert pauses == [1, 2, 4, 8, 10, 10, 10, 10, 10]
    assert batcher.backlog_count == 2


def test_success_resets_the_pause() -> None:
    """After an answer the next failure starts small again, and two batches may be under way."""
    batcher = Batcher(LIMITS)
    accept(batcher, "a")
    for now in (1, 10, 20):
        batcher.fail(batcher.take(now).number, now, 0)
    settle(batcher, batcher.take(40), now=40)
    assert batcher.unavailable_since is None
    accept(batcher, "b", now=40)
    batcher.fail(batcher.take(41).number, 41, 0)
    assert batcher.next_at(41) == 41.5


def test_an_unavailable_sink_is_probed_with_one_smaller_batch() -> None:
    """A server that chokes on a batch gets half of it, and more again when it can take that."""
    batcher = Batcher(LIMITS)
    accept(batcher, *"abcdefgh")
    for batch in (batcher.take(0), batcher.take(0)):
        batcher.fail(batch.number, 0, 0)
    probe = batcher.take(1)
    assert len(keys_of(probe)) == 2
    assert batcher.take(1) is None
    batcher.fail(probe.number, 1, 0)
    probe = batcher.take(3)
    assert len(keys_of(probe)) == 1
    settle(batcher, probe, now=3)
    assert len(keys_of(batcher.take(3))) == 2


def test_one_record_that_never_passes_does_not_hold_up_the_others() -> None:
    """What comes back queues behind what waits."""
    batcher = Batcher(LIMITS)
    accept(batcher, "bad", *"abcdefgh")
    now, passed = 0.0, set()
    while len(passed) < 8:
        now = batcher.next_at(now)
        batch = batcher.take(now)
        if batch is None:
            continue
        if "bad" in keys_of(batch):
            batcher.fail(batch.number, now, 0)
        else:
            passed.update(keys_of(batch))
            settle(batcher, batch, now=now)
    assert now < 60


def test_hurry_makes_everything_due() -> None:
    batcher = Batcher(LIMITS)
    accept(batcher, "a", "b")
    settle(batcher, batcher.take(1), RETRY, RETRY, now=1)
    accept(batcher, "c", now=1)
    assert batcher.take(1) is None
    batcher.hurry()
    assert keys_of(batcher.take(1)) == ["a", "b"]


def test_a_sink_with_nothing_to_do_gets_a_batch_sooner() -> None:
    """While one is under way the next one grows until its age, or until the answer."""
    batcher = Batcher(BatchLimits(age_seconds=1.0, idle_age_seconds=0.2))
    accept(batcher, "a")
    assert batcher.take(0.1) is None
    assert batcher.next_at(0.1) == 0.2
    first = batcher.take(0.2)
    accept(batcher, "b", now=0.3)
    assert batcher.take(1.2) is None
    assert batcher.next_at(1.2) == 1.3
    settle(batcher, first, now=1.2)
    assert keys_of(batcher.take(1.2)) == ["b"]


def test_flush_makes_due_what_was_accepted_before_it() -> None:
    batcher = Batcher(LIMITS)
    accept(batcher, "a", "b")
    batcher.flush()
    assert keys_of(batcher.take(0)) == ["a", "b"]
    accept(batcher, "c")
    assert batcher.take(0.9) is None


def state(batcher: Batcher) -> str:
    """Compiled classes have no __dict__."""
    values = {name: getattr(batcher, name) for name in dir(batcher) if not name.startswith("__")}
    return repr({name: value for name, value in values.items() if not callable(value)})


@pytest.mark.parametrize(
    ("move", "arguments"),
    [
        ("settle", (99, [ACKNOWLEDGED], 0, 0)),
        ("settle", (1, [], 0, 0)),
        ("settle", (1, [ACKNOWLEDGED] * 3, 0, 0)),
        ("fail", (99, 0, 0)),
    ],
)
def test_illegal_moves_raise_and_change_nothing(move: str, arguments: Any) -> None:
    batcher = Batcher(LIMITS)
    accept(batcher, "a", "b")
    batcher.take(1)
    before = state(batcher)
    with pytest.raises(BatchError):
        getattr(batcher, move)(*arguments)
    assert state(batcher) == before


class BatcherMachine(RuleBasedStateMachine):
    """Any legal sequence of moves, beside a model that keeps plain lists."""

    def __init__(self) -> None:
        super().__init__()
        self.batcher = Batcher(BatchLimits(size_bytes=60, count=5, age_seconds=1.0, under_way=2, idle_age_seconds=0.5))
        self.now = 0.0
        self.lines: dict[str, list[tuple[int, int]]] = {}  # key -> open (ticket, size), in order
        self.under_way: dict[int, list[tuple[str, int]]] = {}  # batch -> (key, ticket)

    @rule(key=st.sampled_from("abcdefgh"), size=st.integers(0, 80))
    def accept(self, key: str, size: int) -> None:
        ticket = self.batcher.accept(record(key, size), self.now)
        self.lines.setdefault(key, []).append((ticket, size))

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.6, 1.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def flush(self) -> None:
        self.batcher.flush()

    @rule()
    def hurry(self) -> None:
        self.batcher.hurry()

    @rule()
    def take(self) -> None:
        self.took(self.batcher.take(self.now))

    def took(self, batch: Batch | None) -> None:
        if batch is None:
            return
        assert batch.number not in self.under_way
        assert 1 <= len(batch.records) <= 5
        assert len(batch.records) == 1 or sum(item.size_bytes for item in batch.records) <= 60
        busy = [key for entries in self.under_way.values() for key, _ in entries]
        keys = [item.key for item in batch.records]
        assert len(set(busy + keys)) == len(busy) + len(keys), "a key is under way twice"
        # only the oldest open record of a key may be under way
        self.under_way[batch.number] = [(key, self.lines[key][0][0]) for key in keys]
        assert [self.lines[key][0][1] for key in keys] == [item.size_bytes for item in batch.records]

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), jitter=st.floats(0, 1))
    def settle(self, data: st.DataObject, jitter: float) -> None:
        number = data.draw(st.sampled_from(sorted(self.under_way)))
        size = len(self.under_way[number])
        answers = st.sampled_from([ACKNOWLEDGED, ACKNOWLEDGED, RETRY, REJECTED])
        self.settled(number, data.draw(st.lists(answers, min_size=size, max_size=size)), jitter)

    def settled(self, number: int, verdicts: list[Verdict], jitter: float) -> None:
        endings = self.batcher.settle(number, verdicts, self.now, jitter)
        expected = []
        for (key, ticket), verdict in zip(self.under_way.pop(number), verdicts, strict=True):
            if verdict is not RETRY:
                assert self.lines[key].pop(0)[0] == ticket  # popped, so it cannot end twice
                expected.append((ticket, key, verdict))
        assert [(ending.ticket, ending.record.key, ending.verdict) for ending in endings] == expected
        # a batch of which nothing passed says the same as a sink that is away
        assert (self.batcher.unavailable_since is None) is bool(expected)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), jitter=st.floats(0, 1))
    def fail(self, data: st.DataObject, jitter: float) -> None:
        number = data.draw(st.sampled_from(sorted(self.under_way)))
        self.batcher.fail(number, self.now, jitter)
        del self.under_way[number]
        if jitter < 0.5:
            assert self.batcher.unavailable_since is not None

    @invariant()
    def backlog_is_what_is_open(self) -> None:
        open_records = [entry for line in self.lines.values() for entry in line]
        assert self.batcher.backlog_count == len(open_records)
        assert self.batcher.backlog_bytes == sum(size for _, size in open_records)
        assert self.batcher.under_way == len(self.under_way) <= 2

    def teardown(self) -> None:
        """In the end everything can be delivered, and `next_at` leads there."""
        for _ in range(10_000):
            for number in list(self.under_way):
                self.settled(number, [ACKNOWLEDGED] * len(self.under_way[number]), 0)
            self.took(self.batcher.take(self.now))
            if not self.under_way:
                moment = self.batcher.next_at(self.now)
                if moment is None:
                    break
                self.now = moment
        assert not any(self.lines.values())
        assert self.batcher.backlog_count == self.batcher.backlog_bytes == 0


TestBatcherMachine = BatcherMachine.TestCase
TestBatcherMachine.settings = settings(stateful_step_count=60)
