"""Whose a field is that a result has no value for."""

from __future__ import annotations

from typing import Any

import pytest

from site_spider.results.document import MARK, Result, absent, kept, settled, without_mark

NONE = Result("a", description="no answer").document()


@pytest.mark.parametrize(
    ("stored", "is_kept"),
    [
        ({"proxy": "x"}, True),
        ({"proxy": None}, False),
        ({}, False),
        ({"proxy": "x", MARK: "encoding,proxy"}, True),
        ({"proxy": "x", MARK: ""}, False),
        ({"proxy": "x", MARK: ["proxy"]}, True),  # somebody's own field of this name
        ({"proxy": "x", "latency_ms": None, "redirects": 0}, False),  # of an earlier version
        ({"proxy": "x", "latency_ms": None, "redirects": 0, MARK: "encoding,proxy"}, True),
    ],
)
def test_a_value_is_the_producers_unless_we_wrote_it(stored: dict[str, Any], is_kept: bool) -> None:
    assert kept(stored, ["proxy"]) == ({"proxy"} if is_kept else set())
    over = settled(stored, NONE)
    assert ("proxy" not in over) is is_kept
    assert over[MARK] == ",".join(absent(NONE))


def test_fields_of_the_contract_are_always_written() -> None:
    stored = {"status": 7, "headers": "x", "body": "x", "description": "x"}
    over = settled(stored, Result("a").document())
    assert {name: over[name] for name in stored} == dict.fromkeys(stored)


def test_what_is_no_result_is_written_as_it_is() -> None:
    """A document of a pipeline of one's own: a null in it is meant."""
    document = {"url_id": "a", "task_id": None}
    assert settled({"task_id": "x"}, document) is document


def test_readers_do_not_see_the_mark() -> None:
    assert without_mark(dict(settled({}, NONE))) == NONE
