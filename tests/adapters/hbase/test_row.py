"""Rows of HBase, without a server: cells as text, cut bodies, row keys."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from typing import Any

import pytest

from site_spider.adapters.hbase.sink import RowLayout, cut_text
from site_spider.errors import SinkRejected
from tests.contracts.sinks import record


def test_cells_are_text_that_people_can_read() -> None:
    """Numbers in decimal, objects as JSON, null empty."""
    document = {"status": 200, "latency_ms": 12.5, "headers": None, "ok": True, "meta": {"ä": [1, None]}}
    assert RowLayout("url_id", 1000).row(record("id", document)).cells == {
        b"f:status": b"200",
        b"f:latency_ms": b"12.5",
        b"f:headers": b"",
        b"f:ok": b"true",
        b"f:meta": '{"ä":[1,null]}'.encode(),
        b"f:url_id": b"id",
    }


@pytest.mark.parametrize("key", ["", "x" * 40_000])
def test_a_key_that_hbase_does_not_take_is_refused(key: str) -> None:
    with pytest.raises(SinkRejected, match="the row key has"):
        RowLayout("url_id", 1000).row(record(key, {"status": 1}))


@pytest.mark.parametrize("text", ["007", "1e400", "NaN", "null", '"quoted"', "{", "[1, 2]", " 1", "-0"])
def test_text_that_only_resembles_a_value_is_read_as_text(text: str) -> None:
    """In fields of somebody's own, whose kind nobody has written down."""
    layout = RowLayout("url_id", 1000)
    row = layout.row(record("id", {"mine": text}))
    assert layout.document(row.key, row.cells) == {"url_id": "id", "mine": text}


def test_text_in_our_own_fields_is_never_taken_for_a_number() -> None:
    """A page whose text is a number, a job whose name is one."""
    document = {"url_id": "1", "body": "42", "task_id": "2026", "description": "true"}
    layout = RowLayout("url_id", 1000)
    row = layout.row(record("1", document))
    assert layout.document(row.key, row.cells) == document


def test_binary_content_of_an_earlier_result_does_not_stay() -> None:
    """Its column is emptied by a later one without any, and by an item that has only a body."""
    layout = RowLayout("url_id", 1000)
    for document in ({"body": None, "body_base64": None}, {"body": "text"}):
        assert layout.row(record("a", document)).cells[b"f:body_bytes"] == b""


def test_a_text_is_cut_between_characters() -> None:
    """Wherever the limit falls, the rest is text, and as much of it as fits."""
    text = "aä漢🎉" * 3
    for limit in range(len(text.encode()) + 2):
        cut = cut_text(text.encode(), limit).decode()
        assert text.startswith(cut)
        assert limit - 4 < len(cut.encode()) <= limit


def test_binary_content_is_kept_as_bytes() -> None:
    """Not as base64, which is a third longer; cut like text, and base64 again for who reads documents."""
    document = {"url_id": "a", "body": None, "body_base64": b64encode(b"\0" * 20 + b"\xff").decode()}
    row = RowLayout("url_id", 1000).row(record("a", document))
    assert row.cells[b"f:body_bytes"] == b"\0" * 20 + b"\xff"
    assert RowLayout("url_id", 1000).document(row.key, row.cells) == document
    cut = RowLayout("url_id", 10).row(record("a", document)).cells
    assert (cut[b"f:body_bytes"], cut[b"f:body_truncated"]) == (b"\0" * 10, b"true")
    mine = {"url_id": "a", "body_base64": "no base64!"}
    row = RowLayout("url_id", 1000).row(record("a", mine))
    assert RowLayout("url_id", 1000).document(row.key, row.cells) == mine


def test_only_a_body_that_is_text_is_cut() -> None:
    """Half a JSON object would be of no use."""
    layout = RowLayout("url_id", 10)
    assert layout.row(record("a", {"body": "x" * 11})).cells[b"f:body_truncated"] == b"true"
    assert layout.row(record("a", {"body": "x" * 10})).cells[b"f:body_truncated"] == b""
    assert layout.row(record("a", {"body": {"x": "y" * 20}})).cells[b"f:body"] == b'{"x":"%b"}' % (b"y" * 20)


@pytest.mark.parametrize(
    ("document", "prefix"),
    [
        ({"url": "https://www.Example.com:8080/a"}, "com.example.www"),
        ({"url": "http://10.1.2.3/a"}, "10.1.2.3"),
        ({"url": "http://[::1]:80/a"}, "::1"),
        ({"url": "http://[broken", "host": "Example.com"}, "com.example"),
        ({"host": "a.test"}, "test.a"),
        ({}, ""),
    ],
)
def test_a_reversed_host_stands_before_the_url_id(document: dict[str, Any], prefix: str) -> None:
    """So that a domain is one range of rows; the id is found again behind it."""
    layout = RowLayout("reversed_host", 1000)
    key = layout.row(record("a/b", document)).key
    assert key == f"{prefix}/a/b".encode()
    assert layout.document(key, {}) == {"url_id": "a/b"}


def test_a_salt_is_the_beginning_of_a_hash_that_everybody_has() -> None:
    """SHA-256 in hexadecimal, its first two digits."""
    layout = RowLayout("salted", 1000)
    key = layout.row(record("a-b", {})).key
    assert key == f"{hashlib.sha256(b'a-b').hexdigest()[:2]}-a-b".encode()
    assert layout.key_of("a-b") == key
    assert layout.document(key, {}) == {"url_id": "a-b"}
