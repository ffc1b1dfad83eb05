"""Reads a file of seeds line by line, however long the file or a line of it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from site_spider.seed.fields import MAX_MESSAGE_BYTES
from site_spider.text import refused

_BLANKS = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Line(NamedTuple):
    """A line with something on it; `size_bytes` is what was read since the last one."""

    number: int
    raw: bytes | None  # None: longer than any seed may be
    size_bytes: int

    def text(self) -> str:
        """Raises SeedError when it is too long or not UTF-8."""
        if self.raw is None:
            raise refused("line", f"longer than {MAX_MESSAGE_BYTES} bytes")
        try:
            return self.raw.decode()
        except UnicodeDecodeError as error:
            raise refused("line", f"not UTF-8 at byte {error.start + 1}") from None


def seed_lines(stream: BinaryIO) -> Iterator[Line]:
    """The lines that are neither blank nor a comment (#). Raises OSError when reading fails."""
    number = unread = 0
    while raw := stream.readline(MAX_MESSAGE_BYTES + 1):
        number += 1
        unread += len(raw)
        is_whole = len(raw) <= MAX_MESSAGE_BYTES or raw.endswith(b"\n")
        if not is_whole:
            unread += _skip_line(stream)
        text = (raw.removeprefix(_BYTE_ORDER_MARK) if number == 1 else raw).strip(_BLANKS)
        if text and not text.startswith(b"#"):
            yield Line(number, text if is_whole else None, unread)
            unread = 0


def _skip_line(stream: BinaryIO) -> int:
    """Read up to the end of the line; returns how many bytes that were."""
    skipped = 0
    while chunk := stream.readline(MAX_MESSAGE_BYTES):
        skipped += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return skipped
