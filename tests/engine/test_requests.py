"""What takes less work than Scrapy's headers, requests and referrers behaves the same."""

from __future__ import annotations

import asyncio
import pickle
from copy import copy
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.exceptions import ScrapyDeprecationWarning
from scrapy.http import Headers
from scrapy.pipelines import ItemPipelineManager
from scrapy.spidermiddlewares.referer import DefaultReferrerPolicy
from twisted.internet.defer import Deferred, succeed

from site_spider.engine.callback_guard import CallbackCancelled, SafeItemProcessor
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


# --- items pass the pipelines as in Scrapy ---------------------------------------------------------------


class Same:
    def process_item(self, item: Any) -> Any:
        return item


class Other:
    def process_item(self, item: Any) -> Any:
        return {**item, "other": True}


class Later:
    async def process_item(self, item: Any) -> Any:
        await asyncio.sleep(0)
        item["later"] = True
        return item


class WithSpider:
    def process_item(self, item: Any, spider: Any) -> Any:
        return {**item, "spider": spider}


class WithDeferred:
    def process_item(self, item: Any) -> Deferred[Any]:
        return succeed({**item, "deferred": True})


class Nothing:
    def process_item(self, item: Any) -> None:
        return None


class Cancelled:
    def process_item(self, item: Any) -> Any:
        raise asyncio.CancelledError


CRAWLER: Any = SimpleNamespace(spider="spider")


@pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")
@pytest.mark.parametrize(
    "pipelines", [[], [Same, Same], [Other, Same], [Later, Other], [Same, WithSpider], [Later, Nothing, Same]], ids=str
)
def test_items_come_out_as_from_scrapy(pipelines: list[type]) -> None:
    """In order, awaited where a pipeline has to be, with the spider where it wants that."""

    def passed(kind: type[ItemPipelineManager]) -> Any:
        manager = kind(*(pipeline() for pipeline in pipelines), crawler=CRAWLER)
        return asyncio.run(manager.process_item_async({"a": 1}))

    assert passed(SafeItemProcessor) == passed(ItemPipelineManager)


def test_the_item_itself_comes_out() -> None:
    """What a pipeline hands on is not copied."""
    item = {"a": 1}
    assert asyncio.run(SafeItemProcessor(Same(), crawler=CRAWLER).process_item_async(item)) is item


def test_a_pipeline_that_returns_a_deferred_is_named() -> None:
    """As Scrapy does, which will not take them for ever."""
    work = SafeItemProcessor(WithDeferred(), crawler=CRAWLER).process_item_async({})
    with pytest.warns(ScrapyDeprecationWarning, match=r"WithDeferred\.process_item returned a Deferred"):
        assert asyncio.run(work) == {"deferred": True}


def test_a_stray_cancelled_error_is_an_ordinary_one() -> None:
    """Else the items that follow would vanish."""
    with pytest.raises(CallbackCancelled):
        asyncio.run(SafeItemProcessor(Cancelled(), crawler=CRAWLER).process_item_async({}))
