"""Variable-length integers: LEB128, as in Protocol Buffers."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator

_MOST_BITS = 63  # as offsets have
LARGEST = 2**_MOST_BITS - 1


def encode(number: int) -> bytes:
    """One number, not negative."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def decode(raw: bytes) -> Iterator[int]:
    """All numbers. Raises ValueError when the last one is cut off, or one has more than 63 bits."""
    number = shift = 0
    for byte in raw:
        number |= (byte & 0x7F) << shift
        shift += 7
        if shift > _MOST_BITS:
            raise ValueError("a number is too large")
        if byte < 0x80:
            yield number
            number = shift = 0
    if shift:
        raise ValueError("a number is cut off")


def ascending_to_text(numbers: Iterable[int], start: int) -> str:
    """Base64 of the steps from `start` to each number; those below `start` are left out."""
    data, at = bytearray(), start
    for number in numbers:
        if number >= start:
            data += encode(number - at)
            at = number
    return base64.b64encode(data).decode()


def ascending_from_text(text: str, start: int) -> Iterator[int]:
    """The inverse of `ascending_to_text`. Raises ValueError for what is none."""
    at = start
    for step in decode(base64.b64decode(text, validate=True)):
        at += step
        yield at
