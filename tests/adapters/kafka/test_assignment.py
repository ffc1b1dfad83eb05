"""Who joins again so that partitions that nobody has get an owner."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain, repeat
from struct import pack
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import TopicPartition

from site_spider import runtime
from site_spider.adapters.kafka.assignment import LOOK_SECONDS, GroupAssignment, KafkaAssignment, OwnerWatch, owned_by
from site_spider.contracts.seed_log import Partition, Position
from site_spider.errors import ConfigError, LogUnavailable

ONE, TWO, THREE = (Partition("seeds", number) for number in (1, 2, 3))


def assignment(owned: Mapping[str, set[Partition]], *, is_settled: bool = True) -> GroupAssignment:
    parts = {member: frozenset(those) for member, those in owned.items()}
    return GroupAssignment(parts, frozenset({ONE, TWO, THREE}), is_settled)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a watch that gets these answers, the last of them for ever."""

    def make(*answers: GroupAssignment | None, client_id: str = "") -> OwnerWatch:
        told = chain(answers, repeat(answers[-1]))
        monkeypatch.setattr(f"{OwnerWatch.__module__}.assignment_of", lambda *_of_what: next(told))
        return OwnerWatch(lambda: None, "group", ["seeds"], client_id)  # type: ignore[arg-type, return-value]

    return make


@pytest.mark.parametrize(
    ("told", "owes"),
    [
        pytest.param(assignment({"a-1": {ONE, TWO, THREE}}), False, id="each partition has an owner"),
        pytest.param(assignment({"a-1": {ONE}, "b-1": {TWO}}), True, id="one has none"),
        pytest.param(assignment({"a-1": {Partition("old", 1)}, "b": {ONE, TWO, THREE}}), True, id="another topic"),
        pytest.param(assignment({"b-1": {ONE}}), False, id="to join makes the group rebalance"),
        pytest.param(assignment({"a-1": set()}, is_settled=False), True, id="a rebalance is under way"),
        pytest.param(assignment({}, is_settled=False), False, id="there is no group"),
        pytest.param(None, True, id="the servers do not tell"),
    ],
)
def test_who_owes_a_join(watch: Any, told: GroupAssignment | None, owes: bool) -> None:
    """A member of a name that the group knows, unless each partition has an owner."""
    assert watch(told).owes_join("a") is owes


def turns_of(watched: OwnerWatch, member: str, looks: int) -> list[int]:
    """In which looks a member is to join again."""
    return [look for look in range(looks) if watched.is_to_rejoin(lambda: member, 1000 + look * LOOK_SECONDS)]


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
    caplog.set_level(logging.INFO)
    gap, whole = assignment({"a": {ONE}, "b": {TWO}}), assignment({"a": {ONE, THREE}, "b": {TWO}})
    turns_of(watch(*[gap] * 6, whole), "c", 9)
    assert caplog.messages[0].startswith("Group group: nobody has had seeds/3 for 30 s.")
    assert caplog.messages[1:] == ["Group group: each partition has an owner again."]


def test_a_member_that_is_another_program_is_named_once(watch: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A console consumer in our group: its seeds are lost. One that has none of ours reads another topic."""
    owned = {"ours-1": {ONE}, "console-2": {TWO, THREE}, "metrics-3": {Partition("other", 1)}}
    clients = {"ours-1": "site_spider-a", "console-2": "console", "metrics-3": "metrics"}
    watched = watch(replace(assignment(owned), clients=clients), client_id="site_spider-")
    assert turns_of(watched, "ours-1", 3) == []
    [said] = caplog.messages
    assert "seeds/2, seeds/3" in said
    assert "client 'console'" in said


def test_an_assignment_is_read_and_another_form_is_none() -> None:
    parts = pack(">h5si3i", 5, b"seeds", 3, 1, 2, 3) + pack(">h4si0i", 4, b"bulk", 0)
    whole = pack(">hi", 1, 2) + parts + pack(">i", -1)
    assert owned_by(whole) == {ONE, TWO, THREE}
    assert [owned_by(whole[:end]) for end in range(len(whole) - 4)] == [frozenset()] * (len(whole) - 4)
    assert owned_by(b"\xff" * 40) == frozenset()


@pytest.fixture
def parts() -> Mock:
    """What an assignment stands between."""
    return Mock()


@pytest.fixture
def member(parts: Mock) -> KafkaAssignment:
    """A member that has partition 1."""
    parts.ids.positions.return_value = {ONE: Position(5)}
    parts.ids.begins.side_effect = list
    parts.client.committed.return_value = []
    found = KafkaAssignment(parts.listener, parts.ids, parts.commit, parts.left)
    found.subscribe(parts.client, ["seeds"], owes_join=False)
    parts.ids.former = set()
    parts.client.subscribe.call_args.kwargs["on_assign"](parts.client, [TopicPartition(*ONE)])
    parts.listener.assigned.assert_called_once_with({ONE: Position(5)})
    return found


def test_partitions_that_are_lost_are_told_and_nothing_is_committed(parts: Mock, member: KafkaAssignment) -> None:
    """Of those that were ours. What the listener raises comes when the client has let them go."""
    parts.listener.lost.side_effect = ConfigError("of the listener")
    raw = [TopicPartition(*ONE), TopicPartition(*TWO)]
    parts.client.subscribe.call_args.kwargs["on_lost"](parts.client, raw)
    parts.listener.lost.assert_called_once_with([ONE])
    parts.client.incremental_unassign.assert_called_once_with(raw)
    assert (ONE in member, parts.commit.called, parts.left.call_args.args) == (False, False, ([ONE, TWO],))
    with pytest.raises(ConfigError, match="of the listener"):
        member.raise_failure()


def test_a_partition_leaves_though_its_last_commit_is_refused(
    parts: Mock, member: KafkaAssignment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After three tries; a rebalance waits for it."""
    monkeypatch.setattr(runtime, "sleep", lambda _seconds: None)
    parts.listener.revoked.return_value = {ONE: Position(7)}
    parts.commit.side_effect = LogUnavailable("Refused.")
    parts.client.subscribe.call_args.kwargs["on_revoke"](parts.client, [TopicPartition(*ONE)])
    assert [call.args for call in parts.commit.call_args_list] == [({ONE: Position(7)},)] * 3
    assert [record.message for record in caplog.records] == ["Refused. The next owner repeats what was not committed."]
    parts.client.incremental_unassign.assert_called_once_with([TopicPartition(*ONE)])
    assert ONE not in member
    member.raise_failure()
