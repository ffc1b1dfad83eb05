"""The ledger against a brute-force model, and its illegal moves."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from site_spider.contracts.seed_log import Message, Partition, Position
from site_spider.errors import LedgerError
from site_spider.intake.intake import Seeds
from site_spider.ledger import metadata as commit_metadata
from site_spider.ledger.completion import Completion
from site_spider.ledger.ledger import Ledger, Outcome, SeedInFlight
from site_spider.seed.seed import parse_seed
from site_spider.tasks.control_log import Endings
from site_spider.tasks.tracker import Tracker
from tests.growth import assert_grows

PARTITIONS = [Partition("seeds", number) for number in range(2)]


class World:
    """Kafka and the world around the ledger, kept as plain sets of offsets; what happens is up to chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.end = dict.fromkeys(PARTITIONS, 0)  # the next offset the log would give
        self.gaps: dict[Partition, set[int]] = {p: set() for p in PARTITIONS}
        self.committed: dict[Partition, Position] = {}
        self.complete: dict[Partition, set[int]] = {p: set() for p in PARTITIONS}  # ever, by anyone
        self.told: dict[Partition, tuple[commit_metadata.Run, ...]] = {}  # complete, by the last commit
        self.restart()

    def restart(self) -> None:
        """The process dies: all that was not committed is forgotten."""
        self.ledger = Ledger()
        self.read: dict[Partition, int] = {}  # assigned partitions: where the consumer is
        self.taken: dict[Partition, set[int]] = {}  # of the same, since then
        self.entries: list[SeedInFlight] = []  # with a hold, fenced ones included
        self.completions, self.handed_back = dict.fromkeys(Outcome, 0), 0

    def run(self, steps: int) -> None:
        moves = [self.produce, self.hold, *[self.assign, self.commit, self.end_all] * 2, *[self.poll] * 5]
        for _ in range(steps):
            rare = self.chance.choice((self.revoke, self.restart))
            (rare if self.chance.random() < 0.1 else self.chance.choice(moves))()
            self.check()

    def partition(self) -> Partition:
        return self.chance.choice(PARTITIONS)

    def produce(self) -> None:
        partition, count = self.partition(), self.chance.randint(1, 5)
        if self.chance.random() < 0.3:
            self.gaps[partition] |= set(range(self.end[partition], self.end[partition] + count))
        self.end[partition] += count

    def assign(self) -> None:
        if (partition := self.partition()) in self.read:
            with pytest.raises(LedgerError):
                self.ledger.assign(partition, None)
            return
        committed = self.committed.get(partition)
        self.ledger.assign(partition, committed)
        self.told[partition] = () if committed is None else commit_metadata.decode(*committed).complete
        self.read[partition], self.taken[partition] = 0 if committed is None else committed.offset, set()

    def revoke(self) -> None:
        if (partition := self.partition()) not in self.read:
            with pytest.raises(LedgerError):
                self.ledger.revoke(partition)
            return
        self.handed_back += len(self.ledger.revoke(partition))
        del self.read[partition]

    def poll(self) -> None:
        if (partition := self.partition()) not in self.read:
            with pytest.raises(LedgerError):
                self.ledger.take(partition, 0)
            return
        while (offset := self.read[partition]) in self.gaps[partition]:
            self.read[partition] += 1
        if offset >= self.end[partition]:
            self.ledger.reached(partition, self.chance.randint(0, offset))
            return
        self.read[partition] = offset + 1
        self.taken[partition].add(offset)
        if (entry := self.ledger.take(partition, offset)) is None:
            assert offset in self.complete[partition]
        else:
            assert not any(start <= offset < end for start, end in self.told[partition])
            self.entries.append(entry)

    def hold(self) -> None:
        if self.entries:
            self.ledger.hold(self.chance.choice(self.entries))

    def end_all(self) -> None:
        """A dead letter is the strongest outcome, then that it is cancelled; a fenced seed ends without effect."""
        if not self.entries:
            return
        entry = self.entries.pop(self.chance.randrange(len(self.entries)))
        before = self.ledger.in_flight, dict(self.ledger.outcomes)
        said = self.chance.choices(list(Outcome), k=3)
        for outcome in said:
            self.ledger.decide(entry, outcome)
        strong = [each for each in said if each in (Outcome.DEAD_LETTER, Outcome.CANCELLED)]
        final = Outcome.DEAD_LETTER if Outcome.DEAD_LETTER in said else (strong or said[-1:])[0]
        while entry.holds > 1:
            assert not self.ledger.release(entry)
        assert self.ledger.release(entry) is entry.live
        if entry.live:
            self.complete[entry.partition].add(entry.offset)
            self.completions[final] += 1
        else:
            assert before == (self.ledger.in_flight, self.ledger.outcomes)

    def commit(self) -> None:
        if (partition := self.partition()) in self.read and (position := self.ledger.position(partition)) is not None:
            self.committed[partition] = position

    def check(self) -> None:
        """Nothing incomplete is ever committed; the position is what is complete; seeds are conserved."""
        for partition, position in self.committed.items():
            existing = {o for o in offsets_of(position) if o < self.end[partition]} - self.gaps[partition]
            assert existing <= self.complete[partition]
        ledger = self.ledger
        for partition in self.read:
            if (found := ledger.position(partition)) is not None:
                open_offsets, ahead = ledger.of_partition(partition).open, commit_metadata.decode(*found)
                assert found.offset == min(open_offsets, default=ahead.position)
                assert offsets_of(found).isdisjoint(open_offsets)
                done = (
                    self.taken[partition].difference(open_offsets).union(*(range(*run) for run in self.told[partition]))
                )
                assert offsets_of(found) >= done
                assert found.offset not in done
                assert ledger.of_partition(partition).span() == ahead.position - found.offset
        assert ledger.outcomes == self.completions
        assert ledger.handed_back == self.handed_back
        assert ledger.consumed == sum(ledger.outcomes.values()) + ledger.in_flight
        assert ledger.in_flight == sum(len(ledger.of_partition(p).open) for p in self.read)


