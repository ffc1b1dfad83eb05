"""Bodies that cost much to unpack, decode, read or keep."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import brotli
import pytest
from backports import zstd

from tests.hostile.attack import Report, crawl
from tests.hostile.raw_site import raw_site, sends, whole

SIZE = 31_000_000
SMALL = 190_000  # read on the event loop
Body = tuple[bytes, str, str]  # packed, charset, coding


def repeated(unit: bytes, size: int = SIZE) -> bytes:
    return unit * (size // len(unit))


def packed(body: bytes, charset: str = "utf-8", coding: str = "gzip") -> Body:
    packers = {"gzip": gzip.compress, "deflate": zlib.compress, "br": partial(brotli.compress, quality=3)}
    return {**packers, "zstd": zstd.compress}[coding](body), charset, coding


def attack(folder: Path, body: Body, count: int = 40, **settings: Any) -> Report:
    """So many pages with this body, together."""
    data, charset, coding = body
    lines = [f"Content-Encoding: {coding}"] if coding else []
    answer = sends(whole(data, f"text/html; charset={charset}", *lines), closes=False)
    with raw_site({"/body": answer}) as site:
        seeds: list[str | Mapping[str, Any]] = [{"url": site.url(f"/body?{n}")} for n in range(count)]
        changed = {"CONCURRENT_REQUESTS_PER_DOMAIN": 64, "DEPTH_LIMIT": 1, **settings}
        report = crawl(folder, seeds, **changed)
    report.check()
    assert len(report.documents) >= count + len(report.good)
    return report


def texts() -> dict[str, Body]:
    chinese = "这是一个中文网页，介绍北京的历史与文化。"
    return {
        "utf-16le of lone surrogates": packed(repeated(b"\x00\xd8"), "utf-16le"),
        "utf-16be of lone surrogates": packed(repeated(b"\xd8\x00"), "utf-16be"),
        "valid utf-16": packed(repeated(chinese.encode("utf-16-le")), "utf-16le"),
        "utf-16 of pairs": packed(repeated("🎉".encode("utf-16-le")), "utf-16le"),
        "utf-32": packed(repeated(chinese.encode("utf-32-le")), "utf-32le"),
        "utf-8 of bad bytes": packed(repeated(b"\xff")),
        "utf-8 with one wide character": packed("🎉".encode() + repeated(b"x")),
        "undeclared bad bytes": packed(repeated(b"\xe2"), "none"),
        "big5 of bad bytes": packed(repeated(b"\xff\xff\x81"), "big5"),
        "gb18030 of bad bytes": packed(repeated(b"\x81\x30\xff"), "gb18030"),
        "shift_jis of bad bytes": packed(repeated(b"\xff"), "shift_jis"),
        "euc-kr of bad bytes": packed(repeated(b"\xff"), "euc-kr"),
        "euc-jp of signs that Python lacks": packed(repeated(b"\xad\xa1"), "euc-jp"),
        "iso-2022-jp of escapes": packed(repeated(b"\x1b$B\x1b(J\x1b"), "iso-2022-jp"),
        "windows-1252": packed(repeated(b"\x80\x81"), "windows-1252"),
        "control characters": packed(b"x" * 2_000 + repeated(b"\x01")),
        "one tag": packed(b"<b " + repeated(b"=")),
        "open tags": packed(repeated(b"<a href=x ")),
        "comments": packed(repeated(b"<!---->")),
        "plain tags": packed(repeated(b"<p>")),
        "references": packed(repeated(b"<a href='&amp;&copy;&#99999;'>")),
    }


NAMES = list(texts())


@pytest.mark.parametrize("name", NAMES)
def test_pages_of_31_mb_are_read_within_the_bounds(name: str, tmp_path: Path) -> None:
    report = attack(tmp_path, texts()[name], count=40 if name == NAMES[0] else 8)
    assert not any(report.descriptions().values())


@pytest.mark.parametrize("name", ["utf-16le of lone surrogates", "valid utf-16"])
def test_400_small_pages_are_read_within_the_bounds(name: str, tmp_path: Path) -> None:
    data, charset, coding = texts()[name]
    body = packed(gzip.decompress(data)[:SMALL], charset, coding)
    report = attack(tmp_path, body, count=400)
    assert not any(report.descriptions().values())


def test_400_pages_of_31_mb_are_read_within_the_bounds(tmp_path: Path) -> None:
    attack(tmp_path, texts()["utf-16le of lone surrogates"], count=400)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_bombs_are_clear_failures(coding: str, tmp_path: Path) -> None:
    report = attack(tmp_path, packed(bytes(300_000_000), coding=coding))
    assert all("DOWNLOAD_MAXSIZE" in str(said) for said in report.descriptions().values())


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_bombs_in_bombs_are_clear_failures(coding: str, tmp_path: Path) -> None:
    inner = packed(bytes(300_000_000), coding=coding)[0]
    data = packed(inner, coding=coding)[0]
    report = attack(tmp_path, (data, "utf-8", f"{coding}, {coding}"))
    assert all("DOWNLOAD_MAXSIZE" in str(said) for said in report.descriptions().values())


def test_20_layers_are_a_clear_failure(tmp_path: Path) -> None:
    data = b"<p>"
    for _ in range(20):
        data = gzip.compress(data)
    report = attack(tmp_path, (data, "utf-8", ", ".join(["gzip"] * 20)))
    assert all("20 codings" in str(said) for said in report.descriptions().values())


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
@pytest.mark.parametrize("kind", ["cut", "wrong"])
def test_broken_streams_are_clear_failures_and_cut_ones_are_what_came(
    coding: str, kind: str, tmp_path: Path
) -> None:
    text = b"<p>" + Random(1).randbytes(400_000).hex().encode()  # so that it is packed piece by piece
    data = packed(text, coding=coding)[0]
    broken = data[: len(data) // 2] if kind == "cut" else b"\xff" * 100_000
    report = attack(tmp_path, (broken, "utf-8", coding), count=10)
    assert any(report.descriptions().values()) == (kind == "wrong")
    assert all(report.descriptions().values()) == (kind == "wrong")


def test_100_000_gzip_members_are_a_clear_failure(tmp_path: Path) -> None:
    report = attack(tmp_path, (gzip.compress(b"") * 100_000, "utf-8", "gzip"))
    assert all("gzip members" in str(said) for said in report.descriptions().values())


def test_what_stands_behind_gzip_is_passed_over(tmp_path: Path) -> None:
    data = gzip.compress(repeated(b"<p>")) + b"garbage" * 100_000
    report = attack(tmp_path, (data, "utf-8", "gzip"))
    assert not any(report.descriptions().values())


def test_64_plain_bodies_of_31_mb_arrive_within_the_bounds(tmp_path: Path) -> None:
    report = attack(tmp_path, (repeated(b"<p>text of a page"), "utf-8", ""), count=64, DOWNLOAD_TIMEOUT=60)
    assert not any(report.descriptions().values())
