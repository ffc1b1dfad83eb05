"""Content codings are undone piece by piece, within bounds."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable
from functools import partial

import brotli
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from site_spider.page.unpack import MAX_CODINGS, MAX_MEMBERS, CodingCut, CodingError, CodingTooLarge, unpacked

MAX = 4_000_000


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def named_gzip(data: bytes) -> bytes:
    """With all that a header can have."""
    header = b"\x1f\x8b\x08" + bytes([4 | 8 | 16 | 2]) + bytes(6)
    header += (70_000 % 65_536).to_bytes(2, "little") + bytes(70_000 % 65_536) + b"name\0" + b"comment\0" + b"xx"
    return header + raw_deflate(data) + bytes(8)


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("x-gzip", gzip.compress),
    "gzip with a long header": ("gzip", named_gzip),
    "zlib": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw_deflate),
    "br": ("br", partial(brotli.compress, quality=5)),
    "zstd": ("zstd", zstd.compress),
}
SOUND = random.Random(1).randbytes(100_000) + b"x" * 300_000


@pytest.mark.parametrize("name", PACKERS)
@pytest.mark.parametrize("data", [b"", b"x", b"<p>text", SOUND], ids=["empty", "one", "short", "long"])
def test_a_body_comes_out_as_it_went_in(name: str, data: bytes) -> None:
    coding, pack = PACKERS[name]
    pieces = list(unpacked(pack(data), [coding], MAX))
    assert b"".join(pieces) == data
    assert max(map(len, pieces), default=0) <= 131_072
    assert b"".join(unpacked(b"", [coding], MAX)) == b""  # an empty body is so in any coding


@given(st.lists(st.sampled_from(["gzip", "zlib", "br", "zstd"]), max_size=MAX_CODINGS), st.binary())
def test_several_codings_are_undone_from_the_last_to_the_first(names: list[str], data: bytes) -> None:
    body = data
    for name in names:
        body = PACKERS[name][1](body)
    codings = [PACKERS[name][0] for name in reversed(names)]
    assert b"".join(unpacked(body, codings, MAX)) == data


@pytest.mark.parametrize("name", ["gzip", "zlib", "br", "zstd"])
def test_a_bomb_ends_at_the_limit_and_so_does_one_in_another(name: str) -> None:
    coding, pack = PACKERS[name]
    bomb = pack(bytes(6_000_000))
    for body, codings in ((bomb, [coding]), (pack(bomb), [coding, coding])):
        taken: list[bytes] = []
        with pytest.raises(CodingTooLarge):
            taken.extend(unpacked(body, codings, MAX))
        assert sum(map(len, taken)) <= MAX


@pytest.mark.parametrize("name", ["gzip", "zlib", "br", "zstd"])
@pytest.mark.parametrize("kept", [0.01, 0.5, 0.99])
def test_a_stream_that_was_cut_gives_what_it_has_and_says_so(name: str, kept: float) -> None:
    coding, pack = PACKERS[name]
    packed = pack(SOUND)
    taken: list[bytes] = []
    with pytest.raises(CodingCut):
        taken.extend(unpacked(packed[: int(len(packed) * kept)], [coding], MAX))
    assert SOUND.startswith(b"".join(taken))


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
@pytest.mark.parametrize("body", [b"<p>plain", b"\0" * 100, b"\xff" * 70_000])
def test_what_is_in_no_coding_is_a_clear_failure(coding: str, body: bytes) -> None:
    with pytest.raises(CodingError, match=f"not in {coding}"):
        list(unpacked(body, [coding], MAX))


@pytest.mark.parametrize("name", ["gzip", "zlib", "br", "zstd"])
def test_what_stands_behind_the_end_is_passed_over_or_a_failure(name: str) -> None:
    coding, pack = PACKERS[name]
    pieces = unpacked(pack(b"text") + b"garbage", [coding], MAX)
    if name in ("br", "zstd"):  # whose libraries refuse it
        with pytest.raises(CodingError):
            list(pieces)
    else:
        assert b"".join(pieces) == b"text"


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_streams_one_behind_the_other_are_one_body_up_to_a_number(name: str) -> None:
    coding, pack = PACKERS[name]
    assert b"".join(unpacked(pack(b"ab") * 500, [coding], MAX)) == b"ab" * 500
    with pytest.raises(CodingError, match=str(MAX_MEMBERS)):
        list(unpacked(pack(b"") * 100_000, [coding], MAX))


def test_a_wrong_checksum_is_no_matter_as_in_browsers() -> None:
    assert b"".join(unpacked(gzip.compress(b"text")[:-8] + bytes(8), ["gzip"], MAX)) == b"text"


def test_zstd_with_a_huge_window_is_refused() -> None:
    options = {zstd.CompressionParameter.window_log: 27, zstd.CompressionParameter.compression_level: 1}
    packer = zstd.ZstdCompressor(options=options)
    body = packer.compress(bytes(20_000_000), packer.FLUSH_FRAME)
    with pytest.raises(CodingError, match="not in zstd"):
        list(unpacked(body, ["zstd"], MAX))


def test_twenty_layers_are_refused() -> None:
    with pytest.raises(CodingError, match="20 codings"):
        unpacked(b"x", ["gzip"] * 20, MAX)