def offsets_of(position: Position) -> set[int]:
    """Those that are complete by a commit."""
    return set(range(position.offset)).union(*(range(*run) for run in commit_metadata.decode(*position).complete))


@pytest.mark.parametrize("seed", range(75))
def test_the_ledger_agrees_with_a_brute_force_model(seed: int) -> None:
    World(seed).run(150)


P0 = PARTITIONS[0]


def a_ledger() -> tuple[Ledger, SeedInFlight]:
    ledger = Ledger()
    ledger.assign(P0, Position(10))
    entry = ledger.take(P0, 10)
    assert entry is not None
    return ledger, entry


def completed() -> tuple[Ledger, SeedInFlight]:
    ledger, entry = a_ledger()
    ledger.decide(entry, Outcome.RESULT)
    ledger.release(entry)
    return ledger, entry


def books(ledger: Ledger) -> Any:
    state = {p: (b.epoch, b.next, list(b.open)) for p, b in ledger._assigned.items()}
    return copy.deepcopy((state, ledger.in_flight, ledger.consumed, ledger.handed_back, ledger.outcomes))


@pytest.mark.parametrize(
    "move",
    [
        lambda ledger, _entry: ledger.assign(P0, None),
        lambda ledger, _entry: ledger.revoke(PARTITIONS[1]),
        lambda ledger, _entry: ledger.take(PARTITIONS[1], 0),
        lambda ledger, _entry: ledger.take(P0, 10),
        lambda ledger, _entry: ledger.take(P0, 3),
        lambda ledger, _entry: ledger.reached(PARTITIONS[1], 3),
        lambda ledger, _entry: ledger.position(PARTITIONS[1]),
        lambda ledger, _entry: ledger.of_partition(PARTITIONS[1]),
        lambda ledger, entry: ledger.release(entry),  # without an outcome
    ],
)
def test_an_illegal_move_raises_and_changes_nothing(move: Any) -> None:
    ledger, entry = a_ledger()
    before, holds = books(ledger), entry.holds
    with pytest.raises(LedgerError):
        move(ledger, entry)
    assert books(ledger) == before
    assert entry.holds == holds


@pytest.mark.parametrize("move", ["hold", "release"])
def test_a_complete_seed_takes_no_more_moves(move: str) -> None:
    ledger, entry = completed()
    before = books(ledger)
    with pytest.raises(LedgerError):
        getattr(ledger, move)(entry)
    with pytest.raises(LedgerError):
        ledger.decide(entry, Outcome.FAILURE)
    assert books(ledger) == before


SEED = b'{"url": "http://h.test/", "meta": {"task_id": "t"}}'


def of_many_partitions(what: str, count: int) -> Callable[[], object]:
    """What is done for all of them at once: a seed of each is complete, and not committed."""
    partitions, completion = [Partition("seeds", number) for number in range(count)], Completion(Ledger())
    seeds = Seeds(completion, *[Mock()] * 7)
    control = Mock(endings=Endings(), writer="w")
    tracker = Tracker(completion, control, Mock(), lambda _task_id: False)
    completion.assigned(dict.fromkeys(partitions))
    entries = [completion.take(Message(each, 0, None, SEED), parse_seed(SEED)) for each in partitions]
    if what == "begin":
        seed, message = parse_seed(SEED), Message(partitions[0], 0, None, SEED)
        return lambda: [tracker.arrived(entry, message, seed) for entry in entries if entry is not None]
    for entry in entries:
        assert entry is not None
        completion.end_as(entry, Outcome.RESULT)
    return {
        "lose": lambda: completion.lost(partitions),
        "commit": lambda: completion.ledger.positions(partitions[::-1], leaving=True),
        "end": lambda: [seeds.reached(each, 1) for each in partitions],
    }[what]


@pytest.mark.parametrize("what", ["begin", "lose", "commit", "end"])
def test_each_of_many_partitions_costs_the_same(what: str) -> None:
    assert_grows(lambda count: of_many_partitions(what, count), 1_000)


def test_partitions_that_start_again_in_one_batch_leave_together() -> None:
    completion, room = Completion(Ledger()), Mock()
    seeds = Seeds(completion, Mock(), Mock(), Mock(), room, *[Mock()] * 3)
    completion.assigned(dict.fromkeys(PARTITIONS))
    for offset, looks in ((1, 1), (0, 3)):  # to lose them, to have them, and for what arrived
        room.look.reset_mock()
        seeds.arrived([(Message(each, offset, None, SEED), parse_seed(SEED)) for each in PARTITIONS])
        assert room.look.call_count == looks
    assert [completion.ledger.next_offset(each) for each in PARTITIONS] == [1, 1]
