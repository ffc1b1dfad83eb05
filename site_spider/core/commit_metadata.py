"""What a commit says beyond its offset: which later offsets are complete already.

Theory: the watermark of a partition is the first incomplete offset, so one slow seed
holds it back while thousands behind it complete. The commit's metadata string carries
those as runs, and the next owner skips them. Kafka refuses strings of 4,096 bytes and
more, so the text stays within MAX_BYTES: what does not fit is left out from the far
end, which costs a replay and never a loss.

Text: `1;POSITION;FORM:DATA;STATE`. POSITION is the next offset not yet handed out, relative to
the watermark. FORM `r`: base64 of varints, alternately the length of an incomplete run
and of a complete one, from the watermark on. FORM `b`: base64 of a bitmap, bit i of byte j
(least significant first) says whether watermark + 8j + i is complete. The shorter of
the two that reaches as far is used. STATE is empty when the partition was left in good order
and nothing is under suspicion; else it is the owner's token while one is alive, or `-`, then a
colon and the numbers of core.suspicion. A text of another version or a damaged one counts as empty.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from site_spider.core import suspicion
from site_spider.core.suspicion import NO_SUSPICION, Suspicion

Run = tuple[int, int]  # first offset, and the one after the last

MAX_BYTES = 3_900  # of the text; 4,000 pass at the broker, 4,096 do not
_DATA_BYTES = (MAX_BYTES - 160) * 3 // 4  # before base64; 160 are for the version and the numbers
_VERSION = "1"


class Ahead(NamedTuple):
    """What lies beyond a watermark: the next offset to be handed out, and the complete runs.

    `owner` is the token of the process that owns the partition, and empty when it was left in
    good order: found by another process, it tells of a death. `suspicion` is about what was in
    flight at earlier ones.
    """

    position: int
    complete: tuple[Run, ...]
    owner: str = ""
    suspicion: Suspicion = NO_SUSPICION


def encode(watermark: int, ahead: Ahead) -> str:
    """The text for a commit at `watermark`; empty when nothing lies beyond it.

    `ahead.complete` must be ascending, disjoint runs of offsets above the watermark.
    """
    numbers = suspicion.encode(ahead.suspicion, watermark)
    if ahead.position <= watermark and not ahead.complete and not ahead.owner and not numbers:
        return ""
    form = _shorter(_runs_to_bytes(watermark, ahead.complete), watermark, ahead.complete)
    state = f"{ahead.owner or '-'}:{numbers}" if ahead.owner or numbers else ""
    return f"{_VERSION};{max(0, ahead.position - watermark)};{form};{state}"


def decode(watermark: int, text: str) -> Ahead:
    """The inverse of `encode`; a text that cannot be read says that nothing is complete."""
    try:
        version, position, form, state = text.split(";")
        kind, data = form.split(":")
        raw = base64.b64decode(data, validate=True)
        if version != _VERSION or kind not in ("r", "b"):
            return Ahead(watermark, ())
        complete = _runs_of_varints(watermark, raw) if kind == "r" else _runs_of_bitmap(watermark, raw)
        owner, _, numbers = state.partition(":")
        suspected = suspicion.decode(numbers, watermark)
        owner = "" if owner == "-" else owner
        return Ahead(watermark + max(0, int(position)), tuple(complete), owner, suspected)
    except (ValueError, binascii.Error):
        return Ahead(watermark, ())


def _shorter(varints: tuple[bytes, int], watermark: int, runs: Sequence[Run]) -> str:
    data, reach = varints
    last = runs[-1][1] if runs else watermark
    bitmap_bytes = min((last - watermark + 7) // 8, _DATA_BYTES)
    bitmap_reach = min(last, watermark + 8 * bitmap_bytes)
    if bitmap_reach > reach or (bitmap_reach == reach and bitmap_bytes < len(data)):
        bitmap = _bitmap(watermark, runs, bitmap_bytes)
        return "b:" + base64.b64encode(bitmap).decode()
    return "r:" + base64.b64encode(data).decode()


def _runs_to_bytes(watermark: int, runs: Iterable[Run]) -> tuple[bytes, int]:
    """Varints of as many runs as fit, and the offset they reach to."""
    data = bytearray()
    at = watermark
    for start, end in runs:
        pair = _varint(start - at) + _varint(end - start)
        if len(data) + len(pair) > _DATA_BYTES:
            break
        data += pair
        at = end
    return bytes(data), at


def _bitmap(watermark: int, runs: Iterable[Run], size_bytes: int) -> bytes:
    bits = 0
    limit = watermark + 8 * size_bytes
    for start, end in runs:
        if start >= limit:
            break
        bits |= ((1 << (min(end, limit) - start)) - 1) << (start - watermark)
    return bits.to_bytes(size_bytes, "little")


def _varint(number: int) -> bytes:
    """LEB128, as in Protocol Buffers."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _numbers(raw: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in raw:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield number
            number = shift = 0
    if shift:
        raise ValueError("a number is cut off")


def _runs_of_varints(watermark: int, raw: bytes) -> Iterator[Run]:
    at = watermark
    numbers = list(_numbers(raw))
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        start = at + gap
        at = start + length
        if length:
            yield start, at


def _runs_of_bitmap(watermark: int, raw: bytes) -> Iterator[Run]:
    bits = int.from_bytes(raw, "little")
    at = watermark
    while bits:
        zeros = (bits & -bits).bit_length() - 1
        bits >>= zeros
        ones = (~bits & (bits + 1)).bit_length() - 1
        bits >>= ones
        yield at + zeros, at + zeros + ones
        at += zeros + ones
