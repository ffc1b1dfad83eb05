"""Reading answers out of bytes."""

from __future__ import annotations

import asyncio

import pytest

from site_spider.download.answer import (
    MAX_FRAMING_BYTES,
    MAX_HEAD_BYTES,
    MAX_HEAD_LINES,
    MAX_INTERIM_ANSWERS,
    BodyEnd,
    Chunks,
    HttpAnswer,
    NoAnswer,
    OddAnswer,
    OversizedAnswer,
)
from tests.download.fuzz_answers import Pairs, compare, read

HEAD = b"HTTP/1.1 200 OK\r\n"
OK = HEAD + b"Content-Length: 0\r\n\r\n"


@pytest.mark.parametrize("digit", [b"9", b"0"])
def test_a_length_of_thousands_of_digits_is_none_of_an_answer_to_head(digit: bytes) -> None:
    """Python reads no such number."""
    head = HEAD + b"Content-Length: " + digit * 5_000 + b"\r\n\r\n"
    answer = read(HttpAnswer(to_head=True, takes_odd=True), [head])
    assert (answer.ending, answer.status, answer.headers) == (BodyEnd.WHOLE, 200, [])
    with pytest.raises(OddAnswer):
        HttpAnswer().feed(head)
    with pytest.raises(NoAnswer):
        HttpAnswer(takes_odd=True).feed(head)


@pytest.mark.parametrize(
    "lines",
    [
        *(b"no colon\r\n", b"A: b\n", b"A: b\r\n c\r\n", b"A : b\r\n", b": b\r\n", b"A: \0\r\n", b"A: b\rc\r\n"),
        *(b"Content-Length: 1, 1\r\n", b"Content-Length: +1\r\n", b"Content-Length:\r\n"),
        *(b"Content-Length: 1\r\n" * 2, b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"),
        *(b"Transfer-Encoding: chunked\r\n" * 2, b"Transfer-Encoding: x\r\n", b"Transfer-Encoding : chunked\r\n"),
    ],
)
def test_a_head_that_two_readers_could_read_differently_is_odd(lines: bytes) -> None:
    """Above all where the body ends: nothing of one answer may pass for another one."""
    with pytest.raises(OddAnswer):
        read(HttpAnswer(), [HEAD + lines + b"\r\n"])
    for head in (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 101 X\r\n\r\n"):
        with pytest.raises(OddAnswer):
            read(HttpAnswer(), [head])


@pytest.mark.parametrize("status", [100, 101, 103, 200, 204, 304, 426])
def test_who_offers_another_protocol_has_answered_all_the_same(status: int) -> None:
    """Nobody asked for one: the proper answer is this one, or stands behind it."""
    offer = b"HTTP/1.1 %d X\r\nConnection: upgrade\r\nUpgrade: h2c, websocket\r\n" % status
    final = OK if (is_interim := status < 200) else b""
    length = b"\r\n" if is_interim or status in (204, 304) else b"Content-Length: 0\r\n\r\n"
    answer = read(HttpAnswer(takes_odd=True), [offer + length + final])
    assert (answer.status, answer.ending) == (200 if is_interim else status, BodyEnd.WHOLE)
    assert answer.is_reusable is (status != 101)
    assert not any(name.lower() == b"upgrade" for name, _ in answer.headers)
    if status == 101:
        with pytest.raises(OddAnswer, match="another protocol"):
            read(HttpAnswer(), [offer + length + final])


@pytest.mark.parametrize("data", [b"SSH-2.0-x\r\n\r\n", b"\0" * 64, b"hello\n"])
def test_what_is_not_http_is_no_answer(data: bytes) -> None:
    with pytest.raises(NoAnswer):
        read(HttpAnswer(), [data])


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
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n\r\n", False),
    ],
)
def test_a_connection_is_used_again_only_when_nothing_speaks_against_it(data: bytes, is_reusable: bool) -> None:
    answer = read(HttpAnswer(), [data])
    assert answer.ending is BodyEnd.WHOLE
    assert answer.is_reusable is is_reusable


# --- Reading the chunks of a body out of bytes


CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def outcome(data: bytes, size: int) -> object:
    answer = HttpAnswer()
    try:
        read(answer, (data[start : start + size] for start in range(0, len(data), size)))
    except (OddAnswer, OversizedAnswer, NoAnswer) as error:
        return type(error)
    return answer.status, answer.body, answer.ending


BOUNDS = {
    "the whole head": HEAD + b"X: " + b"x" * (MAX_HEAD_BYTES - len(HEAD) - 7) + b"\r\n\r\n",
    "one byte more": HEAD + b"X: " + b"x" * (MAX_HEAD_BYTES - len(HEAD) - 6) + b"\r\n\r\n",
    "all lines": HEAD + b"X: y\r\n" * (MAX_HEAD_LINES - 2) + b"\r\n",
    "one line more": HEAD + b"X: y\r\n" * (MAX_HEAD_LINES - 1) + b"\r\n",
    "interim answers": b"HTTP/1.1 103 E\r\n\r\n" * MAX_INTERIM_ANSWERS + HEAD + b"\r\n",
    "one interim answer more": b"HTTP/1.1 103 E\r\n\r\n" * (MAX_INTERIM_ANSWERS + 1) + HEAD + b"\r\n",
    "large interim answers": (b"HTTP/1.1 103 E\r\nX: " + b"x" * 9_000 + b"\r\n\r\n") * 8 + HEAD + b"\r\n",
    "an end in LF near the bound": HEAD + b"X: " + b"x" * (MAX_HEAD_BYTES - len(HEAD) - 5) + b"\n\n" + b"x" * 99,
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


@pytest.mark.parametrize("surplus", [b"", b"x", b"\r\n"])
def test_surplus_is_seen_where_a_body_ends_with_a_step(surplus: bytes) -> None:
    data = b"3ff3\r\n" + b"a" * 0x3FF3 + b"\r\n0\r\n\r\n"
    chunks = Chunks()
    assert chunks.feed(data + surplus) == len(data + surplus)
    assert (len(data), chunks.is_whole, len(chunks.body)) == (16_384, True, 0x3FF3)
    assert chunks.has_surplus is bool(surplus)


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_do_not_depend_on_how_the_bytes_come(name: str) -> None:
    data = BOUNDS[name]
    found = {repr(outcome(data, size)) for size in (1, 7, 1_000, 16_384, 65_536, len(data))}
    assert len(found) == 1, found
    if name in REFUSED:
        assert outcome(data, len(data)) is OversizedAnswer


@pytest.mark.parametrize(
    "data",
    [
        *(b"1 \r\nA\r\n", b"1\t\r\nA\r\n", b"1 ;a\r\nA\r\n", b"1;\r\nA\r\n", b"1\nA\r\n", b"1\r\nA\n", b"1\r\nAB"),
        *(b"0\r\nHTTP/1.1 200 OK\r\n\r\n", b"0\r\nX\r\n\r\n", b"0\r\nContent-Length: 3\r\n\r\n", b"0\r\n\n"),
        *(b"0\r\nTransfer-Encoding: chunked\r\n\r\n", b"0\r\nX: a\r\n b\r\n\r\n", b"0\r\nX : a\r\n\r\n"),
        *(b"-1\r\n", b"0x1\r\nA\r\n", b"g\r\n", b"\r\n", b"11111111111111111\r\n", b'1;a="\r\n"\r\nA\r\n'),
    ],
)
def test_what_readers_could_take_differently_is_odd(data: bytes) -> None:
    for size in (1, len(data)):
        assert outcome(CHUNKED + data, size) is OddAnswer


# --- A short run of `python -m tests.download.fuzz_answers`


async def test_three_readers_agree_on_what_ours_takes_however_it_is_cut() -> None:
    for seed in range(150):
        compare(seed)
        if seed % 50 == 0:
            await asyncio.sleep(0)


async def test_no_byte_reaches_another_request_on_the_same_connection() -> None:
    pairs = Pairs()
    for seed in range(90):
        await pairs.exchange(seed)
    pairs.close()
    assert pairs.asked_again > 5
