"""Documents as JSON."""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.errors import SinkRejected
from site_spider.results.document import Result, encode, shortened

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10
)


@given(st.dictionaries(st.text(), VALUES))
def test_a_document_is_one_line_that_reads_back_equal(document: dict[str, Any]) -> None:
    """Whatever text is in it: a line feed inside a bulk request would break it."""
    line = encode(document)
    assert b"\n" not in line
    assert b"\r" not in line
    assert json.loads(line) == document


@pytest.mark.parametrize(("status", "is_told"), [(200, True), (404, False), (None, False)])
def test_any_good_answer_takes_back_that_a_page_is_gone(status: int | None, is_told: bool) -> None:
    """Also of a sitemap that breaks off, or a page that not all could be extracted from."""
    document = Result("a", status, description="sitemap read up to 1 entries").document()
    assert ("gone_at" in document) is is_told


def nested(depth: int) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for _ in range(depth):
        document = {"deeper": document}
    return document


@dataclass
class Point:
    """orjson would write it."""

    x: int = 1


class Colour(Enum):
    """Likewise."""

    RED = "red"


class Word(StrEnum):
    """Text, so both write it."""

    YES = "yes"


@pytest.mark.parametrize(
    "value",
    [
        *(math.nan, math.inf, [math.nan], {"a": [1, {"b": -math.inf}]}, nested(5000)),
        *(b"bytes", {1, 2}, object(), Point(), datetime.now(UTC), UUID(int=1), Colour.RED, [Point()]),
    ],
)
def test_what_json_has_no_words_for_is_refused(value: Any) -> None:
    """The record is at fault, and its error says so."""
    with pytest.raises(SinkRejected, match="cannot be written as JSON"):
        encode({"field": value})


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("half \ud83c of a pair", b'"half ? of a pair"'),
        ({"\udf89": 1}, b'{"?":1}'),
        (2**64, b"18446744073709551616"),
        ({1: None, "b": True}, b'{"1":null,"b":true}'),
        ((1.5, Word.YES), b'[1.5,"yes"]'),
        (nested(300), b'{"deeper":' * 300 + b"{}" + b"}" * 300),
        ('\x00\x1f\x7f"\\/\u2028é🎉', '"\\u0000\\u001f\x7f\\"\\\\/\u2028é🎉"'.encode()),
    ],
)
def test_what_orjson_refuses_is_written_as_by_json(value: Any, written: bytes) -> None:
    """And what both take has one spelling."""
    assert encode({"field": value}) == b'{"field":%b}' % written


@given(st.text(st.characters(exclude_categories=())))
def test_a_long_body_is_written_as_a_short_one(some: str) -> None:
    """In slices, half surrogate pairs included."""
    body = some * (70_000 // (len(some) or 1) + 1) if some else "x" * 70_000
    expected = json.dumps({"a": 1, "body": body, "b": "é"}, ensure_ascii=False, separators=(",", ":"))
    assert encode({"a": 1, "body": body, "b": "é"}) == expected.encode("utf-8", "replace")


def test_a_body_is_halved_until_nothing_is_left() -> None:
    """By characters, never within one; all other fields stay."""
    document = {"body": "🎉🎈", "description": "why", "headers": "{}"}
    assert shortened(document, 0) == document
    assert shortened(document, 1) == {**document, "body": "🎉", "body_truncated": True}
    assert shortened(document, 2) == {**document, "body": "", "body_truncated": True}
    assert shortened(document, 3) is None
    assert shortened({"body": None}, 1) is None
    assert shortened({}, 1) is None


def test_binary_content_is_cut_to_what_can_be_decoded() -> None:
    """Base64 has four characters for three bytes."""
    document = {"body": None, "body_base64": b64encode(b"0123456789").decode()}  # 16 characters
    cut = shortened(document, 1)
    assert cut is not None
    assert (b64decode(cut["body_base64"]), cut["body_truncated"]) == (b"012345", True)
    assert shortened(document, 3) == {"body": None, "body_base64": "", "body_truncated": True}
