"""The text that travels with a commit."""

from __future__ import annotations

import base64
import zlib
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.ledger.metadata import MAX_BYTES, Ahead, decode, encode
from tests.growth import assert_grows

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


def checked(watermark: int, text: str) -> str:
    """With the check that a process would have made."""
    return f"{text};{zlib.crc32(f'{watermark};{text}'.encode()):08x}"


HUGE = base64.b64encode(b"\xff" * 2_000 + b"\x01").decode()  # a number of 14,000 bits
LARGE = base64.b64encode((b"\xff" * 8 + b"\x7f") * 4).decode()  # four of 63


@pytest.mark.parametrize(
    "text",
    [
        "x",
        f"3;1;r:{HUGE};",
        f"3;1;r:{LARGE};",
        f"3;1;r:;a:1,0,0,,{HUGE}:",
        f"3;1;r:;a:::{HUGE}",
        f"3;1;r:;a::{LARGE}",
        f"3;{'9' * 3_000};r:;",
        f"3;{'9' * 19};r:;",
        f"3;1;r:;a:{'9' * 30},0,0,,:",
        f"3;1;r:;a:0,{'9' * 30},1,,:",
        "3;1;r:;a:-1,0,0,,:",
        "3;1;r:" + "A" * 100_000 + ";",
        "3;1;r:AQE=;\x1b[31m",
        "2;1;r:AQE=;",
        "3;1;q:AA==;",
        "3;1;r:!!;",
        "3;1;r:gA==;",
        "3;z;r:;",
        ";;;",
        "3;1;r:AQ==;",
        "3;1;r:;a",
        "3;1;r:;a::!",
        "3;1;r:;a:1,2",
        "3;1;r:;a:x",
    ],
)
def test_a_text_that_cannot_be_read_says_nothing(text: str) -> None:
    """Foreign, damaged, forged or newer texts cost a replay, never a loss."""
    assert decode(3, checked(3, text)) == Ahead(3, ())
    assert decode(3, text) == Ahead(3, ())


@given(st.integers(0, 10**6), st.integers(0, 200), st.integers(1, 127))
def test_one_wrong_character_makes_a_text_say_nothing(watermark: int, place: int, change: int) -> None:
    """Else seeds would be skipped that nobody did. So does an offset that somebody else committed."""
    text = encode(watermark, Ahead(watermark + 50, ((watermark + 5, watermark + 40),), "owner"))
    damaged = list(text)
    damaged[place % len(text)] = chr(ord(damaged[place % len(text)]) ^ change)
    assert decode(watermark, "".join(damaged)) == Ahead(watermark, ())
    assert decode(watermark + 1, text) == Ahead(watermark + 1, ())


def test_forged_names_are_bounded_when_they_are_written_again() -> None:
    """A thousand suspects of one text leave room for the runs of the next."""
    steps = base64.b64encode(b"\x01" * 1_000).decode()
    said = decode(0, checked(0, f"3;2000;r:;a:2000,0,0,{steps},{steps}:"))
    assert len(said.suspicion.twice) == len(said.suspicion.thrice) == 64
    assert len(encode(0, said)) < 400


@pytest.mark.parametrize("run", ["b:VVVV", "r:AQEB", "b:////"])
def test_reading_a_text_costs_no_more_than_its_length(run: str) -> None:
    """Every second offset, as a bitmap; as many runs as fit; and all offsets."""
    texts = {n: checked(0, f"3;1;{run[:2]}{run[2:] * n};") for n in (237, 948)}
    assert len(decode(0, texts[948]).complete) > 0
    assert_grows(lambda n: partial(decode, 0, texts[n]), 237)


def test_writing_a_text_costs_no_more_than_its_runs() -> None:
    """Every second offset, as many as a bitmap has room for."""
    runs = {n: tuple((offset, offset + 1) for offset in range(1, 2 * n, 2)) for n in (2_500, 10_000)}
    assert decode(0, encode(0, Ahead(20_000, runs[10_000]))).complete == runs[10_000]
    assert_grows(lambda n: partial(encode, 0, Ahead(20_000, runs[n])), 2_500)


@given(st.text(max_size=60))
def test_decoding_never_raises(text: str) -> None:
    """Whatever stands in a commit's metadata, it is taken or ignored."""
    decode(0, text)
