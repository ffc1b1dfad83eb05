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

from site_spider.results.failures import failure_name
from tests.hostile.attack import Report, crawl
from tests.hostile.raw_site import raw_site, sends, whole

SIZE = 31_000_000
SMALL = 190_000  # read on the event loop
PACKERS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": partial(brotli.compress, quality=3),
    "zstd": zstd.compress,
}
Body = tuple[bytes, str, str]  # packed, charset, coding
Case = tuple[Body, str | None]  # and what is said of it, if it cannot be read


def whole_units(unit: bytes, size: int) -> bytes:
    return unit * (size // len(unit))


def packed(body: bytes, charset: str = "utf-8", coding: str = "gzip") -> Body:
    return PACKERS[coding](body), charset, coding


def texts(size: int) -> dict[str, Body]:
    chinese = "这是一个中文网页，介绍北京的历史与文化。"
    repeated = partial(whole_units, size=size)
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


def broken(coding: str) -> dict[str, Case]:
    """Cut off, which leaves what came, or wrong from the beginning."""
    text = b"<p>" + Random(1).randbytes(400_000).hex().encode()  # so that it is packed piece by piece
    data = PACKERS[coding](text)
    return {
        f"cut {coding}": ((data[: len(data) // 2], "utf-8", coding), None),
        f"wrong {coding}": ((b"\xff" * 100_000, "utf-8", coding), ""),
    }


TOO_LARGE = "of DOWNLOAD_MAXSIZE"


def bombs(coding: str, size: int) -> dict[str, Case]:
    data = PACKERS[coding](bytes(size))
    return {
        f"bomb of {coding}": ((data, "utf-8", coding), TOO_LARGE),
        f"bomb in a bomb of {coding}": ((PACKERS[coding](data), "utf-8", f"{coding}, {coding}"), TOO_LARGE),
    }


def layers(data: bytes, count: int) -> bytes:
    return layers(gzip.compress(data), count - 1) if count else data


def cases(size: int, bomb_size: int) -> dict[str, Case]:
    found: dict[str, Case] = {name: (body, None) for name, body in texts(size).items()}
    for coding in PACKERS:
        found |= broken(coding) | bombs(coding, bomb_size)
    return found | {
        "20 layers": ((layers(b"<p>", 20), "utf-8", ", ".join(["gzip"] * 20)), "20 codings"),
        "100,000 members": ((gzip.compress(b"") * 100_000, "utf-8", "gzip"), "gzip members"),
        "garbage behind gzip": (
            (gzip.compress(whole_units(b"<p>", size)) + b"garbage" * 100_000, "utf-8", "gzip"),
            None,
        ),
        "plain": ((whole_units(b"<p>text of a page", size), "utf-8", ""), None),
    }


def attack(folder: Path, told: Mapping[str, Case], count: int, **settings: Any) -> Report:
    """So many pages of each of these, together."""
    answers = {}
    for number, ((data, charset, coding), _) in enumerate(told.values()):
        lines = [f"Content-Encoding: {coding}"] if coding else []
        answers[f"/{number}"] = sends(whole(data, f"text/html; charset={charset}", *lines), closes=False)
    with raw_site(answers) as site:
        seeds: list[str | Mapping[str, Any]] = [
            {"url": site.url(f"{path}?{n}")} for n in range(count) for path in answers
        ]
        changed = {"CONCURRENT_REQUESTS_PER_DOMAIN": 64, "DEPTH_LIMIT": 1, **settings}
        report = crawl(folder, seeds, **changed)
        report.check()
        assert len(report.documents) >= count * len(told) + len(report.good)
        descriptions = report.descriptions()
        for path, (name, (_, said)) in zip(answers, told.items(), strict=True):
            for n in range(count):
                text = descriptions[site.url(f"{path}?{n}")]
                assert text is None if said is None else text and said in text, (name, text)
                assert said != TOO_LARGE or failure_name(text or "") == "DownloadCancelledError"
    return report


def test_bodies_of_every_kind_are_read_beside_each_other_within_the_bounds(tmp_path: Path) -> None:
    large = texts(SIZE)["utf-16le of lone surrogates"]
    some = cases(1_000_000, 40_000_000)
    attack(tmp_path, some | {f"large, {number}": (large, None) for number in range(4)}, 1)


@pytest.mark.nightly
@pytest.mark.parametrize("name", cases(0, 0))
def test_many_pages_with_the_same_body_keep_within_the_bounds(name: str, tmp_path: Path) -> None:
    attack(tmp_path, {name: cases(SIZE, 300_000_000)[name]}, 40)


@pytest.mark.nightly
@pytest.mark.parametrize("size", [SMALL, SIZE])
def test_400_pages_of_lone_surrogates_keep_within_the_bounds(size: int, tmp_path: Path) -> None:
    attack(tmp_path, {"": (texts(size)["utf-16le of lone surrogates"], None)}, 400)
