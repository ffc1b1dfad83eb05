"""Decodes bytes of a known encoding in slices.

Theory of operation. A codec runs in C and lets no other thread run meanwhile, so a call works on one
slice. The decoders are incremental: what a slice ends in the middle of is kept for the next one, and the
slices together are what one call for the whole body gives. A body that is sound and small is decoded
in one call, which no error handler makes slow.

- Bytes that mean nothing become U+FFFD. Each costs up to a quarter of a microsecond, so behind the
  first `MAX_FAULTS` of them nothing is decoded: such a body is no text.
- `iso2022_jp_ext` gives up when more than eight bytes wait for the end of an escape sequence, so a slice
  ends before the last of these.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from functools import cache
from typing import Any

AT_ONCE_BYTES = 200_000  # a sound body up to here takes one call: 1 ms at most
SLICE_BYTES = 16_384  # 2 ms at most, when all of it is faults
MAX_FAULTS = 250_000  # U+FFFD in the text

_MENDED_SLICE_BYTES = 2_048
_MAX_MENDED = 1_000  # faults for which Python code runs, 5 µs each
_LONGEST_ESCAPE = 16  # bytes
_FAULT = "\ufffd"

PYTHON_CODECS = {
    "big5": "big5hkscs",
    "euc-kr": "cp949",
    "iso-2022-jp": "iso2022_jp_ext",
    "iso-8859-8-i": "iso8859-8",
    "macintosh": "mac-roman",
    "shift_jis": "cp932",
    "windows-874": "cp874",
    "x-mac-cyrillic": "mac-cyrillic",
}
_MULTI_BYTE = frozenset(
    ("utf-8", "utf-16le", "utf-16be", "gb18030", "big5", "euc-jp", "euc-kr", "iso-2022-jp", "shift_jis")
)
_MENDED = frozenset(("gb18030", "euc-jp"))
_MEND = "site_spider.mend"


def decoded_at_once(body: bytes, encoding: str, start: int = 0) -> str | None:
    """The text of a body from `start` on; None if it is large, or has bytes that mean nothing."""
    if len(body) > AT_ONCE_BYTES:
        return None
    data = body[start:] if start else body
    if encoding not in _MULTI_BYTE:
        return codecs.charmap_decode(data, "strict", _byte_table(encoding))[0]
    try:
        return data.decode(PYTHON_CODECS.get(encoding, encoding))
    except UnicodeError:
        return None


class Decoding:
    """Gives the text of a body, piece by piece. `is_whole` is True when all of it was given."""

    def __init__(self, body: bytes, encoding: str, start: int = 0) -> None:
        self.is_whole = False
        self._body = body
        self._encoding = encoding
        self._position = start
        self._mends_left = _MAX_MENDED if encoding in _MENDED else 0

    def pieces(self) -> Iterator[str]:
        """To be iterated once."""
        if self._encoding in _MULTI_BYTE:
            return self._of_multi_byte()
        return self._of_single_byte()

    def _of_single_byte(self) -> Iterator[str]:
        table = _byte_table(self._encoding)
        while self._position < len(self._body):
            yield codecs.charmap_decode(self._next_slice(SLICE_BYTES), "strict", table)[0]
        self.is_whole = True

    def _of_multi_byte(self) -> Iterator[str]:
        codec = PYTHON_CODECS.get(self._encoding, self._encoding)
        decoder: Any = codecs.getincrementaldecoder(codec)("replace")
        size = _MENDED_SLICE_BYTES if self._encoding in _MENDED else SLICE_BYTES
        faults = 0
        while self._position < len(self._body):
            before = decoder.getstate() if self._mends_left else None
            data = self._next_slice(size)
            is_last = self._position == len(self._body)
            text: str = decoder.decode(data, is_last)
            found = text.count(_FAULT)
            if 0 < found <= self._mends_left:
                text = self._mended(decoder, before, data, is_last)
                self._mends_left -= found
            yield text
            faults += found
            if faults > MAX_FAULTS:
                return
        self.is_whole = True

    def _mended(self, decoder: Any, before: Any, data: bytes, is_last: bool) -> str:
        decoder.setstate(before)
        decoder.errors = _MEND
        text: str = decoder.decode(data, is_last)
        decoder.errors = "replace"
        return text

    def _next_slice(self, size: int) -> bytes:
        begin, end = self._position, self._position + size
        if self._encoding == "iso-2022-jp" and end < len(self._body):
            escape = self._body.find(b"\x1b", end - _LONGEST_ESCAPE, end)
            end = end if escape < 0 else escape
        self._position = min(end, len(self._body))
        return self._body[begin : self._position]


@cache
def _byte_table(encoding: str) -> str:
    """The 256 characters of a single-byte encoding; where Python has gaps, the standard has C1 controls."""
    if encoding == "x-user-defined":
        return "".join(chr(byte if byte < 0x80 else 0xF700 + byte) for byte in range(256))
    text = [bytes([byte]).decode(PYTHON_CODECS.get(encoding, encoding), "replace") for byte in range(256)]
    return "".join(chr(i) if 0x80 <= i < 0xA0 and char == _FAULT else char for i, char in enumerate(text))


def _mend(error: UnicodeError) -> tuple[str, int]:
    """What Python's codecs lack of the standard's: the euro sign of GBK, and NEC's signs in EUC-JP."""
    assert isinstance(error, UnicodeDecodeError)
    lead, trail = (*error.object[error.start : error.start + 2], 0)[:2]
    if error.encoding == "gb18030" and lead == 0x80:
        return "€", error.start + 1
    if error.encoding == "euc_jp" and lead >= 0xA1 and trail >= 0xA1:
        row, cell = lead - 0xA1, trail - 0xA1
        first = (row >> 1) + (0x81 if row < 62 else 0xC1)
        second = cell + 0x9F if row & 1 else cell + 0x40 + (cell >= 0x3F)
        return bytes((first, second)).decode("cp932", "replace")[:1], error.start + 2
    return _FAULT, error.end


codecs.register_error(_MEND, _mend)
