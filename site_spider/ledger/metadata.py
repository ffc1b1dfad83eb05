"""The metadata of a commit: which offsets beyond the watermark are complete.

Theory: the watermark of a partition is the first incomplete offset, so one slow seed
holds it back while thousands behind it complete. The commit's metadata string carries
those as runs, and the next owner skips them. Kafka refuses strings of 4,096 bytes and
more, so the text stays within MAX_BYTES: what does not fit is left out from the far
end, which costs a repeat and never a loss.

Text: `3;POSITION;FORM:DATA;STATE;CHECK`. POSITION is the next offset not yet handed out, relative to
the watermark. FORM `r`: base64 of varints, alternately the length of an incomplete run
and of a complete one, from the watermark on. FORM `b`: base64 of a bitmap, bit i of byte j
(least significant first) says whether watermark + 8j + i is complete. The shorter of
the two that reaches as far is used. STATE is empty when the partition was left in good order
and nothing is under suspicion; else it is the owner's token while one is alive, or `-`, the
numbers of ledger.suspicion, and the admitted offsets (ledger.varints), with colons between. CHECK is
the CRC-32 of the watermark and of all before it. A text of another version, a damaged one, and one that
was committed at another offset count as empty: what it says would have seeds skipped that nobody did.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from site_spider.ledger import suspicion, varints
from site_spider.ledger.suspicion import NO_SUSPICION, Suspicion

Run = tuple[int, int]  # first offset, and the one after the last

MAX_BYTES = 3_900  # of the text; 4,000 pass at the broker, 4,096 do not
_NUMBERS_BYTES = 40  # of it, for the version, the position and what is between the parts
_VERSION = "3"
_ONES = re.compile("1+")


class Ahead(NamedTuple):
    """What lies beyond a watermark: the next offset to be handed out, and the complete runs.

    `owner` is the token of the process that owns the partition, and empty when it was left in
    good order: found by another process, it tells of a death. `suspicion` is about what was under
    way at earlier ones, `admitted` names what is now, of the seeds that care is taken with.
    """

    position: int
    complete: tuple[Run, ...]
    owner: str = ""
    suspicion: Suspicion = NO_SUSPICION
    admitted: tuple[int, ...] = ()


def encode(watermark: int, ahead: Ahead) -> str:
    """The text for a commit at `watermark`; empty when nothing lies beyond it.

    `ahead.complete` must be ascending, disjoint runs of offsets above the watermark.
    """
    state = _state(watermark, ahead)
    if ahead.position <= watermark and not ahead.complete and not state:
        return ""
    room_bytes = (MAX_BYTES - _NUMBERS_BYTES - len(state)) * 3 // 4  # before base64
    form = _shorter(watermark, ahead.complete, room_bytes)
    text = f"{_VERSION};{max(0, ahead.position - watermark)};{form};{state}"
    return f"{text};{_check(watermark, text)}"


def decode(watermark: int, text: str) -> Ahead:
    """The inverse of `encode`; a text that cannot be read says that nothing is complete."""
    said, _, check = text[: MAX_BYTES + 1].rpartition(";")
    try:
        if check != _check(watermark, said):
            return Ahead(watermark, ())
        return _read(watermark, said)
    except (ValueError, binascii.Error):
        return Ahead(watermark, ())


def _check(watermark: int, text: str) -> str:
    return f"{zlib.crc32(f'{watermark};{text}'.encode('utf-8', 'replace')):08x}"


def _read(watermark: int, text: str) -> Ahead:
    version, position, form, state = text.split(";")
    kind, data = form.split(":")
    raw = base64.b64decode(data, validate=True)
    if version != _VERSION or kind not in ("r", "b"):
        raise ValueError(f"not a text of version {_VERSION}")
    runs = _runs_of_varints(watermark, raw) if kind == "r" else _runs_of_bitmap(watermark, raw)
    ahead = Ahead(watermark + max(0, int(position)), tuple(runs), *_read_state(watermark, state))
    if (
        max([ahead.position, *(end for _, end in ahead.complete[-1:]), *ahead.admitted[-1:]])
        > varints.LARGEST
    ):
        raise ValueError("an offset is too large")
    return ahead


def _state(watermark: int, ahead: Ahead) -> str:
    numbers = suspicion.encode(ahead.suspicion, watermark)
    if not ahead.owner and not numbers:
        return ""
    return f"{ahead.owner or '-'}:{numbers}:{varints.ascending_to_text(ahead.admitted, watermark)}"


def _read_state(watermark: int, state: str) -> tuple[str, Suspicion, tuple[int, ...]]:
    if not state:
        return "", NO_SUSPICION, ()
    owner, numbers, admitted = state.split(":")
    return (
        "" if owner == "-" else owner,
        suspicion.decode(numbers, watermark),
        tuple(varints.ascending_from_text(admitted, watermark)),
    )


def _shorter(watermark: int, runs: Sequence[Run], room_bytes: int) -> str:
    data, reach = _runs_to_bytes(watermark, runs, room_bytes)
    last = runs[-1][1] if runs else watermark
    bitmap_bytes = min((last - watermark + 7) // 8, room_bytes)
    bitmap_reach = min(last, watermark + 8 * bitmap_bytes)
    if bitmap_reach > reach or (bitmap_reach == reach and bitmap_bytes < len(data)):
        bitmap = _bitmap(watermark, runs, bitmap_bytes)
        return "b:" + base64.b64encode(bitmap).decode()
    return "r:" + base64.b64encode(data).decode()


def _runs_to_bytes(watermark: int, runs: Iterable[Run], room_bytes: int) -> tuple[bytes, int]:
    """Varints of as many runs as fit, and the offset they reach to."""
    data = bytearray()
    at = watermark
    for start, end in runs:
        pair = varints.encode(start - at) + varints.encode(end - start)
        if len(data) + len(pair) > room_bytes:
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


def _runs_of_varints(watermark: int, raw: bytes) -> Iterator[Run]:
    at = watermark
    numbers = list(varints.decode(raw))
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        start = at + gap
        at = start + length
        if length:
            yield start, at


def _runs_of_bitmap(watermark: int, raw: bytes) -> Iterator[Run]:
    digits = f"{int.from_bytes(raw, 'little'):b}"[::-1]
    for ones in _ONES.finditer(digits):
        yield watermark + ones.start(), watermark + ones.end()
