"""A robots.txt is cut before it costs too much to parse."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protego import Protego

from site_spider.frontier.robots import LARGEST_BYTES, bounded
from tests.growth import assert_grows

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


def agents(part: int) -> list[bytes]:
    return AGENTS[: part * len(AGENTS) // 16]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "made",
    [
        lambda n: b"".join(agents(n)) + b"allow:/a\n" * (1_200 * n),
        lambda n: b"\nsitemap:x\n".join(agents(n)) + b"allow:/a\n" * (430 * n),
        lambda n: b"\ngarbage\n".join(agents(n)) + b"allow:/a\n" * (430 * n),
        lambda n: b"\xc2\xa0".join(agents(n)) + b"allow:/a\n" * (430 * n),
        lambda n: "\u2028".join(line.decode().strip() for line in agents(n)).encode() + b"\nallow:/a\n" * (430 * n),
        lambda n: b"user-agent:*\n" + b"".join(b"allow:/*a%d*b\n" % m for m in range(1_900 * n)),
    ],
    ids=["agents", "sitemaps", "garbage", "blanks", "separators", "wildcards"],
)
def test_a_hostile_file_costs_no_more_than_its_length(made: Callable[[int], bytes]) -> None:
    """The second took four minutes to parse, and gigabytes."""

    def reading(part: int) -> Callable[[], object]:
        body = made(part)
        return lambda: Protego.parse(bounded(body).decode()).can_fetch("http://h/" + "a1" * 4_000, "me")

    assert_grows(reading, 1)
