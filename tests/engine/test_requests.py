"""What takes less work than Scrapy's headers, requests and referrers behaves the same."""

from __future__ import annotations

import pickle
from copy import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.http import Headers
from scrapy.spidermiddlewares.referer import DefaultReferrerPolicy

from site_spider.engine.scrapy_parts import _SPELLED, QuickHeaders, QuickReferrerPolicy, quick_request
from site_spider.page.url import is_safe

NAMES = st.sampled_from(
    ["Content-Type", b"Content-Type", "content-type", b"cookie", "SET-COOKIE", "User-Agent", "x-é", b"X", ""]
)
VALUES = st.one_of(
    st.none(),
    st.integers(0, 9),
    st.sampled_from(["", "a", "é", b"", b"b"]),
    st.lists(st.sampled_from(["a", b"b", 3]), max_size=3),
    st.tuples(st.sampled_from(["a", b"b"])),
)
CALLS = st.tuples(
    st.sampled_from(["get", "setdefault", "__setitem__", "appendlist", "setlist", "setlistdefault", "pop"]),
    NAMES,
    VALUES,
)


def done(headers: Headers, name: str, key: Any, value: Any) -> Any:
    """What a call gives, or the kind of its error."""
    try:
        if name == "pop":
            return headers.pop(key, None)
        return getattr(headers, name)(key, value)
    except (TypeError, AttributeError, KeyError) as error:
        return type(error)


@given(st.lists(CALLS, max_size=12), st.sampled_from(["utf-8", "latin-1"]))
def test_every_call_has_the_outcome_of_scrapys(calls: list[tuple[str, Any, Any]], encoding: str) -> None:
    """Also what is kept, in its order."""
    quick, stock = QuickHeaders(encoding=encoding), Headers(encoding=encoding)
    for name, key, value in calls:
        assert done(quick, name, key, value) == done(stock, name, key, value)
        assert (key in quick, quick.getlist(key)) == (key in stock, stock.getlist(key))
    assert list(dict.items(quick)) == list(dict.items(stock))
    assert quick.to_string() == stock.to_string()


def test_names_are_spelled_as_scrapy_spells_them() -> None:
    """Each that is known."""
    assert {key: Headers().normkey(key) for key in _SPELLED} == _SPELLED


def test_they_are_copied_and_stored_with_their_request() -> None:
    """By whoever works with a Request of a seed."""
    request = Request("http://a.test/")
    request.headers = QuickHeaders({"Cookie": "a"})
    assert copy(request.headers) == pickle.loads(pickle.dumps(request.headers)) == request.headers
    assert request.replace(url="http://b.test/").headers == request.headers
    assert request.to_dict()["headers"] == {b"Cookie": [b"a"]}


URLS = st.builds(
    "{}://{}{}".format,
    st.sampled_from(["http", "https", "HTTPS", "ftp", "file"]),
    st.sampled_from(["a.test", "a.test:80", "a.test:443", "u:p@a.test", "A.test:81", ""]),
    st.text("/a?#%é ", max_size=6).map(lambda text: f"/{text}"),
)


@given(URLS, URLS)
def test_a_referrer_is_scrapys(response_url: str, request_url: str) -> None:
    """Also none, from https to http."""
    expected = DefaultReferrerPolicy().referrer(response_url, request_url)
    assert QuickReferrerPolicy().referrer(response_url, request_url) == expected


@given(URLS)
def test_a_request_is_scrapys(url: str) -> None:
    """Whether its URL may be left as it is or not."""
    quick = quick_request(url, verbatim=is_safe(url), headers={"a": "b"}, meta={"depth": 1}, priority=2)
    stock = Request(url, headers={"a": "b"}, meta={"depth": 1}, priority=2)
    assert quick.to_dict() == stock.to_dict()
