"""Snapshots are read whatever they hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.console.reading import NO_TASK, OTHER_TASKS, FailureState, HostState, SinkState, TaskFigures, state_of
from site_spider.observe.frontier_socket import LARGEST_BYTES, OddSnapshot, parsed
from tests.console.snapshots import NOW, host, iso, seeds, sink, snapshot, task

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_what_a_process_says_is_read() -> None:
    failed = {
        "url": "http://h.test/a",
        "at": iso(NOW),
        "reason": "dns",
        "description": "no address",
        "task_id": "t",
        "seed": "seeds/0@1",
    }
    state = state_of(
        snapshot(
            seeds=seeds(100, 50, 20, filtered=3, dead_lettered=1, cancelled=1) | {"deleted_unread": 700},
            reasons={"dns": 20},
            newest_failures=[failed],
            tasks={"largest": [task("t", 5, 1, dns=1), task(None, 1, 0)], "others": {"tasks": 3, "pages": 7}},
            sinks=[sink("elasticsearch", available=False, backlog=7)],
            largest_hosts=[host("slow.test", 9)],
            pause={"cause": "sink", "said": "the sink elasticsearch is away"},
            paused_seconds={"sink": 12.5},
        )
    )
    assert (state.consumed, state.completed, state.in_flight, state.missing) == (100, 75, 25, 0)
    assert state.outcomes == {"result": 50, "failure": 20, "filtered": 3, "dead_letter": 1, "cancelled": 1}
    assert (state.at, state.pages, state.bytes) == (NOW, 80, 800_000)
    assert state.examples == (FailureState(NOW, "http://h.test/a", "h.test", "t", "dns", "no address"),)
    assert state.hosts == (HostState("slow.test", 9, 8, "busy", None),)
    assert [found.task_id for found in state.tasks] == ["t", NO_TASK, OTHER_TASKS]
    assert state.tasks[0] == TaskFigures("t", 6, 5000, {"result": 5, "failure": 1}, {"dns": 1})
    assert state.sinks == (SinkState("elasticsearch", False, 7, 7000, 64_000_000, NOW - 5),)
    assert (state.pausing, state.paused) == ("sink", {"sink": 12.5})
    assert state.partitions == ("seeds/1",)


@given(field=st.sampled_from(sorted(snapshot())), value=VALUES)
def test_any_value_of_any_field_is_read_or_refused(field: str, value: Any) -> None:
    try:
        state = state_of(snapshot() | {field: value})
    except OddSnapshot:
        assert field in ("process", "at")
        return
    json.dumps([state.name, state.machine, *state.failures]).encode()
    assert state.completed >= 0
    assert state.waiting >= 0


@given(st.dictionaries(st.text(), VALUES))
def test_any_object_is_read_or_refused(document: dict[str, Any]) -> None:
    with pytest.raises(OddSnapshot):
        state_of(document)


@pytest.mark.parametrize("raw", [b"", b"[1]", b"null", b"{", b"\xff", b"[" * 100_000, b" " * (LARGEST_BYTES + 1)])
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(OddSnapshot):
        parsed(raw)


def test_numbers_and_names_are_bounded() -> None:
    state = state_of(
        snapshot(
            waiting=10**300,
            clock_ahead_seconds=-(10**400),
            reasons={f"r{n}": 1 for n in range(5000)},
            largest_hosts=[host("h" * 5000, -3)] * 5000,
            host_name="\ud800 half",
            memory={"rss_bytes": True},
        )
    )
    assert (state.waiting, state.clock_ahead_seconds) == (10**18, -(10**18))
    assert len(state.failures) == 200
    assert len(state.hosts) == 1000
    assert (len(state.hosts[0].host), state.hosts[0].waiting) == (300, 0)
    assert state.machine == "\\ud800 half"
    assert state.memory_bytes == 0
