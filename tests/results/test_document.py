"""Documents as JSON."""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.errors import SinkRejected
from site_spider.results.document import encode, shortened

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


def nested(depth: int) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for _ in range(depth):
        document = {"deeper": document}
    return document


@pytest.mark.parametrize("value", [math.nan, math.inf, b"bytes", {1, 2}, object(), nested(5000)])
def test_what_json_has_no_words_for_is_refused(value: Any) -> None:
    """The record is at fault, and its error says so."""
    with pytest.raises(SinkRejected, match="cannot be written as JSON"):
        encode({"field": value})


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
