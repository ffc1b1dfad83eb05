"""Cuts a body to what is kept: text, or on request the bytes of binary content."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Generator
from typing import NamedTuple

LONGEST_CHARACTER_BYTES = 4  # in UTF-8
_SLICE_BYTES = 49_152  # encoded in one call; a multiple of three


class BodyLimits(NamedTuple):
    """The settings SITE_BODY_MAX_BYTES (0: no limit) and SITE_KEEP_BINARY."""

    max_bytes: int = 10_000_000
    keep_binary: bool = False


class KeptBody(NamedTuple):
    """Text, or bytes as base64 text, or neither; `truncated` when it is only the beginning."""

    text: str | None = None
    base64: str | None = None
    truncated: bool = False


def keep_text(text: str, limits: BodyLimits) -> KeptBody:
    """A small text, cut between two characters so that its UTF-8 fits."""
    if not limits.max_bytes or len(text) * LONGEST_CHARACTER_BYTES <= limits.max_bytes:
        return KeptBody(text)  # what nearly every page is, without encoding it
    kept = KeptText(limits, 0)
    kept.add(text)
    return kept.body(is_whole=True)


def keep_binary(body: bytes, limits: BodyLimits) -> Generator[None, None, KeptBody]:
    """The bytes, if they are wanted at all; in steps of less than a millisecond."""
    if not limits.keep_binary or not body:
        return KeptBody()
    size = min(len(body), limits.max_bytes or len(body))
    pieces: list[str] = []
    for begin in range(0, size, _SLICE_BYTES):
        pieces.append(b64encode(body[begin : min(begin + _SLICE_BYTES, size)]).decode("ascii"))
        yield
    return KeptBody(base64="".join(pieces), truncated=size < len(body))


class KeptText:
    """Takes a text piece by piece, until what is kept of it and what is read of it are there."""

    def __init__(self, limits: BodyLimits, read_chars: int) -> None:
        self._max_bytes = limits.max_bytes  # for what is kept; 0: no limit
        self._most_bytes = 0  # that the pieces can have
        self._weighed, self._left_bytes = 0, limits.max_bytes  # pieces, and what they leave
        self._left_chars = read_chars
        self._pieces: list[str] = []
        self._cut: tuple[int, str] | None = None  # the piece that does not fit, and what fits of it

    @property
    def is_enough(self) -> bool:
        """Whether no more pieces are of use."""
        return self._cut is not None and self._left_chars <= 0

    def add(self, piece: str) -> None:
        """The next piece."""
        self._pieces.append(piece)
        self._left_chars -= len(piece)
        self._most_bytes += len(piece) * LONGEST_CHARACTER_BYTES
        if self._max_bytes and self._most_bytes > self._max_bytes:
            self._weigh()

    def _weigh(self) -> None:
        """Encode what was not yet, which few texts are long enough for."""
        for piece in self._pieces[self._weighed :] if self._cut is None else ():
            encoded = piece.encode("utf-8", "replace")
            if len(encoded) > self._left_bytes:
                self._cut = self._weighed, encoded[: self._left_bytes].decode("utf-8", "ignore")
                break
            self._weighed += 1
            self._left_bytes -= len(encoded)

    def body(self, *, is_whole: bool) -> KeptBody:
        """What is kept; `is_whole` when all pieces of the text were added."""
        if self._cut is None:
            return KeptBody("".join(self._pieces), truncated=not is_whole)
        count, rest = self._cut
        return KeptBody("".join([*self._pieces[:count], rest]), truncated=True)

    def read_text(self, kept: str) -> str:
        """The text to be read, which is `kept` if that is as long."""
        if self._cut is None or self._left_chars + sum(map(len, self._pieces[self._cut[0] :])) <= 0:
            return kept
        return "".join(self._pieces)
