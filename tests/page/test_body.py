"""What of a body is kept."""

from __future__ import annotations

from base64 import b64decode

from hypothesis import given
from hypothesis import strategies as st

from site_spider.page.decode import BodyLimits, keep_binary, keep_text
from tests.page.reading import run


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(1, 60))
def test_a_kept_text_is_the_longest_beginning_that_fits(text: str, max_bytes: int) -> None:
    """One more character would not, and only what lost something is marked."""
    kept = keep_text(text, BodyLimits(max_bytes))
    assert kept.text is not None
    assert text.startswith(kept.text)
    assert len(kept.text.encode()) <= max_bytes
    assert kept.truncated == (kept.text != text)
    assert not kept.truncated or len(text[: len(kept.text) + 1].encode()) > max_bytes


@given(st.binary(), st.integers(0, 60))
def test_kept_bytes_are_the_beginning_up_to_the_limit(body: bytes, max_bytes: int) -> None:
    """Without a limit all of them."""
    kept = run(keep_binary(body, BodyLimits(max_bytes, keep_binary=True)))
    found = b64decode(kept.base64 or "")
    assert found == (body[:max_bytes] if max_bytes else body)
    assert kept.truncated == (found != body)


def test_zero_means_no_limit_for_text() -> None:
    """As in Scrapy's own limits."""
    assert keep_text("é" * 1000, BodyLimits(0)) == ("é" * 1000, None, False)


def test_half_a_surrogate_pair_does_not_keep_a_text_from_being_cut() -> None:
    """It counts, and becomes, what sinks write for it: a question mark."""
    assert keep_text("a\ud800bc", BodyLimits(3)).text == "a?b"
