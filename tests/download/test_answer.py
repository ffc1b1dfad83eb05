"""Reading answers out of bytes."""

from __future__ import annotations

import contextlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.download.answer import BodyEnd, HttpAnswer, NoAnswer, OddAnswer
from site_spider.engine.guard import MAX_HEAD_BYTES, OversizedAnswer

HEAD = b"HTTP/1.1 200 OK\r\n"
ANSWERS = {
    "length": HEAD + b"A: b\r\nContent-Length: 5\r\n\r\nhello",
    "chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nT: u\r\n\r\n",
    "no reason": b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello",
    "reason of its own": b"HTTP/1.1 200 \xff\xfe :(\r\nContent-Length: 5\r\n\r\nhello",
    "hints": b"HTTP/1.1 103 Hints\r\nL: x\r\n\r\n" + HEAD + b"Content-Length: 5\r\n\r\nhello",
}


def read(*pieces: bytes) -> HttpAnswer:
    answer = HttpAnswer()
    for piece in pieces:
        rest = piece
        while rest and answer.ending is None:
            rest = rest[answer.feed(rest) :]
    return answer


@pytest.mark.parametrize("name", ANSWERS)
@given(cuts=st.lists(st.integers(0, 100), max_size=8))
def test_it_does_not_matter_how_the_bytes_come(name: str, cuts: list[int]) -> None:
    """Cut anywhere, the answer is the same."""
    data = ANSWERS[name]
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(places) if a < b]
    answer = read(*pieces)
    assert answer.ending is BodyEnd.WHOLE
    assert (answer.status, answer.body, answer.received) == (200, b"hello", 5)
    assert answer.is_reusable


PIECES = st.sampled_from(
    [
        *(
            b"HTTP/1.1",
            b"HTTP/1.0",
            b" 200 OK",
            b" 101 ",
            b" 204 X",
            b"\r\n",
            b"\n",
            b"\r",
            b"\r\n\r\n",
            b" ",
            b"0",
        ),
        *(
            b"Content-Length: 5",
            b"Content-Length: 5\r\n\r\nhello",
            b"Transfer-Encoding: chunked\r\n\r\n",
            b":",
            b"5;",
        ),
        *(b"hello", b"0\r\n\r\n", b"5\r\nhello\r\n", b"\0", b"\xff", b"Connection: close", b"-"),
    ]
)


@given(st.lists(PIECES | st.binary(max_size=5), max_size=12))
def test_whatever_comes_is_an_answer_or_odd_or_none(pieces: list[bytes]) -> None:
    """No other error, and nothing is read beyond the length that was said."""
    answer = HttpAnswer()
    with contextlib.suppress(OddAnswer, NoAnswer):
        for piece in pieces:
            rest = piece
            while rest and answer.ending is None:
                rest = rest[answer.feed(rest) :]
        answer.ended()
        assert answer.ending is not None
        assert answer.length is None or len(answer.body) <= answer.length
        assert answer.received == len(answer.body)


@pytest.mark.parametrize(
    "lines",
    [
        b"no colon\r\n",
        b"A: b\n",
        b"A: b\r\n c\r\n",
        b"A : b\r\n",
        b": b\r\n",
        b"A: \0\r\n",
        b"A: b\rc\r\n",
        b"Content-Length: 1\r\nContent-Length: 1\r\n",
        b"Content-Length: 1, 1\r\n",
        b"Content-Length: +1\r\n",
        b"Content-Length:\r\n",
        b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: x\r\n",
        b"Transfer-Encoding : chunked\r\n",
    ],
)
def test_a_head_that_two_readers_could_read_differently_is_odd(lines: bytes) -> None:
    """Above all where the body ends: nothing of one answer may pass for another one."""
    with pytest.raises(OddAnswer):
        read(HEAD + lines + b"\r\n")


def test_chunks_do_not_come_in_an_answer_of_http_1_0() -> None:
    """Readers differ on that."""
    with pytest.raises(OddAnswer):
        read(b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")


def test_a_head_without_an_end_is_not_waited_for() -> None:
    """Memory is bounded."""
    with pytest.raises(OversizedAnswer):
        read(*[HEAD + b"x" * 1_000] * (MAX_HEAD_BYTES // 1_000 + 2))


@pytest.mark.parametrize("data", [b"SSH-2.0-x\r\n\r\n", b"\0" * 64, b"hello\n"])
def test_what_is_not_http_is_no_answer(data: bytes) -> None:
    """It would be none to any other reader."""
    with pytest.raises(NoAnswer):
        read(data)


@pytest.mark.parametrize(
    ("data", "ending", "body"),
    [
        (HEAD + b"\r\nhel", BodyEnd.UNSURE, b"hel"),
        (HEAD + b"Content-Length: 5\r\n\r\nhel", BodyEnd.CUT, b"hel"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n", BodyEnd.CUT, b"hel"),
    ],
)
def test_a_body_that_the_connection_ends_is_marked(data: bytes, ending: BodyEnd, body: bytes) -> None:
    """It may be cut, or is."""
    answer = read(data)
    answer.ended()
    assert (answer.ending, answer.body, answer.is_reusable) == (ending, body, False)


@pytest.mark.parametrize(
    ("data", "is_reusable"),
    [
        (HEAD + b"Content-Length: 0\r\n\r\n", True),
        (HEAD + b"Content-Length: 0\r\n\r\nx", False),
        (HEAD + b"Content-Length: 1\r\n\r\nxy", False),
        (HEAD + b"Content-Length: 0\r\nConnection: Close\r\n\r\n", False),
        (HEAD + b"Content-Length: 0\r\nConnection: x, close\r\n\r\n", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nx", False),
    ],
)
def test_a_connection_is_used_again_only_when_nothing_speaks_against_it(
    data: bytes, is_reusable: bool
) -> None:
    """What is left over would be taken for the next answer."""
    answer = read(data)
    assert answer.ending is BodyEnd.WHOLE
    assert answer.is_reusable is is_reusable
