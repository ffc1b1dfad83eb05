"""The ledger against a brute-force model, and its illegal moves."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from site_spider.contracts.seed_log import Partition, Position
from site_spider.errors import LedgerError
from site_spider.ledger import metadata as commit_metadata
from site_spider.ledger.ledger import Ledger, Outcome, SeedInFlight

PARTITIONS = [Partition("seeds", number) for number in range(3)]
partitions = st.sampled_from(PARTITIONS)
outcomes = st.sampled_from(list(Outcome))


class Model(RuleBasedStateMachine):
    """Kafka and the world around the ledger, kept as plain sets of offsets."""

    entries = Bundle("entries")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.end = dict.fromkeys(PARTITIONS, 0)  # the next offset the log would give
        self.gaps: dict[Partition, set[int]] = {p: set() for p in PARTITIONS}
        self.committed: dict[Partition, Position] = {}
        self.complete: dict[Partition, set[int]] = {p: set() for p in PARTITIONS}  # ever, by anyone
        self.read: dict[Partition, int] = {}  # assigned partitions: where the consumer is
        self.told: dict[Partition, tuple[commit_metadata.Run, ...]] = {}  # complete, by the last commit
        self.fenced: list[SeedInFlight] = []
        self.completions: dict[Outcome, int] = dict.fromkeys(Outcome, 0)

    @rule(partition=partitions, gap=st.booleans(), many=st.integers(1, 5))
    def produce(self, partition: Partition, gap: bool, many: int) -> None:
        for _ in range(many):
            if gap:
                self.gaps[partition].add(self.end[partition])
            self.end[partition] += 1

    @rule(partition=partitions)
    def assign(self, partition: Partition) -> None:
        if partition in self.read:
            with pytest.raises(LedgerError):
                self.ledger.assign(partition, None)
            return
        committed = self.committed.get(partition)
        self.ledger.assign(partition, committed)
        self.told[partition] = () if committed is None else commit_metadata.decode(*committed).complete
        self.read[partition] = self.committed[partition].offset if partition in self.committed else 0

    @rule(partition=partitions, commit=st.booleans())
    def revoke_or_lose(self, partition: Partition, commit: bool) -> None:
        if partition not in self.read:
            with pytest.raises(LedgerError):
                self.ledger.revoke(partition)
            return
        if commit:
            self.commit(partition)
        self.fenced += self.ledger.revoke(partition)
        del self.read[partition]

    @rule()
    def restart(self) -> None:
        """The process dies: all that was not committed is forgotten."""
        self.ledger = Ledger()
        self.read.clear()
        self.fenced.clear()
        self.completions = dict.fromkeys(Outcome, 0)

    @rule(target=entries, partition=partitions)
    def poll(self, partition: Partition) -> Any:
        if partition not in self.read:
            with pytest.raises(LedgerError):
                self.ledger.take(partition, 0)
            return None
        while self.read[partition] in self.gaps[partition]:
            self.read[partition] += 1
        offset = self.read[partition]
        if offset >= self.end[partition]:
            self.ledger.reached(partition, offset)
            return None
        self.read[partition] = offset + 1
        entry = self.ledger.take(partition, offset)
        if entry is None:
            assert offset in self.complete[partition]
        else:
            assert not any(start <= offset < end for start, end in self.told[partition])
        return entry

    @rule(entry=entries)
    def hold(self, entry: SeedInFlight | None) -> None:
        if entry is not None and entry.holds:
            self.ledger.hold(entry)

    @rule(entry=consumes(entries), outcome=outcomes)
    def end_all(self, entry: SeedInFlight | None, outcome: Outcome) -> None:
        if entry is None or entry.holds == 0 or not self._known(entry):
            return
        self.ledger.decide(entry, outcome)
        while entry.holds > 1:
            assert not self.ledger.release(entry)
        was_live = entry.live
        assert self.ledger.release(entry) is was_live
        if was_live:
            self.complete[entry.partition].add(entry.offset)
            assert entry.outcome is not None
            self.completions[entry.outcome] += 1

    @rule(partition=partitions)
    def commit(self, partition: Partition) -> None:
        if partition in self.read and (position := self.ledger.position(partition)) is not None:
            self.committed[partition] = position

    def _known(self, entry: SeedInFlight) -> bool:
        """Entries of a process that died are nobody's any more."""
        if not entry.live:
            return entry in self.fenced
        return entry.partition in self.read and entry in self.ledger.of_partition(entry.partition).open.values()

    @invariant()
    def nothing_incomplete_is_ever_committed(self) -> None:
        for partition, position in self.committed.items():
            ahead = commit_metadata.decode(*position).complete
            said = set(range(position.offset)).union(*(range(*run) for run in ahead))
            existing = {o for o in said if o < self.end[partition]} - self.gaps[partition]
            assert existing <= self.complete[partition]

    @invariant()
    def the_position_is_exactly_what_is_complete(self) -> None:
        for partition in self.read:
            position = self.ledger.position(partition)
            if position is not None:
                open_offsets = [entry.offset for entry in self.ledger.of_partition(partition).open.values()]
                ahead = commit_metadata.decode(*position)
                assert position.offset == min(open_offsets, default=ahead.position)
                assert not any(start <= o < end for o in open_offsets for start, end in ahead.complete)
                said = set(range(position.offset)).union(*(range(*run) for run in ahead.complete))
                assert all(said.issuperset(range(*run)) for run in self.told[partition])
                assert self.ledger.of_partition(partition).span() == ahead.position - position.offset

    @invariant()
    def seeds_are_conserved(self) -> None:
        ledger = self.ledger
        assert ledger.outcomes == self.completions
        assert ledger.consumed == sum(ledger.outcomes.values()) + ledger.in_flight
        assert ledger.in_flight == sum(len(ledger.of_partition(p).open) for p in self.read)

    @precondition(lambda self: self.fenced)
    @rule(outcome=outcomes)
    def a_fenced_seed_ends_without_effect(self, outcome: Outcome) -> None:
        entry = self.fenced[-1]
        if entry.holds:
            before = (self.ledger.in_flight, dict(self.ledger.outcomes))
            self.ledger.hold(entry)
            assert not self.ledger.release(entry)
            assert before == (self.ledger.in_flight, self.ledger.outcomes)


