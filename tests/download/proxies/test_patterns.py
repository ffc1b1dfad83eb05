"""Patterns of pages: what is found, and what RE2 does not take."""

from __future__ import annotations

import pytest

from site_spider.download.proxies.pool import SEARCHED_BYTES, PagePatterns


def test_the_first_pattern_that_matches_is_named() -> None:
    """In the bytes as they came, UTF-8 for what is not ASCII; only in the beginning."""
    patterns = PagePatterns(
        ["(?i)access denied", "Zugriff verweigert für", r"<title>\s*(Robot|Captcha)", "gr.n"]
    )
    assert patterns.found(b"\xff<h1>ACCESS Denied</h1>") == "(?i)access denied"
    assert patterns.found("Zugriff verweigert für alle".encode()) == "Zugriff verweigert für"
    assert patterns.found(b"<title>\n Captcha") == r"<title>\s*(Robot|Captcha)"
    assert patterns.found(b"gr\xfcn") == "gr.n"
    assert patterns.found(b"fine") is None
    assert patterns.found(b" " * SEARCHED_BYTES + b"Access denied") is None


@pytest.mark.parametrize("pattern", ["[", "(", "*a", "a{2,1}", r"(a+)\1", "(?=a)b"])
def test_what_re2_does_not_take_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="is no regular expression of RE2: "):
        PagePatterns(["fine", pattern])
