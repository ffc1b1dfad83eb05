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
numbers of a Suspicion, and the admitted offsets (varints), with colons between. CHECK is
the CRC-32 of the watermark and of all before it. A text of another version, a damaged one, and one that
was committed at another offset count as empty: what it says would have seeds skipped that nobody did.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from site_spider.contracts.seed_log import Position

# --- varints ---------------------------------------------------------------------------------------------
# Variable-length integers: LEB128, as in Protocol Buffers.

_MOST_BITS = 63  # as offsets have
LARGEST = 2**_MOST_BITS - 1
_BYTES = [bytes([number]) for number in range(0x80)]


def encode_varints(number: int) -> bytes:
    """One number, not negative."""
    if number <= 0x7F:  # as most, and a commit has thousands
        return _BYTES[number]
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def decode_varints(raw: bytes) -> Iterator[int]:
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
            data += encode_varints(number - at)
            at = number
    return base64.b64encode(data).decode()


def ascending_from_text(text: str, start: int) -> Iterator[int]:
    """The inverse of `ascending_to_text`. Raises ValueError for what is none."""
    at = start
    for step in decode_varints(base64.b64decode(text, validate=True)):
        at += step
        yield at


# --- suspicion -------------------------------------------------------------------------------------------
# Which seeds may have killed their process, and in how many deaths each took part.
#
# Theory. A process that dies leaves commits that say "alive"; the next owner of the partition then knows of
# a death. It counts one for every seed below the committed position that is not complete: that much may
# have been under way. From then on care is taken with these (`is_careful`): few of them are admitted at a
# time, and which ones is committed before they begin, so a further death counts for those that were
# admitted and for no other.
#
# A seed at DEATHS_TO_ISOLATE is a suspect. Suspects are done one by one, with nothing else under way in the
# process; which one is alone is committed before it begins, and that it has ended before anything else
# begins. A seed that was alone at DEATHS_ALONE deaths is the culprit. More than one, because an operator's
# kill -9 can hit any seed; twice the same one alone hardly ever.

DEATHS_TO_ISOLATE = 3
DEATHS_ALONE = 2

# The position that was committed last may be older than what was begun at the death.
CAREFUL_OFFSETS = 2_000
_MOST_NAMED = 64  # seeds of two deaths, and of three: what is named has to fit into a commit


class Suspicion(NamedTuple):
    """What is known of one partition. Offsets are absolute, and those in tuples ascend.

    `alone` is the offset of the seed that was last done alone and has not ended (-1: none), and
    `alone_deaths` how many deaths it was alone at. It is alone now if it is among the admitted.
    """

    below: int = 0  # what is incomplete below it took part in a death; 0: nothing did
    twice: tuple[int, ...] = ()  # took part in two
    thrice: tuple[int, ...] = ()  # in DEATHS_TO_ISOLATE or more
    alone: int = -1
    alone_deaths: int = 0

    def after_death(self, position: int, admitted: Collection[int]) -> Suspicion:
        """One more death: of those that care is taken with, the `admitted` were under way."""
        if self.alone in admitted:
            # nothing else was under way in the process: this one alone took part
            return self._replace(alone_deaths=self.alone_deaths + 1)
        known = {*self.twice, *self.thrice}
        twice = {*self.twice, *(offset for offset in admitted if offset < self.below)}
        thrice = {*self.thrice, *known.intersection(admitted)}
        return self._replace(below=max(self.below, position), twice=_lowest(twice - thrice), thrice=_lowest(thrice))

    def deaths(self, offset: int) -> int:
        """How many deaths an incomplete seed has taken part in, at most DEATHS_TO_ISOLATE."""
        if offset in self.thrice:
            return DEATHS_TO_ISOLATE
        return 2 if offset in self.twice else int(offset < self.below)

    def is_careful(self, offset: int) -> bool:
        """Whether a seed is to be admitted, and committed, before it begins."""
        return self.below > 0 and offset < self.below + CAREFUL_OFFSETS

    def is_suspect(self, offset: int) -> bool:
        """Whether a seed has to be done alone."""
        return offset in self.thrice

    def is_culprit(self, offset: int) -> bool:
        """Whether a seed is to be set aside."""
        return offset == self.alone and self.alone_deaths >= DEATHS_ALONE

    def isolating(self, offset: int) -> Suspicion:
        """A suspect is about to be done alone."""
        return self if offset == self.alone else self._replace(alone=offset, alone_deaths=0)

    def without(self, offsets: Collection[int]) -> Suspicion:
        """These have ended."""
        alone = (-1, 0) if self.alone in offsets else (self.alone, self.alone_deaths)
        twice = tuple(offset for offset in self.twice if offset not in offsets)
        thrice = tuple(offset for offset in self.thrice if offset not in offsets)
        return Suspicion(self.below, twice, thrice, *alone)

    def is_empty(self, watermark: int) -> bool:
        """Whether nothing incomplete is under suspicion."""
        return max(self.below - 1, self.alone, *self.twice, *self.thrice) < watermark


