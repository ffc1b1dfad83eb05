"""The text that travels with a commit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.core.commit_metadata import MAX_BYTES, Ahead, decode, encode

offsets = st.sets(st.integers(1, 400), max_size=300)


def runs_of(complete: set[int], watermark: int) -> tuple[tuple[int, int], ...]:
    runs: list[tuple[int, int]] = []
    for offset in sorted(watermark + one for one in complete):
        if runs and runs[-1][1] == offset:
            runs[-1] = (runs[-1][0], offset + 1)
        else:
            runs.append((offset, offset + 1))
    return tuple(runs)


@given(st.integers(0, 2**53), offsets, st.integers(0, 1000))
def test_what_is_encoded_is_decoded(watermark: int, complete: set[int], beyond: int) -> None:
    """Any set of complete offsets that fits comes back as it was."""
    ahead = Ahead(watermark + beyond, runs_of(complete, watermark))
    assert decode(watermark, encode(watermark, ahead)) == ahead


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=0, max_size=3000))
def test_the_text_stays_within_its_limit_and_never_claims_too_much(pairs: list[tuple[int, int]]) -> None:
    """However many runs there are, the text is short enough and what it says is true."""
    at, runs = 7, []
    for gap, length in pairs:
        runs.append((at + gap, at + gap + length))
        at += gap + length
    text = encode(7, Ahead(at, tuple(runs)))
    assert len(text.encode()) <= MAX_BYTES
    said = [o for start, end in decode(7, text).complete for o in (start, end - 1)]
    assert all(any(start <= o < end for start, end in runs) for o in said)


def test_alternating_offsets_degrade_to_a_shorter_horizon() -> None:
    """A hundred thousand alternating offsets do not fit: the near ones are kept, over 20,000 of them."""
    runs = tuple((offset, offset + 1) for offset in range(1, 100_000, 2))
    kept = decode(0, encode(0, Ahead(100_000, runs))).complete
    assert kept == runs[: len(kept)]
    assert kept[-1][1] > 20_000


def test_nothing_ahead_is_an_empty_text() -> None:
    """A partition without anything beyond its watermark commits no text."""
    assert encode(5, Ahead(5, ())) == ""
    assert decode(5, "") == Ahead(5, ())


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "1;1;r:AQE=;",
        "2;1;q:AA==;",
        "2;1;r:!!;",
        "2;1;r:gA==;",
        "2;z;r:;",
        ";;;",
        "2;1;r:AQ==;",
        "2;1;r:;a",
        "2;1;r:;a::!",
        "2;1;r:;a:1,2",
        "2;1;r:;a:x",
    ],
)
def test_a_text_that_cannot_be_read_says_nothing(text: str) -> None:
    """Foreign, damaged or newer texts cost a replay, never a loss."""
    assert decode(3, text) == Ahead(3, ())


@given(st.text(max_size=60))
def test_decoding_never_raises(text: str) -> None:
    """Whatever stands in a commit's metadata, it is taken or ignored."""
    decode(0, text)
