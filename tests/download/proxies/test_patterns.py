"""Patterns of pages: what is found, and what is refused because it could take too long."""

from __future__ import annotations

from functools import partial

import pytest

from site_spider.download.proxies.pool import SEARCHED_BYTES, PagePatterns, PatternError
from tests.growth import SQUARE, assert_grows


def test_the_first_pattern_that_matches_is_named() -> None:
    """In the bytes as they came, UTF-8 for what is not ASCII; only in the beginning."""
    patterns = PagePatterns(["(?i)access denied", "Zugriff verweigert für", r"<title>\s*(Robot|Captcha)"])
    assert patterns.found(b"<h1>ACCESS Denied</h1>") == "(?i)access denied"
    assert patterns.found("Zugriff verweigert für alle".encode()) == "Zugriff verweigert für"
    assert patterns.found(b"<title>\n Captcha") == r"<title>\s*(Robot|Captcha)"
    assert patterns.found(b"fine") is None
    assert patterns.found(b" " * SEARCHED_BYTES + b"Access denied") is None
    assert PagePatterns([]).found(b"anything") is None


@pytest.mark.parametrize("pattern", ["[", "(", "*a", "(?P<x>", r"\1", "a{2,1}", "(?z)a"])
def test_what_is_no_regular_expression_is_refused(pattern: str) -> None:
    """The message shows it."""
    with pytest.raises(PatternError, match="is no regular expression: "):
        PagePatterns(["fine", pattern])


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+b", "(a|a)*b", "(a|b|ab)*c", ".*a.*b", r"\w+@\w+\.", "(.{0,90}){9}",
     "((a{0,9}){0,9}){0,9}b", "(?=(a+)+b)",
     "(x)(?(1)a+|b)", "(?:a?){50}b"],
)  # fmt: skip
def test_what_could_take_too_long_is_refused(pattern: str) -> None:
    """Exponentially many ways, or too many powers of the length."""
    with pytest.raises(PatternError, match="could take too long"):
        PagePatterns([pattern])


@pytest.mark.parametrize(
    "pattern",
    ["a*b", ".*b", "(?:ab)*c", ".{0,100}x.{0,60}y", "(?:foo|bar){1,5}", "a++b", "(?>a+)b", r"(?<=a)b"],
)
def test_what_is_allowed_costs_the_square_of_a_hostile_page_at_most(pattern: str) -> None:
    """The worst of these takes 0.2 s; a wrong count would make it hours."""
    patterns = PagePatterns([pattern])
    for text in (b"a", b"ab", b"x", b"foo", b"abx "):
        page = text * SEARCHED_BYTES
        patterns.found(page)
        assert_grows(lambda n, page=page: partial(patterns.found, page[:n]), SEARCHED_BYTES // 16, SQUARE)  # type: ignore[misc]
