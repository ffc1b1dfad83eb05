"""The batcher against a brute-force model, its rules one by one, and results kept until their seeds are complete."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from site_spider.contracts.seed_log import Partition, Position
from site_spider.contracts.sink import ACKNOWLEDGED, Answer, Record, Verdict
from site_spider.errors import BatchError
from site_spider.ledger import metadata as commit_metadata
from site_spider.ledger.ledger import Ledger, Outcome, SeedInFlight
from site_spider.results.batches_and_retries import Batch, Batcher, BatchLimits
from site_spider.results.transaction_queue import Link, TransactionQueue
from tests.growth import assert_grows

RETRY = Verdict(Answer.RETRY, "busy")
REJECTED = Verdict(Answer.REJECTED, "bad")
LIMITS = BatchLimits(size_bytes=100, count=4, age_seconds=1.0, under_way=2)


def record(key: str, size_bytes: int = 10) -> Record:
    return Record(key, {}, size_bytes)


def accept(batcher: Batcher, *keys: str, size_bytes: int = 10, now: float = 0) -> None:
    for key in keys:
        batcher.accept(record(key, size_bytes), key, now)


def keys_of(batch: Batch | None) -> list[str]:
    return [item.key for item in batch.records]


def settle(batcher: Batcher, batch: Batch | None, *verdicts: Verdict, now: float = 0) -> list[Any]:
    assert batch is not None
    endings = batcher.settle(batch.number, verdicts or [ACKNOWLEDGED] * len(batch.records), now, 0)
    return [ending.done for ending in endings]


def test_a_batch_is_due_by_the_age_of_its_oldest_record() -> None:
    """It leaves after the age limit, and `next_at` says when."""
    batcher = Batcher(LIMITS)
    accept(batcher, "a", now=5)
    accept(batcher, "b", now=5.5)
    assert batcher.take(5.9) is None
    assert batcher.next_at(5.9) == 6
    assert keys_of(batcher.take(6)) == ["a", "b"]
    assert batcher.next_at(6) is None


def test_many_that_are_void_are_left_out_some_at_a_time() -> None:
    """When partitions leave while a sink is away, a hundred thousand may be."""
    batcher = Batcher()
    for number in range(3_500):
        batcher.accept(record(str(number)), "void", 0, lambda: True)
    accept(batcher, "last")
    looks, left_out = 0, 0
    while (batch := batcher.take(9.0)) is None:
        assert 0 < len(batcher.void) <= 1_000
        assert batcher.next_at(9.0) == 9.0
        looks, left_out = looks + 1, left_out + len(batcher.void)
        batcher.void.clear()  # as who tells of them does
    assert (keys_of(batch), looks, left_out + len(batcher.void)) == (["last"], 3, 3_500)


def test_what_is_void_by_its_turn_is_left_out_and_what_waited_behind_it_is_not() -> None:
    """The later document of the same key goes out at once."""
    batcher, is_void = Batcher(LIMITS), False
    batcher.accept(record("a"), "first", 0, lambda: is_void)
    accept(batcher, "b", "a", "c", "d")
    is_void = True
    assert keys_of(batcher.take(0)) == ["b", "a", "c", "d"]
    assert (batcher.void, batcher.backlog_count, batcher.backlog_bytes) == (["first"], 4, 40)


def test_a_sink_that_is_away_counts_as_there_when_nothing_waits_for_it_any_more() -> None:
    """Else nothing would find out that it is back."""
    batcher, is_void = Batcher(LIMITS), False
    batcher.accept(record("a"), "a", 0, lambda: is_void)
    batcher.fail(batcher.take(1).number, 1, 0)
    is_void = True
    assert batcher.unavailable_since == 1
    assert batcher.take(20) is None
    assert batcher.unavailable_since is None


def test_a_retried_record_pauses_longer_each_time() -> None:
    """The pause doubles, while the sink counts as available because others pass."""
    batcher = Batcher(LIMITS)
    accept(batcher, "bad", "x")
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
    assert "bad" in settle(batcher, batcher.take(now), now=now)


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
        self.tickets = count()  # each in the place of who hears of an answer
        self.lines: dict[str, list[tuple[int, int]]] = {}  # key -> open (ticket, size), in order
        self.under_way: dict[int, list[tuple[str, int]]] = {}  # batch -> (key, ticket)

    @rule(key=st.sampled_from("abcdefgh"), size=st.integers(0, 80))
    def accept(self, key: str, size: int) -> None:
        ticket = next(self.tickets)
        self.batcher.accept(record(key, size), ticket, self.now)
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
        assert [(ending.done, ending.record.key, ending.verdict) for ending in endings] == expected
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
        assert len(self.batcher._under_way) == len(self.under_way) <= 2

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


# --- results that are kept until their seeds are complete ------------------------------------------------


P, Q = Partition("seeds", 0), Partition("seeds", 1)
QUEUE_LIMITS = BatchLimits(size_bytes=1000, count=10, age_seconds=1.0)


class Crawl:
    """A ledger and what is kept, driven as results.exactly_once does."""

    def __init__(self, *partitions: Partition) -> None:
        self.ledger = Ledger()
        self.held = TransactionQueue(self.ledger, QUEUE_LIMITS)
        for partition in partitions or (P,):
            self.ledger.assign(partition, Position(0))

    def take(self, offset: int, partition: Partition = P) -> SeedInFlight:
        entry = self.ledger.take(partition, offset)
        assert entry is not None
        return entry

    def keep(self, entry: SeedInFlight, key: str = "", size_bytes: int = 100) -> None:
        key = key or f"{entry.partition.number}/{entry.offset}"
        if self.held.keep(entry, Record(key, {}, size_bytes)):
            self.ledger.hold(entry)

    def end(self, entry: SeedInFlight, now: float = 0.0) -> None:
        """The request ends: what is left is the hold for what is kept."""
        self.ledger.decide(entry, Outcome.RESULT)
        self.ledger.release(entry)
        self.held.end(entry, now)

    def store(self) -> None:
        for tree in self.held.committed():
            if tree.entry is not None:
                self.ledger.release(tree.entry)


def complete_offsets(position: Position, below: int) -> set[int]:
    ahead = commit_metadata.decode(*position)
    runs = [(0, position.offset), *ahead.complete]
    return {offset for start, end in runs for offset in range(start, min(end, below))}


def keys(items: list[Record | Link]) -> list[str]:
    return [item.key for item in items if isinstance(item, Record)]


def test_positions_tell_just_of_the_trees_that_go_with_them() -> None:
    """Of two that are ready and do not fit into one transaction, the second is not complete yet."""
    crawl = Crawl()
    for offset in (0, 1):
        entry = crawl.take(offset)
        crawl.keep(entry, size_bytes=900)
        crawl.end(entry)
    first = crawl.held.commit(with_trees=True)
    assert (len(first.trees), complete_offsets(first.positions[P], 2)) == (1, {0})
    crawl.store()
    second = crawl.held.commit(with_trees=True)
    assert complete_offsets(second.positions[P], 2) == {0, 1}


def test_one_transaction_at_a_time() -> None:
    """The positions of the next one depend on the answer to this one."""
    crawl = Crawl()
    crawl.take(0)
    assert crawl.held.commit(with_trees=True) is not None
    with pytest.raises(BatchError):
        crawl.held.commit(with_trees=True)


def test_what_is_kept_for_a_partition_that_left_is_forgotten() -> None:
    """Also when it is under way and comes back."""
    crawl = Crawl(P, Q)
    for partition in (P, Q):
        for offset in (0, 1):
            entry = crawl.take(offset, partition)
            crawl.keep(entry)
            if offset == 0:
                crawl.end(entry)
    crawl.held.commit(with_trees=True)
    under_way, still_open = crawl.ledger.revoke(Q)
    assert not crawl.held.forget(under_way)
    assert crawl.held.forget(still_open)
    assert crawl.held.not_committed() == [under_way]
    again = crawl.held.commit(with_trees=True)
    assert keys(again.items) == ["0/0"]
    assert again.positions.keys() == {P}
    crawl.store()
    assert crawl.held.size_bytes == 100  # the open tree of P


def test_a_result_that_no_seed_stands_behind_is_ready_at_once_and_stored_once() -> None:
    """It waits over a transaction that failed; one that is refused is gone, and its size with it."""
    crawl = Crawl()
    for key in ("good", "poison"):
        crawl.held.keep_alone(Record(key, {}, 100), 0.0)
    for answer in (crawl.held.not_committed, lambda: crawl.held.refused([1])):
        assert keys(crawl.held.commit(with_trees=True).items) == ["good", "poison"]
        answer()
    assert keys(crawl.held.commit(with_trees=True).items) == ["good"]
    crawl.store()
    assert (crawl.held.commit(with_trees=True), crawl.held.size_bytes, crawl.held.ready_bytes) == (None, 0, 0)


def test_a_seed_that_the_text_of_the_commit_has_no_room_for_waits() -> None:
    """It would be repeated, and its results stored twice. Those of other partitions do not wait."""
    crawl = Crawl()
    slow = [crawl.take(0), crawl.take(30_000)]
    far = crawl.take(40_000)
    for offset in range(40_001, 60_000, 2):  # every other one is open: no text reaches that far
        crawl.take(offset)
    crawl.keep(far)
    crawl.end(far)
    assert crawl.held.commit(with_trees=True) is None
    assert crawl.held.ready_count == 1
    crawl.ledger.assign(Q, Position(0))
    other = crawl.take(0, Q)
    crawl.keep(other)
    crawl.end(other)
    transaction = crawl.held.commit(with_trees=True)
    assert keys(transaction.items) == ["1/0"]
    crawl.store()
    for entry in slow:
        crawl.ledger.decide(entry, Outcome.FILTERED)
        crawl.ledger.release(entry)
    transaction = crawl.held.commit(with_trees=True)
    assert keys(transaction.items) == ["0/40000"]


def test_the_oldest_decides_when_a_transaction_is_due() -> None:
    """By age, by size or by count."""
    crawl = Crawl()
    entry = crawl.take(0)
    crawl.keep(entry)
    crawl.end(entry, now=5.0)
    assert not crawl.held.is_due(5.9)
    assert crawl.held.is_due(6.0)
    entry = crawl.take(1)
    crawl.keep(entry, size_bytes=900)
    assert not crawl.held.is_due(5.5)  # it is large, but not complete
    crawl.end(entry, now=5.5)
    assert crawl.held.is_due(5.5)


def test_an_unchanged_position_is_not_committed_again_unless_asked_for() -> None:
    """Nor after the partition was away: its next assignment knows nothing of this one."""
    crawl = Crawl()
    crawl.take(0)
    crawl.held.commit(with_trees=False)
    crawl.store()
    assert crawl.held.commit(with_trees=False) is None
    assert crawl.held.commit(with_trees=False, anyway={P}) is not None
    crawl.store()
    crawl.held.forget_positions([P])
    assert crawl.held.commit(with_trees=False) is not None
    crawl.held.forget_positions([P])  # it leaves while the transaction is in doubt, and comes back
    crawl.store()
    assert crawl.held.commit(with_trees=False) is not None


def with_many_trees(what: str, count: int) -> Callable[[], object]:
    """As many of them in a transaction as wait for one."""
    crawl = Crawl()
    entries = [crawl.take(offset) for offset in range(2 * count)]
    for entry in entries:
        crawl.keep(entry, size_bytes=0)
        crawl.end(entry)
        if entry.offset + 1 == count:
            assert len(crawl.held.commit(with_trees=True).trees) == count
    if what == "refused":
        return lambda: crawl.held.refused(dict.fromkeys(range(count), "gone").keys())
    crawl.ledger.revoke(P)
    return lambda: [crawl.held.forget(entry) for entry in reversed(entries)]


@pytest.mark.parametrize("what", ["refused", "left"])
def test_each_of_many_trees_costs_the_same(what: str) -> None:
    """They leave together with their partitions, and a topic that is gone refuses all links to it."""
    assert_grows(lambda count: with_many_trees(what, count), 1_000)


@given(st.data())
def test_a_reader_sees_each_result_once_whatever_fails(data: st.DataObject) -> None:
    """Transactions fail, processes die and are replaced: the stored results are those of complete seeds."""
    stored: list[str] = []
    committed = Position(0)
    seeds = 8
    for _ in range(data.draw(st.integers(0, 4), label="deaths")):
        committed = _live_a_while(data, committed, stored, seeds)
        assert sorted(stored) == sorted({*stored})
        told = complete_offsets(committed, seeds)
        assert {int(key.split("-")[0]) for key in stored} == told
    committed = _live_a_while(data, committed, stored, seeds, to_the_end=True)
    assert sorted(stored) == sorted(f"{offset}-{part}" for offset in range(seeds) for part in range(2))


def _live_a_while(
    data: st.DataObject, committed: Position, stored: list[str], seeds: int, *, to_the_end: bool = False
) -> Position:
    """One process: takes what is not complete, in any order, with any transaction failing."""
    crawl = Crawl(Q)
    crawl.ledger.assign(P, committed)
    entries = [crawl.ledger.take(P, offset) for offset in range(committed.offset, seeds)]
    left = data.draw(st.permutations([entry for entry in entries if entry is not None]))
    while left if to_the_end else (left and data.draw(st.booleans())):
        entry = left.pop()
        for part in range(2):
            crawl.keep(entry, f"{entry.offset}-{part}", size_bytes=300)  # a tree in a transaction
            if data.draw(st.booleans(), label="a transaction"):
                committed = _transact(crawl, committed, stored, stores=data.draw(st.booleans()))
        crawl.end(entry)
    if to_the_end:
        committed = _transact(crawl, committed, stored, stores=True)
        assert (crawl.held.size_bytes, crawl.held.ready_bytes) == (0, 0)
    return committed


def _transact(crawl: Crawl, committed: Position, stored: list[str], *, stores: bool) -> Position:
    transaction = crawl.held.commit(with_trees=True)
    if transaction is None or not stores:
        if transaction is not None:
            crawl.held.not_committed()
        return committed
    stored.extend(keys(transaction.items))
    crawl.store()
    while crawl.held.ready_count:
        committed = transaction.positions.get(P, committed)
        transaction = crawl.held.commit(with_trees=True)
        stored.extend(keys(transaction.items))
        crawl.store()
    return transaction.positions.get(P, committed)
