"""What may be declared of a task, and that its JSON Schema says the same."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from site_spider.tasks.declaration import BadTask, Task, changed, declared, read_task, schema

NOW = datetime(2026, 1, 2, tzinfo=UTC)
CHECK = Draft202012Validator(schema())
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 2**54),
    st.floats(-5, 1e10, allow_nan=False).filter(lambda number: number % 1),
    st.text(st.sampled_from("ab9"), max_size=3), st.sampled_from(["running", "paused", "host", "any"]),
    st.lists(st.text(st.sampled_from("ab/"), max_size=3) | st.integers(0, 3), max_size=2), st.just({}),
)  # fmt: skip
# the others are texts whose content the parser alone looks at: moments, URLs, rates, patterns
NAMES = [
    "state", "weight", "max_pages", "max_pages_host", "max_bytes", "max_seconds", "depth", "scope", "allow",
    "deny", "source", "task_id", "unknown",
]  # fmt: skip


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3))
def test_schema_and_parser_agree(fields: dict[str, Any]) -> None:
    record = {"task_id": "t", **fields}
    try:
        read_task(json.dumps(record))
    except BadTask:
        assert not CHECK.is_valid(record), record
    else:
        assert CHECK.is_valid(record), record


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"deny": ["(?=x)"]}, "RE2 does not take the pattern: invalid perl operator"),
        ({"allow": ["a" * 1001]}, "1001 characters"),
        ({"allow": ["x"] * 1001}, "at most 1000"),
        ({"webhook": "ftp://x"}, "scheme 'ftp' is not allowed"),
        ({"webhook": "http://u:p@h/"}, "user name or password"),
        ({"rate": "0/s"}, "greater than 0"),
        ({"rate": "fast"}, "rate is 'fast': Input should be a valid number; write 50/s, 300/m or 1000/h"),
        (
            {"expires": "soon"},
            "expires_at is 'soon': Input should be a valid datetime, input is too short; "
            "write 90s, 2h, 7d or a moment such as 2030-01-31T12:00Z",
        ),
        ({"max_pages": 0}, "max_pages is 0"),
        ({"weight": float("inf")}, "weight"),
        ({"colour": "red"}, "colour"),
        ({"task_id": "other"}, "'t' on the command line"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(BadTask) as raised:
        declared("t", fields, NOW)
    assert said in str(raised.value)


def test_short_forms_are_taken() -> None:
    task = declared("t", {"expires": "2h", "rate": "300/m", "max_time": "1d"}, NOW)
    assert (task.rate, task.max_seconds) == (5.0, 86_400)
    assert task.expires_at == datetime(2026, 1, 2, 2, tzinfo=UTC)


def test_changes_replace_fields_and_an_empty_value_takes_one_away() -> None:
    task = declared("t", {"max_pages": 5, "deny": ["a"], "weight": 3}, NOW)
    assert changed(task, ["weight=2", "deny=b", "deny=c"], NOW) == task.model_copy(
        update={"weight": 2.0, "deny": ["b", "c"]}
    )
    bare = changed(task, ["max_pages=", "deny=", "weight="], NOW)
    assert (bare.max_pages, bare.deny, bare.weight) == (None, [], 1.0)


@pytest.mark.parametrize("word", ["weight", "state=cancelled", "task_id=x", "nothing=1", "weight=[[["])
def test_other_changes_are_refused(word: str) -> None:
    with pytest.raises(BadTask):
        changed(Task(task_id="t"), [word], NOW)
