"""Results that are kept until their seeds are complete."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.contracts.seed_log import Partition, Position
from site_spider.contracts.sink import Record
from site_spider.errors import BatchError
from site_spider.ledger import metadata as commit_metadata
from site_spider.ledger.ledger import Ledger, Outcome, SeedInFlight
from site_spider.results.batches_and_retries import BatchLimits
from site_spider.results.transaction_queue import Link, TransactionQueue

P, Q = Partition("seeds", 0), Partition("seeds", 1)
LIMITS = BatchLimits(size_bytes=1000, count=10, age_seconds=1.0)


class Crawl:
    """A ledger and what is kept, driven as results.exactly_once does."""

    def __init__(self, *partitions: Partition) -> None:
        self.ledger = Ledger()
        self.held = TransactionQueue(self.ledger, LIMITS)
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


def test_a_refused_item_is_dropped_and_its_tree_open_again() -> None:
    """The others of the transaction are stored without waiting for it."""
    crawl = Crawl()
    good, bad = crawl.take(0), crawl.take(1)
    crawl.keep(good)
    crawl.keep(bad, "fine")
    crawl.keep(bad, "poison")
    for entry in (good, bad):
        crawl.end(entry)
    crawl.held.commit(with_trees=True)
    crawl.ledger.hold(bad)  # for the dead letter
    (opened,), dropped = crawl.held.refused([2])
    assert dropped == []
    assert opened.entry is bad
    assert crawl.held.is_open(bad)
    transaction = crawl.held.commit(with_trees=True)
    assert (keys(transaction.items), complete_offsets(transaction.positions[P], 2)) == (["0/0"], {0})
    crawl.store()
    crawl.held.end(bad, 1.0)
    transaction = crawl.held.commit(with_trees=True)
    assert (keys(transaction.items), transaction.positions[P].offset) == (["fine"], 2)


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
