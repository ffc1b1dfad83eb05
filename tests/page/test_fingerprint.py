"""The short way to a fingerprint."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.utils.request import fingerprint

from site_spider.page.url import page_fingerprint
from tests.page.found_links import urls

HREFS = st.text("ab./?=&%+,:;@!$*()-_~2eE#'\"\\\\[]|é中 ", min_size=1, max_size=20)


@given(
    HREFS, st.sampled_from(["http://a.b/c/d", "https://x.test:18080/", "http://[::1]:1/", "http://h:65535"])
)
@example("?b=2&a=1&a=0", "http://a.b/")
@example("a%2fb%C3%a9", "http://a.b/")
@example("http://other.test:80/x;y=1,2", "http://a.b/")
def test_it_is_the_fingerprint_that_scrapy_gives_a_plain_request(href: str, base: str) -> None:
    """For whatever links the pages hold."""
    markup = f"<a href='{href}'><a href=\"{href}\">"
    for url in urls(markup, base):
        assert page_fingerprint(url) == fingerprint(Request(url))


@given(
    st.from_regex(r"https?://(a|b\.c|h:81|h:60000)/[aB.~_/-]{0,8}(\?[aB1.&=%]{0,12})?(#a)?", fullmatch=True)
)
def test_it_is_so_for_urls_of_seeds_too(url: str) -> None:
    """Whose spelling is their producer's."""
    assert page_fingerprint(Request(url).url) == fingerprint(Request(url))
