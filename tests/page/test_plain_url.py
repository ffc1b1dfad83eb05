"""URLs in their usual form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request

from site_spider.page.url import is_safe

ODD = r"https?://[a-z0-9._~-]{0,9}(:[0-9]{0,5})?[/?#]?[A-Za-z0-9/._~%&=?# \t'\[\]|{}<>\"^`\\;,+é-]{0,20}"
FORM = r"https?://[a-z0-9._-]{1,9}(:[1-9][0-9]{0,4})?/[A-Za-z0-9/_.~-]{0,9}(\?[A-Za-z0-9_.~&=-]{1,9})?"


@given(st.from_regex(FORM, fullmatch=True) | st.from_regex(ODD, fullmatch=True))
def test_scrapy_leaves_what_is_safe_as_it_is(url: str) -> None:
    """So it need not look."""
    if is_safe(url):
        assert Request(url).url == url


@pytest.mark.parametrize(
    "url", ["http://h.test/", "https://h.test:8443/a/b.html?c=d&e=f~g", "http://127.0.0.1:1/-"]
)
def test_most_urls_are_safe(url: str) -> None:
    """Else it is of no use."""
    assert is_safe(url)


@pytest.mark.parametrize(
    "url",
    [
        *("http://h.test", "http://H.test/", "HTTP://h.test/", "http://h.test/ ", "http://h.test/\n"),
        *(
            "http://h.test/a b",
            "http://h.test/é",
            "http://h.test/?a[]=b",
            "http://h.test/#a",
            "http://u@h.test/",
        ),
        *("http://h.test:080/", "http://[::1]/", "http://h.test/?", "http://h..test/", "http://h.test/%zz"),
    ],
)
def test_what_scrapy_may_change_is_not(url: str) -> None:
    """Or is rare."""
    assert not is_safe(url)
