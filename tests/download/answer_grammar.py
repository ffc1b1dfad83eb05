"""Generates HTTP answers, well-formed and nearly so, out of a random number generator."""

from __future__ import annotations

from random import Random

MARK = b"evil"  # in whatever no answer may end up with

_STATUS = (b"HTTP/1.1 200 OK", b"HTTP/1.1 404 Not Found", b"HTTP/1.1 200", b"HTTP/1.1 200 ", b"HTTP/1.1 204 No Content")
_RARE_STATUS = (
    *(b"HTTP/1.1 304 Not Modified", b"HTTP/1.0 200 OK", b"HTTP/1.1 201 \xff", b"HTTP/1.1 999 X", b"HTTP/1.1 20 OK"),
    *(b"HTTP/1.1 2000 OK", b"HTTP/2.0 200 OK", b"http/1.1 200 OK", b"HTTP/1.1  200 OK", b" HTTP/1.1 200 OK"),
    *(b"HTTP/1.1 101 Switching Protocols", b"HTTP/1.1 099 X", b"HTTP/1.1 200\tOK", b"HTTP/1.2 200 OK", b"HTTP 200 OK"),
)
_LINES = (
    *(b"Content-Type: text/html", b"Set-Cookie: a=b", b"X: y", b"X:y", b"Vary:  a, b \t", b"Empty:", b"Y: \xe9"),
    *(b"Connection: keep-alive", b"Connection: close", b"Keep-Alive: timeout=5", b"Date: now"),
)
_RARE_LINES = (
    *(b"no colon", b"X : y", b" X: y", b"X: a\r\n b", b"X: a\r\n\tb", b": y", b"X: a\0b", b"X: a\rb", b"X: a\nY: b"),
    *(b"X Y: z", b"\xff: y", b"X: \x01", b"Transfer-Encoding: x", b"Transfer-Encoding: identity", b"\r"),
    *(b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked", b"Transfer-Encoding : chunked"),
    *(b"Content-Length: 3", b"Content-Length : 3", b"Content-Length: +3", b"Content-Length: 3, 3", b"Content-Length:"),
    *(b"Content-Length: 0x3", b"Content-Length: -1", b"Content-Length: 03", b"Content-Length: 99999999999999999999"),
    *(b"Upgrade: x\r\nConnection: upgrade", b"Trailer: X", b"TE: trailers", b"Transfer-Encoding: Chunked"),
)
_ENDS = (b"\n", b"\r\r\n", b"\r", b"\r\n ", b"\n\r")
_SIZES = (b" ", b"\t", b";", b";a", b";a=b", b';a="b"', b';a="b\r\n"', b" ;a", b";a b", b";\xff", b";a=b;c", b"\r")
_TRAILERS = (
    *(b"X: y", b"HTTP/1.1 200 OK", b"no colon", b"Content-Length: 3", b"Transfer-Encoding: chunked", b"X : y"),
    *(b"Connection: keep-alive", b"X: a\r\n b", b"X: a\nb", b": y"),
)


def generated(random: Random, body: bytes) -> bytes:
    """One answer with this body, perhaps behind interim ones, perhaps spoilt."""
    answer = b"".join(_interim(random) for _ in range(random.choice((0, 0, 0, 0, 1, 2)))) + _answer(random, body)
    for _ in range(random.choice((0, 0, 0, 1, 2))):
        answer = _spoilt(random, answer)
    return answer


def _interim(random: Random) -> bytes:
    lines = [random.choice((b"HTTP/1.1 100 Continue", b"HTTP/1.1 103 Early Hints"))]
    lines += [_line(random) for _ in range(random.choice((0, 0, 1)))]
    return _head(random, lines)


def _answer(random: Random, body: bytes) -> bytes:
    lines = [_of(random, _STATUS, _RARE_STATUS), *(_line(random) for _ in range(random.randrange(4)))]
    kind = random.choice(("length", "length", "chunks", "chunks", "end", "wrong length"))
    if kind == "chunks":
        body = _chunks(random, body)
        lines.append(b"Transfer-Encoding: chunked")
    elif kind != "end":
        size = len(body) + (random.choice((-2, -1, 1, 2)) if kind == "wrong length" else 0)
        lines.append(b"Content-Length: %d" % max(0, size))
    return _head(random, lines) + body


def _line(random: Random) -> bytes:
    return _of(random, _LINES, _RARE_LINES)


def _of(random: Random, usual: tuple[bytes, ...], rare: tuple[bytes, ...]) -> bytes:
    return random.choice(rare if random.random() < 0.1 else usual)


def _head(random: Random, lines: list[bytes]) -> bytes:
    return b"".join(line + _end(random) for line in [*lines, b""])


def _end(random: Random) -> bytes:
    return random.choice(_ENDS) if random.random() < 0.02 else b"\r\n"


def _chunks(random: Random, body: bytes) -> bytes:
    parts = []
    while body:
        size = random.randint(1, len(body))
        parts.append(_size(random, size) + body[:size] + _end(random))
        body = body[size:]
    trailers = [random.choice(_TRAILERS) for _ in range(random.choice((0, 0, 0, 1, 2)))]
    return b"".join(parts) + _size(random, 0) + b"".join(t + _end(random) for t in [*trailers, b""])


def _size(random: Random, size: int) -> bytes:
    digits = random.choice((b"%x", b"%X", b"0%x", b"%08x")) % size
    return digits + (random.choice(_SIZES) if random.random() < 0.1 else b"") + _end(random)


def _spoilt(random: Random, data: bytes) -> bytes:
    place = random.randrange(len(data) + 1)
    new = random.choice((b"\r", b"\n", b" ", b"\0", b":", b";", b"0", b"\r\n", b"\r\n\r\n", b"\xff", b"-"))
    return random.choice(
        (
            data[:place] + new + data[place:],
            data[:place] + new + data[place + 1 :],
            data[:place] + data[place + 1 :],
            data[:place] + data[place : place + 9] + data[place:],
            data[:place],
        )
    )
