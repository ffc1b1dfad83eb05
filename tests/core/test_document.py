"""Documents as JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.core.document import encode
from site_spider.errors import SinkRejected

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
