"""Who joins again so that partitions that nobody has get an owner, and what is said of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from site_spider.adapters.kafka.group_assignment import (
    LOOK_SECONDS,
    GroupAssignment,
    OwnerWatch,
    Question,
)
from site_spider.contracts.seed_log import Partition

ONE, TWO, THREE = (Partition("seeds", number) for number in (1, 2, 3))


def assignment(owned: Mapping[str, set[Partition]], *names: str, is_settled: bool = True) -> GroupAssignment:
    parts = {member: frozenset(those) for member, those in owned.items()}
    return GroupAssignment(parts, frozenset(names), frozenset({ONE, TWO, THREE}), is_settled)


class Answers:
    """What the servers tell, the last of it for ever; an error is raised as the question is asked."""

    def __init__(self, *answers: GroupAssignment | KafkaException | None) -> None:
        self._answers: Iterator[GroupAssignment | KafkaException | None] = iter(answers)
        self._last: GroupAssignment | KafkaException | None = None
        self.is_answered = True

    def __call__(self, *_arguments: Any) -> Answers:
        self._last = next(self._answers, self._last)
        if isinstance(self._last, KafkaException):
            raise self._last
        return self

    def answer(self) -> GroupAssignment | None:
        assert not isinstance(self._last, KafkaException)
        return self._last


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a watch that gets these answers."""

    def make(*answers: GroupAssignment | KafkaException | None) -> OwnerWatch:
        monkeypatch.setattr(f"{Question.__module__}.Question", Answers(*answers))
        return OwnerWatch(lambda: None, "group", ["seeds"])  # type: ignore[arg-type, return-value]

    return make


@pytest.mark.parametrize(
    ("told", "owes"),
    [
        pytest.param(assignment({"a-1": {ONE, TWO, THREE}}, "a"), False, id="each partition has an owner"),
        pytest.param(assignment({"a-1": {ONE}, "b-1": {TWO}}, "a", "b"), True, id="one has none"),
        pytest.param(assignment({"b-1": {ONE}}, "b"), False, id="to join makes the group rebalance"),
        pytest.param(assignment({"a-1": set()}, "a", is_settled=False), True, id="a rebalance is under way"),
        pytest.param(assignment({}, is_settled=False), False, id="there is no group"),
        pytest.param(None, True, id="the servers do not tell"),
        pytest.param(KafkaException(KafkaError(KafkaError._FAIL)), True, id="nobody can be asked"),
    ],
)
def test_who_owes_a_join(watch: Any, told: GroupAssignment | KafkaException | None, owes: bool) -> None:
    """A member of a name that the group knows, unless each partition has an owner."""
    assert watch(told).owes_join("a") is owes


def turns_of(watched: OwnerWatch, member: str, looks: int) -> list[int]:
    """In which looks a member is to join again: question and answer are two calls."""
    found = []
    for look in range(looks):
        now = 1000 + look * LOOK_SECONDS
        assert not watched.is_to_rejoin(member, now)
        if watched.is_to_rejoin(member, now):
            found.append(look)
    return found


def test_the_member_with_the_fewest_partitions_joins_again_and_then_the_next(watch: Any) -> None:
    """After 30 s: partitions have no owner for a moment in each rebalance."""
    gap = assignment({"a": {ONE, TWO}, "b": set()})
    assert turns_of(watch(gap), "b", 8) == [3, 5, 7]
    assert turns_of(watch(gap), "a", 8) == [4, 6]


def test_a_gap_that_closes_or_moves_is_none(watch: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Neither is a rebalance, nor servers that do not tell, nor a group without members."""
    quiet = [
        assignment({"a": {ONE}, "b": {TWO}}),
        assignment({"a": {ONE}, "b": {THREE}}),
        assignment({"a": {ONE, TWO}, "b": {THREE}}),
        assignment({"a": set()}, is_settled=False),
        None,
        assignment({}),
    ]
    assert turns_of(watch(*quiet * 3, quiet[2]), "a", 20) == []
    assert caplog.messages == []


def test_a_gap_and_its_end_are_said_once(watch: Any, caplog: pytest.LogCaptureFixture) -> None:
    """By every member."""
    caplog.set_level(logging.INFO)
    gap, whole = assignment({"a": {ONE}, "b": {TWO}}), assignment({"a": {ONE, THREE}, "b": {TWO}})
    turns_of(watch(*[gap] * 6, whole), "c", 9)
    first, second = caplog.messages
    assert first.startswith("Group group: nobody has had seeds/3 for 30 s.")
    assert second == "Group group: each partition has an owner again."
