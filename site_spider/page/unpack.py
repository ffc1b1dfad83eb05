"""Undoes content codings piece by piece.

Theory of operation. Each coding is a generator that takes pieces and gives pieces, so several of them stand
one behind the other and none holds a whole body. Each call into a library takes and gives at most a slice,
and between two calls there is a piece, if need be an empty one: whoever takes the pieces may do other
things in between.

- What comes out of any layer is bounded, so a bomb in a bomb is one too.
- As in browsers, checksums are not looked at, and what stands behind the end is passed over.
- A stream that ends before its time raises `CodingCut`, behind all that could be made of it.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Generator, Iterator, Sequence

import brotli  # type: ignore[import-untyped] # it has no types

from site_spider.errors import SiteSpiderError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_CODINGS = 3  # servers use one, a few by mistake two
MAX_MEMBERS = 1_000  # of gzip and zstd, whose streams may stand one behind the other
_SLICE_BYTES = 65_536
_ZSTD_WINDOW_LOG = 23  # 8 MB, as RFC 9659 has it
_GZIP_HEADER_BYTES = 10
_MAX_GZIP_HEADER_BYTES = 131_072
_FEXTRA, _FNAME, _FCOMMENT, _FHCRC = 4, 8, 16, 2  # flags of a gzip header

Pieces = Iterator[bytes]


class CodingError(SiteSpiderError):
    """A body is not what its Content-Encoding says."""


class CodingCut(CodingError):
    """A body ends before its coding does."""


class CodingTooLarge(CodingError):
    """A body unpacks to more than DOWNLOAD_MAXSIZE; `size_bytes` were counted."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"the body unpacks to {size_bytes} bytes or more")
        self.size_bytes = size_bytes


def unpacked(body: bytes, codings: Sequence[str], max_bytes: int) -> Pieces:
    """The body without these codings, the last applied first; 0: no limit. Raises CodingError."""
    if len(codings) > MAX_CODINGS:
        raise CodingError(f"Content-Encoding names {len(codings)} codings; {MAX_CODINGS} at most are undone")
    pieces: Pieces = (body[begin : begin + _SLICE_BYTES] for begin in range(0, len(body), _SLICE_BYTES))
    for coding in codings:
        pieces = _bounded(_named(coding, pieces), max_bytes)
    return pieces


def _bounded(pieces: Pieces, max_bytes: int) -> Pieces:
    size = 0
    for piece in pieces:
        size += len(piece)
        if max_bytes and size > max_bytes:
            raise CodingTooLarge(size)
        yield piece


def _named(coding: str, pieces: Pieces) -> Pieces:
    try:
        yield from _CODINGS[coding](pieces)
    except (zlib.error, brotli.error, zstd.ZstdError) as error:
        raise CodingError(f"the body is not in {coding}, as Content-Encoding says: {error}") from None


class _Input:
    """The pieces that a coding is read from; what is not used is given back."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._back = b""

    def take(self) -> bytes | None:
        """The next piece, which may be empty; None at the end."""
        back, self._back = self._back, b""
        return back or next(self._pieces, None)

    def give_back(self, data: bytes) -> None:
        """To be taken next."""
        self._back = data + self._back


def _gzip(pieces: Pieces) -> Pieces:
    source = _Input(pieces)
    for number in range(MAX_MEMBERS):
        if not (yield from _has_gzip_header(source, number)):
            return
        yield from _inflate(source, "gzip")
        yield from _skip(source, 8)  # checksum and length
    raise CodingError(f"the body has more than {MAX_MEMBERS} gzip members")


def _has_gzip_header(source: _Input, number: int) -> Generator[bytes, None, bool]:
    """Pass it over."""
    data = b""
    while (piece := source.take()) is not None:
        data += piece
        if not b"\x1f\x8b\x08".startswith(data[:3]) and not data.startswith(b"\x1f\x8b\x08"):
            if number == 0:
                raise CodingError("the body is not in gzip, as Content-Encoding says")
            return False  # what stands behind the last member
        end = _gzip_header_end(data)
        if end is not None:
            source.give_back(data[end:])
            return True
        if len(data) > _MAX_GZIP_HEADER_BYTES:
            raise CodingError("the header of gzip is too long")
        yield b""
    if data and number == 0:
        raise CodingCut("the body ends before its gzip header does")
    return False


def _gzip_header_end(data: bytes) -> int | None:
    """Where a header ends; None when that is not there yet."""
    if len(data) < _GZIP_HEADER_BYTES:
        return None
    flags, end = data[3], _GZIP_HEADER_BYTES
    if flags & _FEXTRA:
        end += 2 + int.from_bytes(data[end : end + 2], "little")
    for flag in (_FNAME, _FCOMMENT):
        if flags & flag:
            zero = data.find(b"\0", end)
            if zero < 0:
                return None
            end = zero + 1
    if flags & _FHCRC:
        end += 2
    return end if end <= len(data) else None


def _skip(source: _Input, count: int) -> Pieces:
    while count and (piece := source.take()) is not None:
        if len(piece) > count:
            source.give_back(piece[count:])
        count -= min(count, len(piece))
        yield b""


def _deflate(pieces: Pieces) -> Pieces:
    """With the header of zlib, as the standard has it, or without, as some servers do."""
    source, data = _Input(pieces), b""
    while len(data) < 2 and (piece := source.take()) is not None:
        data += piece
    if not data:
        return
    is_zlib = len(data) > 1 and data[0] & 0x0F == zlib.DEFLATED and int.from_bytes(data[:2], "big") % 31 == 0
    source.give_back(data[2:] if is_zlib else data)
    yield from _inflate(source, "deflate")


def _inflate(source: _Input, coding: str) -> Pieces:
    decoder = zlib.decompressobj(-zlib.MAX_WBITS)
    while (piece := source.take()) is not None:
        while True:
            yield decoder.decompress(piece, _SLICE_BYTES)
            if decoder.eof:
                source.give_back(decoder.unused_data)
                return
            piece = decoder.unconsumed_tail
            if not piece:
                break
    while rest := decoder.decompress(b"", _SLICE_BYTES):
        yield rest
    if not decoder.eof:
        raise CodingCut(f"the body ends before its {coding} stream does")


def _br(pieces: Pieces) -> Pieces:
    decoder = brotli.Decompressor()
    is_empty = True
    for piece in pieces:
        is_empty = is_empty and not piece
        output = decoder.process(piece, output_buffer_limit=_SLICE_BYTES)
        yield output
        while output or not decoder.can_accept_more_data():
            output = decoder.process(b"", output_buffer_limit=_SLICE_BYTES)
            yield output
        if decoder.is_finished():
            return
    if not is_empty:
        raise CodingCut("the body ends before its br stream does")


def _zstd(pieces: Pieces) -> Pieces:
    source = _Input(pieces)
    for _ in range(MAX_MEMBERS):
        options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
        decoder = zstd.ZstdDecompressor(options=options)
        is_begun = False
        while not decoder.eof:
            piece = source.take() if decoder.needs_input else b""
            if piece is None:
                if is_begun:
                    raise CodingCut("the body ends before its zstd frame does")
                return
            is_begun = is_begun or bool(piece)
            yield decoder.decompress(piece, _SLICE_BYTES)
        source.give_back(decoder.unused_data)
    raise CodingError(f"the body has more than {MAX_MEMBERS} zstd frames")


_CODINGS = {"gzip": _gzip, "x-gzip": _gzip, "deflate": _deflate, "br": _br, "zstd": _zstd}
