"""Records of the control log: what is written is read, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.contracts.seed_log import Message, Partition
from site_spider.tasks.control_log import BadRecord, Endings, read, written
from site_spider.tasks.counts import Counts
from site_spider.tasks.ending import (
    Attempts,
    EndTold,
    Fact,
    High,
    Noticed,
    Passed,
    Producing,
    Tally,
    WebhookAttempt,
)

LOG = Partition("control", 0)
PLACE = Partition("seeds.a", 3)
FACTS: list[Fact] = [
    Producing("p", is_open=True),
    Producing("*", is_open=False, closes=True, highs={PLACE: 7}),
    High(PLACE, "w", 9),
    Tally(PLACE, "w", 2, 4, 12, frozenset({5, 9}), Counts({"result": 3}, 5, 9)),
    Passed(PLACE, "w", 4),
    EndTold(1, 20, {PLACE: 7}, {"event": "done", "seeds": {"total": 1}}, 12),
    Noticed(1),
    Attempts(1, (WebhookAttempt(5, 503, "HTTP 503"), WebhookAttempt(9, 204, ""))),
]


def message(key: bytes | None, value: bytes | None, offset: int = 0) -> Message:
    return Message(LOG, offset, key, value)


@pytest.mark.parametrize("fact", FACTS)
def test_what_is_written_is_read(fact: Fact) -> None:
    assert read(message(*written("täsk/1", fact))) == ("täsk/1", fact)


def test_the_keys_of_two_writers_are_two() -> None:
    """Compaction keeps the last word of each."""
    facts = [High(PLACE, "a", 9), High(PLACE, "b", 4), High(Partition("seeds.a", 4), "a", 1)]
    assert len({written("t", fact).key for fact in facts}) == 3


@pytest.mark.parametrize("fact", FACTS)
@given(
    st.sampled_from([None, -1, 2**80, "x", [], {}, [[]], {"a": 1}, True, 1e400, [1, 2], "AAAA"]), st.data()
)
def test_a_damaged_record_is_refused_and_changes_nothing(fact: Fact, wrong: Any, data: st.DataObject) -> None:
    key, value = written("t", fact)
    said = json.loads(value)
    said[data.draw(st.sampled_from(sorted(said)))] = wrong
    endings = Endings()
    try:
        endings.take(message(key, json.dumps(said).encode()))
    except BadRecord:
        assert endings.get("t") is None


@pytest.mark.parametrize(
    "key", [None, b"", b"t", b"t\x1fhigh", b"\xff\x1fhigh\x1fs/0\x1fw", b"t\x1fnone", b"\x1fnoticed"]
)
@pytest.mark.parametrize("value", [None, b"", b"{}", b"[" * 100_000, b"{" * 2_000_000, b'{"generation": 1}'])
def test_foreign_records_are_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(BadRecord):
        Endings().take(message(key, value))
