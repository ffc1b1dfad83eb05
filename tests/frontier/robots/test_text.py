"""A robots.txt is cut before it costs too much to parse."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protego import Protego

from site_spider.frontier.robots.text import LARGEST_BYTES, bounded

AGENTS = [b"user-agent: a%d\n" % number for number in range(16_000)]


@given(st.binary(max_size=300))
def test_whatever_the_bytes_are_it_is_utf_8(body: bytes) -> None:
    """And parses."""
    Protego.parse(bounded(body).decode())


def test_an_ordinary_file_stays_as_it_is() -> None:
    """Also one in which every agent has a group of its own, with a sitemap between."""
    body = b"".join(b"user-agent: %d\nDisallow: /x\nsitemap: http://x/\n" % n for n in range(8_000))
    assert bounded(body).splitlines() == body.splitlines()


def test_no_more_than_500_kib_in_whole_lines_are_kept() -> None:
    """RFC 9309 wants at least so much to be parsed."""
    kept = bounded(b"# some words\n" * 100_000)
    assert LARGEST_BYTES - 20 < len(kept) <= LARGEST_BYTES
    assert kept.endswith(b"# some words")


@pytest.mark.parametrize(
    "body",
    [
        b"".join(AGENTS) + b"allow:/a\n" * 20_000,
        b"\nsitemap:x\n".join(AGENTS) + b"allow:/a\n" * 7_000,
        b"\ngarbage\n".join(AGENTS) + b"allow:/a\n" * 7_000,
        b"\xc2\xa0".join(AGENTS) + b"allow:/a\n" * 7_000,
        "\u2028".join(line.decode().strip() for line in AGENTS).encode() + b"\nallow:/a\n" * 7_000,
        b"user-agent:*\n" + b"".join(b"allow:/*a%d*b\n" % number for number in range(30_000)),
    ],
    ids=["agents", "sitemaps", "garbage", "blanks", "separators", "wildcards"],
)
def test_a_hostile_file_costs_little(body: bytes) -> None:
    """The second took four minutes to parse, and gigabytes."""
    began = time.process_time()
    parser = Protego.parse(bounded(body).decode())
    parser.can_fetch("http://h/" + "a1" * 4_000, "me")
    assert time.process_time() - began < 5
