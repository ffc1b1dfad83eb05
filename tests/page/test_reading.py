"""A body is read in steps, and only as far as it is needed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.page import decode
from site_spider.page import links as page
from site_spider.page.decode import BodyLimits, keep_text
from tests.page.reading import run

SIZE = 1_000_000


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=50), st.integers(1, 60), st.integers(0, 60))
def test_a_large_body_keeps_what_a_small_one_keeps(text: str, max_bytes: int, read_chars: int) -> None:
    limits, body = BodyLimits(max_bytes), text.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "AT_ONCE_BYTES", -1)
        patch.setattr(decode, "SLICE_BYTES", 3)
        patch.setattr(page, "_BLOCK_CHARS", 5)
        found = run(page.read_text(body, "text/html; charset=utf-8", limits, read_chars))
    assert found.kept == keep_text(text, limits)
    assert text.startswith(found.read)
    assert len(found.read) >= min(read_chars, len(text))


def test_links_behind_what_is_kept_are_found() -> None:
    body = b"<p>" + b"x" * SIZE + b"<a href=/behind>"
    found = run(page.read_page(body, "text/html", "http://h.test/", wants_links=True, limits=BodyLimits(10)))
    assert [link for some in found.links for link in some] == ["http://h.test/behind"]
    assert found.kept.text == "<p>xxxxxxx"


def test_what_is_neither_kept_nor_read_is_not_decoded() -> None:
    body = "🎉".encode("utf-16-le") * SIZE
    steps = page.read_text(body, "text/html; charset=utf-16le", BodyLimits(4_000), 0)
    assert run(steps).kept.text == "🎉" * 1_000
    assert sum(1 for _ in page.read_text(body, "text/html; charset=utf-16le", BodyLimits(4_000), 0)) < 200


def test_binary_content_is_encoded_in_steps() -> None:
    steps = page.read_page(
        b"\x89PNG\r\n\x1a\n" + bytes(SIZE),
        "image/png",
        "http://h.test/",
        wants_links=True,
        limits=BodyLimits(0, keep_binary=True),
    )
    assert sum(1 for _ in steps) > 10