Model.TestCase.settings = settings(stateful_step_count=60)
test_the_ledger_agrees_with_a_brute_force_model = Model.TestCase

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
    state = {p: (b.epoch, b.next, list(b.open), list(b.order)) for p, b in ledger._assigned.items()}
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
    """Whatever is asked out of turn is refused, and the books stay as they were."""
    ledger, entry = a_ledger()
    before, holds = books(ledger), entry.holds
    with pytest.raises(LedgerError):
        move(ledger, entry)
    assert books(ledger) == before
    assert entry.holds == holds


@pytest.mark.parametrize("move", ["hold", "release"])
def test_a_complete_seed_takes_no_more_moves(move: str) -> None:
    """Holding or releasing a complete seed is refused."""
    ledger, entry = completed()
    before = books(ledger)
    with pytest.raises(LedgerError):
        getattr(ledger, move)(entry)
    with pytest.raises(LedgerError):
        ledger.decide(entry, Outcome.FAILURE)
    assert books(ledger) == before


def test_a_dead_letter_outweighs_every_other_outcome() -> None:
    """Once a seed is set aside, a result that comes later does not hide it."""
    ledger, entry = a_ledger()
    ledger.decide(entry, Outcome.DEAD_LETTER)
    ledger.decide(entry, Outcome.RESULT)
    ledger.release(entry)
    assert ledger.outcomes[Outcome.DEAD_LETTER] == 1


def test_a_slow_seed_holds_the_watermark_and_the_rest_is_not_replayed() -> None:
    """Complete offsets behind a slow one travel in the metadata and are skipped by the next owner."""
    ledger = Ledger()
    ledger.assign(P0, None)
    taken = [ledger.take(P0, offset) for offset in range(100)]
    for entry in taken[1:]:
        assert entry is not None
        ledger.decide(entry, Outcome.RESULT)
        ledger.release(entry)
    position = ledger.position(P0)
    assert position is not None
    assert position.offset == 0
    next_owner = Ledger()
    next_owner.assign(P0, position)
    assert [offset for offset in range(101) if next_owner.take(P0, offset) is not None] == [0, 100]


def test_what_an_earlier_owner_completed_survives_a_second_crash() -> None:
    """A commit made while the replay has only begun still says what was complete beyond it."""
    position = Position(0, commit_metadata.encode(0, commit_metadata.Ahead(50, ((1, 50),))))
    ledger = Ledger()
    ledger.assign(P0, position)
    ledger.take(P0, 0)
    again = ledger.position(P0)
    assert again is not None
    assert commit_metadata.decode(*again).complete == ((1, 50),)


def test_the_watermark_passes_what_an_earlier_owner_completed_before_it_is_polled_again() -> None:
    """A stop right after the last incomplete seed leaves no lag behind; what is polled later is skipped."""
    position = Position(0, commit_metadata.encode(0, commit_metadata.Ahead(9, ((1, 4), (5, 9)))))
    ledger = Ledger()
    ledger.assign(P0, position)
    for offset, watermark in ((0, 4), (4, 9)):
        entry = next(e for o in range(offset + 1) if (e := take_if_new(ledger, o)) is not None)
        ledger.decide(entry, Outcome.RESULT)
        ledger.release(entry)
        found = ledger.position(P0)
        assert found is not None
        assert found.offset == watermark
    assert [ledger.take(P0, offset) for offset in range(5, 9)] == [None] * 4
    assert ledger.take(P0, 9) is not None


def take_if_new(ledger: Ledger, offset: int) -> SeedInFlight | None:
    """Take an offset unless it lies below the position."""
    position = ledger.next_offset(P0)
    return None if position is not None and offset < position else ledger.take(P0, offset)