NO_SUSPICION = Suspicion()


def _lowest(offsets: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(offsets)[:_MOST_NAMED])


def encode_suspicion(suspicion: Suspicion, watermark: int) -> str:
    """Numbers relative to the watermark; empty when nothing incomplete is under suspicion."""
    if suspicion.is_empty(watermark):
        return ""
    numbers = (max(0, suspicion.below - watermark), max(-1, suspicion.alone - watermark), suspicion.alone_deaths)
    named = (ascending_to_text(each, watermark) for each in (suspicion.twice, suspicion.thrice))
    return ",".join((*map(str, numbers), *named))


def decode_suspicion(text: str, watermark: int) -> Suspicion:
    """The inverse of `encode`. Raises ValueError for a text that is not one."""
    if not text:
        return NO_SUSPICION
    *numbers, twice, thrice = text.split(",")
    below, alone, alone_deaths = [int(number) for number in numbers]
    if min(below, alone + 1, alone_deaths) < 0 or max(below, alone, alone_deaths) > LARGEST:
        raise ValueError(f"not a suspicion: {text!r}")
    return Suspicion(
        watermark + below if below else 0,
        _lowest(ascending_from_text(twice, watermark)),
        _lowest(ascending_from_text(thrice, watermark)),
        watermark + alone if alone >= 0 else -1,
        alone_deaths if alone >= 0 else 0,
    )


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
    if max([ahead.position, *(end for _, end in ahead.complete[-1:]), *ahead.admitted[-1:]]) > LARGEST:
        raise ValueError("an offset is too large")
    return ahead


def _state(watermark: int, ahead: Ahead) -> str:
    numbers = encode_suspicion(ahead.suspicion, watermark)
    if not ahead.owner and not numbers:
        return ""
    return f"{ahead.owner or '-'}:{numbers}:{ascending_to_text(ahead.admitted, watermark)}"


def _read_state(watermark: int, state: str) -> tuple[str, Suspicion, tuple[int, ...]]:
    if not state:
        return "", NO_SUSPICION, ()
    owner, numbers, admitted = state.split(":")
    return (
        "" if owner == "-" else owner,
        decode_suspicion(numbers, watermark),
        tuple(ascending_from_text(admitted, watermark)),
    )


def _shorter(watermark: int, runs: Sequence[Run], room_bytes: int) -> str:
    last = runs[-1][1] if runs else watermark
    bitmap_bytes = min((last - watermark + 7) // 8, room_bytes)
    bitmap_reach = min(last, watermark + 8 * bitmap_bytes)
    is_certain = bitmap_reach == last and bitmap_bytes < 2 * len(runs)  # as each run is two bytes or more
    data, reach = (b"", watermark) if is_certain else _runs_to_bytes(watermark, runs, room_bytes)
    if bitmap_reach > reach or (bitmap_reach == reach and bitmap_bytes < len(data)):
        bitmap = _bitmap(watermark, runs, bitmap_bytes)
        return "b:" + base64.b64encode(bitmap).decode()
    return "r:" + base64.b64encode(data).decode()


def _runs_to_bytes(watermark: int, runs: Iterable[Run], room_bytes: int) -> tuple[bytes, int]:
    """Varints of as many runs as fit, and the offset they reach to."""
    data = bytearray()
    at = watermark
    for start, end in runs:
        pair = encode_varints(start - at) + encode_varints(end - start)
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
    numbers = list(decode_varints(raw))
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        start = at + gap
        at = start + length
        if length:
            yield start, at


def _runs_of_bitmap(watermark: int, raw: bytes) -> Iterator[Run]:
    digits = f"{int.from_bytes(raw, 'little'):b}"[::-1]
    for ones in _ONES.finditer(digits):
        yield watermark + ones.start(), watermark + ones.end()


class DoneOffsets:
    """The offsets of a partition that are done, by what its group has committed."""

    def __init__(self, committed: Position | None) -> None:
        self.watermark, metadata = committed or (0, "")
        ahead = decode(self.watermark, metadata)
        self.position, self._runs = ahead.position, ahead.complete

    def __contains__(self, offset: int) -> bool:
        """Whether it lies below the watermark, or in a complete run."""
        last = bisect_right(self._runs, offset, key=lambda run: run[0]) - 1
        return offset < self.watermark or (last >= 0 and offset < self._runs[last][1])
