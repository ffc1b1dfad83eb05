"""Reading the chunks of a body out of bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.download.answer import Chunks, HttpAnswer, NoAnswer, OddAnswer
from site_spider.engine.guard import (
    MAX_FRAMING_BYTES,
    MAX_HEAD_BYTES,
    MAX_HEAD_LINES,
    MAX_INTERIM_ANSWERS,
    OversizedAnswer,
)

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


def outcome(data: bytes, size: int) -> object:
    """What comes of an answer that arrives in pieces of this size."""
    answer = HttpAnswer()
    try:
        for start in range(0, len(data), size):
            rest = data[start : start + size]
            while rest and answer.ending is None:
                rest = rest[answer.feed(rest) :]
    except (OddAnswer, OversizedAnswer, NoAnswer) as error:
        return type(error)
    return answer.status, answer.body, answer.ending


BOUNDS = {
    "the whole head": OK + b"X: " + b"x" * (MAX_HEAD_BYTES - len(OK) - 7) + b"\r\n\r\n",
    "one byte more": OK + b"X: " + b"x" * (MAX_HEAD_BYTES - len(OK) - 6) + b"\r\n\r\n",
    "all lines": OK + b"X: y\r\n" * (MAX_HEAD_LINES - 2) + b"\r\n",
    "one line more": OK + b"X: y\r\n" * (MAX_HEAD_LINES - 1) + b"\r\n",
    "interim answers": b"HTTP/1.1 103 E\r\n\r\n" * MAX_INTERIM_ANSWERS + OK + b"\r\n",
    "one interim answer more": b"HTTP/1.1 103 E\r\n\r\n" * (MAX_INTERIM_ANSWERS + 1) + OK + b"\r\n",
    "large interim answers": (b"HTTP/1.1 103 E\r\nX: " + b"x" * 9_000 + b"\r\n\r\n") * 8 + OK + b"\r\n",
    "an end in LF near the bound": OK + b"X: " + b"x" * (MAX_HEAD_BYTES - len(OK) - 5) + b"\n\n" + b"x" * 99,
    "no slash in 64 bytes": b"x" * 63 + b"y" + b"/1.1 200 OK\r\n\r\n",
    "a late slash": b"x" * 63 + b"/1.1 200 OK\r\n\r\n",
    "chunks of a byte": CHUNKED + b"1\r\nA\r\n" * 9_000 + b"0\r\n\r\n",
    "too many chunks of a byte": CHUNKED + b"1\r\nA\r\n" * 20_000 + b"0\r\n\r\n",
    "a line of 15,000 bytes": CHUNKED + b"1;" + b"x" * 15_000 + b"\r\nA\r\n0\r\n\r\n",
    "a line of 17,000 bytes": CHUNKED + b"1;" + b"x" * 17_000 + b"\r\nA\r\n0\r\n\r\n",
    "a line of 1,025 bytes": CHUNKED + b"1;" + b"x" * 1_021 + b"\r\nA\r\n0\r\n\r\n",
    "trailers": CHUNKED + b"1\r\nA\r\n0\r\n" + b"X: y\r\n" * 2_000 + b"\r\n",
    "too many trailers": CHUNKED + b"1\r\nA\r\n0\r\n" + b"X: y\r\n" * 9_000 + b"\r\n",
    "content after much framing": CHUNKED
    + (b"1;" + b"x" * 9_000 + b"\r\nA\r\n") * 9
    + b"%x\r\n%s\r\n0\r\n\r\n" % (2 * MAX_FRAMING_BYTES, b"x" * 2 * MAX_FRAMING_BYTES),
}
REFUSED = {name for name in BOUNDS if "more" in name or "too many" in name} | {
    *("large interim answers", "a line of 17,000 bytes", "content after much framing")
}


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_do_not_depend_on_how_the_bytes_come(name: str) -> None:
    data = BOUNDS[name]
    found = {repr(outcome(data, size)) for size in (1, 7, 1_000, 16_384, 65_536, len(data))}
    assert len(found) == 1, found
    if name in REFUSED:
        assert outcome(data, len(data)) is OversizedAnswer


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=20), st.binary(max_size=5), st.integers(1, 30))
def test_content_is_what_was_sent_and_surplus_is_seen(parts: list[bytes], surplus: bytes, size: int) -> None:
    data = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    chunks = Chunks()
    for start in range(0, len(data), size):
        piece = data[start : start + size]
        is_last = start + size >= len(data)
        assert chunks.feed(piece + surplus if is_last else piece) >= len(piece)
    assert chunks.is_whole
    assert bytes(chunks.body) == b"".join(parts)
    assert chunks.has_surplus is bool(surplus)


def test_what_follows_is_never_content_of_this_body() -> None:
    """Not even where a trailer says that the connection goes on."""
    for trailer in (b"", b"Connection: keep-alive\r\n", b"Connection: upgrade\r\nUpgrade: x\r\n"):
        chunks = Chunks()
        chunks.feed(b"1\r\nA\r\n0\r\n" + trailer + b"\r\n" + OK + b"Content-Length: 4\r\n\r\nevil")
        assert (bytes(chunks.body), chunks.is_whole, chunks.has_surplus) == (b"A", True, True)


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"1 \r\nA\r\n",
            b"1\t\r\nA\r\n",
            b"1 ;a\r\nA\r\n",
            b"1;\r\nA\r\n",
            b"1\nA\r\n",
            b"1\r\nA\n",
            b"1\r\nAB",
        ),
        *(b"0\r\nHTTP/1.1 200 OK\r\n\r\n", b"0\r\nX\r\n\r\n", b"0\r\nContent-Length: 3\r\n\r\n", b"0\r\n\n"),
        *(b"0\r\nTransfer-Encoding: chunked\r\n\r\n", b"0\r\nX: a\r\n b\r\n\r\n", b"0\r\nX : a\r\n\r\n"),
        *(b"-1\r\n", b"0x1\r\nA\r\n", b"g\r\n", b"\r\n", b"11111111111111111\r\n", b'1;a="\r\n"\r\nA\r\n'),
    ],
)
def test_what_readers_could_take_differently_is_odd(data: bytes) -> None:
    for size in (1, len(data)):
        assert outcome(CHUNKED + data, size) is OddAnswer
