"""What was done of a seed when its partition comes back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from site_spider.contracts.seed_log import Message, Partition, Position
from site_spider.ledger import ledger as module
from site_spider.ledger.ledger import Ledger, Outcome, Repeats, SeedInFlight

P = Partition("seeds", 0)
OTHER = Partition("seeds", 1)


def message(offset: int = 0, value: bytes = b"seed", partition: Partition = P, at: int = 7) -> Message:
    return Message(partition, offset, b"key", value, timestamp_ms=at)


class Desk:
    """A ledger and the memory, used as the crawl uses them."""

    def __init__(self) -> None:
        self.ledger, self.repeats = Ledger(), Repeats()
        self.ledger.assign(P, None)

    def take(self, what: Message) -> SeedInFlight:
        entry = self.ledger.take(what.partition, what.offset)
        assert entry is not None
        entry.message = what
        return entry

    def end(self, entry: SeedInFlight, outcome: Outcome | None = Outcome.RESULT) -> None:
        if outcome is not None:
            self.ledger.decide(entry, outcome)
        self.ledger.release(entry)
        self.repeats.ended(entry)

    def lose(self, *, under_way: bool = True) -> None:
        for entry in self.ledger.revoke(P):
            (self.repeats.fenced if under_way else self.repeats.broken)(entry)
        self.repeats.left(P)
        self.ledger.assign(P, None)


@pytest.fixture
def desk() -> Desk:
    return Desk()


LEFT_TO_OTHERS = [Outcome.FILTERED, Outcome.SPILLED]


@pytest.mark.parametrize("outcome", [one for one in Outcome if one not in LEFT_TO_OTHERS])
def test_what_ended_before_the_partition_left_is_known(desk: Desk, outcome: Outcome) -> None:
    desk.end(desk.take(message()), outcome)
    desk.lose()
    assert desk.repeats.outcome(message()) is outcome


@pytest.mark.parametrize("outcome", LEFT_TO_OTHERS)
def test_what_was_left_to_another_message_is_done_again(desk: Desk, outcome: Outcome) -> None:
    """Whoever had the partition meanwhile may have left that message to this one."""
    said: list[Any] = []
    desk.end(desk.take(message(1)), outcome)
    entry = desk.take(message(2))
    desk.lose()
    assert desk.repeats.wait(message(2), said.append)
    desk.end(entry, outcome)
    assert said == [None]
    assert [desk.repeats.outcome(message(offset)) for offset in (1, 2)] == [None, None]


def test_what_ends_after_the_partition_left_is_known(desk: Desk) -> None:
    entry = desk.take(message())
    desk.lose()
    assert desk.repeats.outcome(message()) is None
    desk.end(entry)
    assert desk.repeats.outcome(message()) is Outcome.RESULT


@pytest.mark.parametrize(
    "another",
    [message(value=b"other"), message(at=8), message(offset=1), message(partition=OTHER)],
    ids=["bytes", "time", "offset", "partition"],
)
def test_another_message_is_not_taken_for_it(desk: Desk, another: Message) -> None:
    """A topic made anew has other messages at the same offsets."""
    done, open_entry = desk.take(message()), desk.take(message(5))
    desk.end(done)
    desk.lose()
    assert desk.repeats.outcome(another) is None
    moved = Message(another.partition, another.offset + 5, b"key", another.value, (), another.timestamp_ms)
    assert not desk.repeats.wait(moved, lambda _outcome: None)
    assert desk.repeats.wait(message(5), lambda _outcome: None)
    assert open_entry.holds == 1


def test_what_is_under_way_is_waited_for(desk: Desk) -> None:
    said: list[Any] = []
    entry = desk.take(message())
    desk.lose()
    assert desk.repeats.wait(message(), said.append)
    assert said == []
    desk.end(entry)
    assert said == [Outcome.RESULT]
    assert not desk.repeats.wait(message(), said.append)


@pytest.mark.parametrize("when", ["before", "after"])
def test_work_that_was_dropped_is_done_again(desk: Desk, when: str) -> None:
    said: list[Any] = []
    entry = desk.take(message())
    desk.lose()
    if when == "after":
        assert desk.repeats.wait(message(), said.append)
    desk.repeats.broken(entry)
    if when == "before":
        assert not desk.repeats.wait(message(), said.append)
    desk.end(entry)
    assert desk.repeats.outcome(message()) is None
    assert said == ([None] if when == "after" else [])


def test_what_ends_without_an_outcome_is_done_again(desk: Desk) -> None:
    said: list[Any] = []
    entry = desk.take(message())
    desk.lose()
    assert desk.repeats.wait(message(), said.append)
    desk.end(entry, None)
    assert said == [None]
    assert desk.repeats.outcome(message()) is None


def test_a_partition_that_leaves_twice_is_waited_for_by_its_last_replay_only(desk: Desk) -> None:
    said: list[str] = []
    first = desk.take(message())
    desk.lose()
    desk.take(message())
    assert desk.repeats.wait(message(), lambda _outcome: said.append("second"))
    desk.lose(under_way=False)  # the replay itself never began
    desk.take(message())
    assert desk.repeats.wait(message(), lambda _outcome: said.append("third"))
    desk.end(first)
    assert said == ["third"]


def test_what_is_committed_is_forgotten(desk: Desk) -> None:
    for offset in (2, 0, 1):
        entry = SeedInFlight(P, offset, 1)
        entry.message = message(offset)
        entry.outcome = Outcome.RESULT
        desk.repeats.ended(entry)
    desk.repeats.committed(P, 2)
    assert [desk.repeats.outcome(message(offset)) for offset in range(3)] == [None, None, Outcome.RESULT]
    desk.repeats.committed(P, 3)
    assert desk.repeats._done == {}


def test_the_memory_of_partitions_that_left_is_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEPT", 2)
    for partition in (OTHER, P):
        for offset in range(2):
            entry = SeedInFlight(partition, offset, 1)
            entry.message = message(offset, partition=partition)
            entry.outcome = Outcome.RESULT
            desk.repeats.ended(entry)
    desk.repeats.left(P)
    assert desk.repeats.outcome(message(partition=OTHER)) is None
    assert desk.repeats.outcome(message()) is Outcome.RESULT


class Model(RuleBasedStateMachine):
    """Seeds whose partition comes and goes: none is skipped that was not wholly done, and none done twice."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk()
        self.end = 0
        self.next = 0
        self.committed = 0
        self.working: list[SeedInFlight] = []  # begun, whatever became of their epoch
        self.waiting: list[int] = []  # replays that wait for earlier work
        self.dropped: set[SeedInFlight] = set()  # some of their work was dropped
        self.done: set[int] = set()  # offsets all of whose work was done at least once

    @rule(many=st.integers(1, 3))
    def produce(self, many: int) -> None:
        self.end += many

    @precondition(lambda self: self.next < self.end)
    @rule()
    def poll(self) -> None:
        what = message(self.next)
        entry = self.desk.take(what)
        offset, self.next = self.next, self.next + 1
        outcome = self.desk.repeats.outcome(what)
        if outcome is not None:
            assert offset in self.done
            self.desk.end(entry, outcome)
        elif not self.desk.repeats.wait(what, lambda outcome: self._told(entry, outcome)):
            assert offset not in self.done
            self.working.append(entry)

    def _told(self, entry: SeedInFlight, outcome: Outcome | None) -> None:
        if not entry.live:
            return
        if outcome is None:
            self.working.append(entry)
        else:
            assert entry.offset in self.done
            self.desk.end(entry, outcome)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        entry = self.working.pop(data.draw(st.integers(0, len(self.working) - 1)))
        if entry not in self.dropped:
            self.done.add(entry.offset)
        self.desk.end(entry)

    @rule(drop=st.booleans())
    def lose(self, drop: bool) -> None:
        working = set(self.working)
        for entry in self.desk.ledger.revoke(P):
            if entry in working and not drop:
                self.desk.repeats.fenced(entry)
            else:
                self.dropped.add(entry)
                self.desk.repeats.broken(entry)
        self.desk.repeats.left(P)
        self.desk.ledger.assign(P, Position(self.committed))
        self.next = self.committed

    @rule()
    def commit(self) -> None:
        position = self.desk.ledger.position(P)
        if position is not None:
            self.committed = position.offset
            self.desk.repeats.committed(P, position.offset)

    @invariant()
    def nothing_is_committed_that_was_not_done(self) -> None:
        assert set(range(self.committed)) <= self.done

    def teardown(self) -> None:
        """When all work ends and all is polled, all is done."""
        while self.working or self.next < self.end:
            while self.next < self.end:
                self.poll()
            for entry in list(self.working):
                self.working.remove(entry)
                if entry not in self.dropped:
                    self.done.add(entry.offset)
                self.desk.end(entry)
        assert self.done == set(range(self.end))
        assert self.desk.ledger.in_flight == 0


TestModel = Model.TestCase
