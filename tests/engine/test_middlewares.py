"""What takes the place of parts of Scrapy does the same."""

from __future__ import annotations

import asyncio
import codecs
import encodings
import gzip
import pickle
from copy import copy
from functools import wraps
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlparse, urlunparse

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Request, Spider, signals
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.downloadermiddlewares.offsite import OffsiteMiddleware
from scrapy.downloadermiddlewares.stats import DownloaderStats
from scrapy.exceptions import IgnoreRequest, NotConfigured, ScrapyDeprecationWarning
from scrapy.http import Headers, HtmlResponse, Response
from scrapy.logformatter import LogFormatter
from scrapy.pipelines import ItemPipelineManager
from scrapy.pipelines.media import FileException, MediaPipeline
from scrapy.responsetypes import responsetypes
from scrapy.spidermiddlewares.referer import DefaultReferrerPolicy
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.request import request_httprepr
from scrapy.utils.test import get_crawler
from twisted.internet.defer import Deferred, succeed

from site_spider.download.answer import class_of
from site_spider.download.bodies import Bodies, SteppedHttpCompression
from site_spider.engine import callback_guard, scrapy_parts
from site_spider.engine.callback_guard import SafeItemProcessor
from site_spider.engine.flow import unchecked
from site_spider.engine.scrapy_parts import (
    _SPELLED,
    LeanCookies,
    LeanDownloaderStats,
    LeanOffsite,
    PageLogFormatter,
    QuickHeaders,
    QuickReferrerPolicy,
    QuickStatsCollector,
    provide,
    quick_request,
    request_bytes,
)
from site_spider.page.url import is_safe, plain_url

URLS = st.builds(
    "http://{}{}".format,
    st.sampled_from(["a", "A.b:81", "[::1]:80", "u:p@h"]),
    st.text("/a;?=&#%é .", max_size=12).map(lambda text: f"/{text}" if text[:1] not in ("/", "?", "") else text),
)
HEADERS = st.dictionaries(
    st.sampled_from(["A", "User-Agent", "x-y"]), st.lists(st.sampled_from(["", "a", "bc"]), min_size=1, max_size=3)
)


@given(URLS)
def test_a_plain_url_is_read_as_urlparse_reads_it(url: str) -> None:
    request = Request(url)
    parsed, plain = urlparse(request.url), plain_url(request.url)
    if plain is not None:
        assert plain.host == parsed.hostname
        assert plain.target == urlunparse(parsed).removeprefix(f"http://{parsed.netloc}")


@pytest.mark.parametrize("content_type", [None, "", "text/html; charset=x", "Image/PNG", "text/xml", "junk"])
@pytest.mark.parametrize("more", [{}, {"Content-Encoding": "gzip"}, {"Content-Disposition": 'a; b="c.xml"'}])
@pytest.mark.parametrize("url", ["http://a/", "http://a/b.html", "http://a/b.gz"])
@pytest.mark.parametrize("body", [b"", b"<html>", b"\x00\x01"])
def test_the_same_class_of_response(content_type: str | None, more: dict[str, str], url: str, body: bytes) -> None:
    headers = Headers(more if content_type is None else {"Content-Type": content_type, **more})
    assert class_of(headers, url, body) is responsetypes.from_args(headers=headers, url=url, body=body)


@pytest.mark.parametrize(
    ("lines", "codings"),
    [
        ([b"gzip,"], ([b"gzip"], [])),
        ([b"gzip, Identity"], ([b"gzip"], [])),
        ([b"", b" br , ,x-gzip"], ([b"x-gzip", b"br"], [])),
        ([b"gzip, x"], ([], [b"gzip", b"x"])),
    ],
)
def test_content_codings_are_a_list(lines: list[bytes], codings: tuple[list[bytes], list[bytes]]) -> None:
    """As RFC 9110 has it: empty members are passed over."""
    assert SteppedHttpCompression.from_crawler(crawler()).split_codings(lines) == codings


@pytest.mark.parametrize("line", ["identity", ""])
def test_an_answer_without_a_coding_stays_as_it_came(line: str) -> None:
    response = Response("http://a.test/", headers={"Content-Encoding": line}, body=b"x")
    answer = SteppedHttpCompression.from_crawler(crawler()).process_response(Request(response.url), response)
    assert asyncio.run(answer) is response  # type: ignore[arg-type]
    assert response.headers["Content-Encoding"] == line.encode()


@pytest.mark.parametrize("end", [None, -9])
async def test_a_large_body_counts_unpacked_also_if_it_is_cut(end: int | None) -> None:
    made, large = crawler(), Bodies(10**9, lambda: True, lambda: None, bool)
    provide(made, large)
    packed = gzip.compress(b"x" * 1_000_000)[:end]
    request = Request("http://a.test/")
    answer = Response(request.url, headers={"Content-Encoding": "gzip"}, body=packed)
    unpacked = await SteppedHttpCompression.from_crawler(made).process_response(request, answer)  # type: ignore[misc]
    assert large.bytes == 4 * len(unpacked.body)


def test_only_scrapys_own_check_is_left_out() -> None:
    """A wrapper of somebody else's may do something."""
    scrapys = CookiesMiddleware.from_crawler(crawler())
    assert unchecked(scrapys.process_request).__func__ is CookiesMiddleware.process_request.__wrapped__  # type: ignore[attr-defined]
    assert unchecked(scrapys.process_request).__self__ is scrapys  # type: ignore[attr-defined]
    made = Wrapped()
    assert unchecked(made.process_request) == made.process_request
    assert unchecked(len) is len


def doubled(function: Any) -> Any:
    @wraps(function)
    def call(*arguments: Any) -> Any:
        return 2 * function(*arguments)

    return call


class Wrapped:
    @doubled
    def process_request(self) -> int:
        return 1


def crawler(attributes: dict[str, Any] | None = None, **settings: Any) -> Any:
    made = get_crawler(type("TrialSpider", (Spider,), attributes or {}), settings)
    made.spider = made._create_spider("trial")
    return made


@given(URLS, HEADERS, st.sampled_from(["GET", "DELETE"]), st.binary(max_size=3))
def test_the_size_of_a_request_is_that_of_what_scrapy_writes(
    url: str, headers: dict[str, list[str]], method: str, body: bytes
) -> None:
    """To the byte: total_request_size is made of it."""
    request = Request(url, headers=headers, method=method, body=body)
    assert request_bytes(request) == len(request_httprepr(request))


@pytest.mark.parametrize("headers", [{}, {"Set-Cookie": "a=b"}, {"X": ["1", "2"]}])
def test_downloads_are_counted_alike(headers: dict[str, Any]) -> None:
    counted = []
    for kind in (DownloaderStats, LeanDownloaderStats):
        made = crawler()
        middleware = kind.from_crawler(made)
        request = Request("http://a/b;c?d", method="POST", body=b"x", headers=headers)
        middleware.process_request(request)
        middleware.process_response(request, Response("http://a/", headers=headers, body=b"y"))
        middleware.process_exception(request, ValueError())
        counted.append(made.stats.get_stats())
    assert counted[0] == counted[1]
    assert len(counted[0]) == 8


def test_who_counts_no_downloads_counts_none() -> None:
    """DOWNLOADER_STATS keeps its meaning, and so does COOKIES_ENABLED."""
    with pytest.raises(NotConfigured):
        LeanDownloaderStats.from_crawler(crawler(DOWNLOADER_STATS=False))
    with pytest.raises(NotConfigured):
        LeanCookies.from_crawler(crawler(COOKIES_ENABLED=False))


STEP = st.tuples(
    st.sampled_from(["http://a.test/", "https://a.test/x", "http://b.test/"]),
    st.sampled_from([None, {"c": "1"}, [{"name": "d", "value": "2", "path": "/x"}]]),
    st.sampled_from([None, "e=f", "g=h; Path=/x", "i=j; Domain=b.test", "c=gone; Max-Age=0"]),
    st.sampled_from([{}, {"cookiejar": 1}, {"cookiejar": 2}, {"dont_merge_cookies": True}]),
    st.booleans(),
)


@settings(deadline=None)  # of all, Scrapy's own may fetch the list of public suffixes with the first cookie
@given(st.lists(STEP, max_size=6))
def test_the_same_cookies_go_out(steps: list[Any]) -> None:
    sent = []
    for kind in (CookiesMiddleware, LeanCookies):
        middleware = kind.from_crawler(crawler())
        sent.append([exchange(middleware, *step) for step in steps])
    assert sent[0] == sent[1]


def exchange(
    middleware: CookiesMiddleware, url: str, cookies: Any, answer: str | None, meta: dict[str, Any], by_hand: bool
) -> Any:
    headers = {"Cookie": "by=hand"} if by_hand else {}
    request = Request(url, cookies=cookies, meta=meta, headers=headers)
    middleware.process_request(request)
    response = Response(url, headers={} if answer is None else {"Set-Cookie": answer})
    assert middleware.process_response(request, response) is response
    return request.headers.getlist("Cookie")


def test_a_jar_is_made_for_the_first_cookie() -> None:
    """Most seeds never get one."""
    middleware = LeanCookies.from_crawler(crawler())
    exchange(middleware, "http://a.test/", None, None, {"cookiejar": 1}, by_hand=False)
    assert not middleware.jars
    exchange(middleware, "http://a.test/", None, "a=b", {"cookiejar": 1}, by_hand=False)
    assert list(middleware.jars) == [1]


@pytest.mark.parametrize("domains", [None, [], ["a.test"]])
@pytest.mark.parametrize("url", ["http://a.test/", "http://b.a.test/", "http://b.test/"])
@pytest.mark.parametrize("meta", [{}, {"allow_offsite": True}])
def test_the_same_requests_are_off_site(domains: list[str] | None, url: str, meta: dict[str, Any]) -> None:
    outcomes = []
    for kind in (OffsiteMiddleware, LeanOffsite):
        made = crawler({} if domains is None else {"allowed_domains": domains})
        middleware = kind.from_crawler(made)
        middleware.spider_opened(made.spider)
        try:
            outcomes.append((middleware.process_request(Request(url, meta=meta)), made.stats.get_stats()))
        except IgnoreRequest as error:
            outcomes.append((str(error), made.stats.get_stats()))
    assert outcomes[0] == outcomes[1]


def test_domains_that_a_spider_allows_later_hold_for_links() -> None:
    """When they are scheduled: one that is dropped as it is fetched gets a failure result."""
    made = crawler()
    middleware = LeanOffsite.from_crawler(made)
    middleware.spider_opened(made.spider)
    made.spider.allowed_domains = ["a.test"]
    told = {"request": Request("http://b.test/"), "spider": made.spider, "dont_log": IgnoreRequest}
    found = made.signals.send_catch_log(signals.request_scheduled, **told)
    assert [type(answer.value) for who, answer in found if who == middleware.request_scheduled] == [IgnoreRequest]


def test_few_domains_that_are_off_site_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page may link to 10,000 hosts that nobody has heard of: each took 150 bytes until the process ended."""
    monkeypatch.setattr(scrapy_parts, "_MOST_DOMAINS", 3)
    made = crawler({"allowed_domains": ["a.test"]})
    middleware = LeanOffsite.from_crawler(made)
    middleware.spider_opened(made.spider)
    for number in range(10):
        with pytest.raises(IgnoreRequest):
            middleware.process_request(Request(f"http://b{number}.test/"))
    assert len(middleware.domains_seen) <= 3
    assert made.stats.get_value("offsite/filtered") == 10


def encoding_of(name: str) -> str:
    return HtmlResponse("http://a.test/", headers={"Content-Type": f"text/html; charset={name}"}, body=b"x").encoding


@pytest.mark.parametrize("name", ["UTF-8", "latin1", "gb_2312-80", "Windows-1251", "koi8-u", "cp720", "shift_jis"])
def test_encodings_are_known_by_their_names(name: str) -> None:
    translated = {"latin1": "cp1252", "gb_2312-80": "gb18030", "shift_jis": "cp932"}.get(name, name)
    assert encoding_of(name) == codecs.lookup(translated).name


def test_a_name_that_a_page_makes_up_is_kept_nowhere() -> None:
    """Python keeps of each that it knows no such encoding; a header has room for 64 KB of name."""
    found = encoding_of("no-encoding")
    before = len(encodings._cache)  # type: ignore[attr-defined]
    assert {encoding_of(f"no-encoding-{number}") for number in range(300)} == {found}
    assert len(encodings._cache) == before  # type: ignore[attr-defined]


def test_statistics_are_kept_alike() -> None:
    kept = []
    for kind in (MemoryStatsCollector, QuickStatsCollector):
        made = crawler(STATS_DUMP=False)
        stats = kind(made)
        stats.inc_value("a")
        stats.inc_value("a", 2, start=5)
        stats.max_value("b", 3)
        stats.min_value("c", 4)
        stats.set_value("d", stats.get_value("nothing", "else"))
        stats.close_spider(reason="done")
        kept.append((stats.get_stats(), stats.spider_stats))
    assert kept[0] == kept[1]


@pytest.mark.parametrize(
    ("settings", "is_written"),
    [
        ({"LOG_LEVEL": "DEBUG"}, True),
        ({"LOG_LEVEL": 10}, True),
        ({"LOG_LEVEL": "info"}, False),
        ({"LOG_LEVEL": "DEBUG", "LOG_ENABLED": False}, False),
    ],
)
def test_a_page_has_its_log_line_where_debug_lines_are_written(settings: dict[str, Any], is_written: bool) -> None:
    """As Scrapy's; nowhere else is it made."""
    made = crawler(**settings)
    request = Request("http://a/")
    response = Response("http://a/", request=request)
    ours, scrapys = PageLogFormatter.from_crawler(made), LogFormatter()
    assert ours.crawled(request, response, made.spider) == (
        scrapys.crawled(request, response, made.spider) if is_written else None
    )
    assert ours.scraped({}, response, made.spider) == (
        scrapys.scraped({}, response, made.spider) if is_written else None
    )


# --- headers, requests and referrers


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
    try:
        if name == "pop":
            return headers.pop(key, None)
        return getattr(headers, name)(key, value)
    except (TypeError, AttributeError, KeyError) as error:
        return type(error)


@given(st.lists(CALLS, max_size=12), st.sampled_from(["utf-8", "latin-1"]))
def test_every_call_has_the_outcome_of_scrapys(calls: list[tuple[str, Any, Any]], encoding: str) -> None:
    quick, stock = QuickHeaders(encoding=encoding), Headers(encoding=encoding)
    for name, key, value in calls:
        assert done(quick, name, key, value) == done(stock, name, key, value)
        assert (key in quick, quick.getlist(key)) == (key in stock, stock.getlist(key))
    assert list(dict.items(quick)) == list(dict.items(stock))
    assert quick.to_string() == stock.to_string()


def test_names_are_spelled_as_scrapy_spells_them() -> None:
    assert {key: Headers().normkey(key) for key in _SPELLED} == _SPELLED


def test_they_are_copied_and_stored_with_their_request() -> None:
    request = Request("http://a.test/")
    request.headers = QuickHeaders({"Cookie": "a"})
    assert copy(request.headers) == pickle.loads(pickle.dumps(request.headers)) == request.headers
    assert request.replace(url="http://b.test/").headers == request.headers
    assert request.to_dict()["headers"] == {b"Cookie": [b"a"]}


ODD_URLS = st.builds(
    "{}://{}{}".format,
    st.sampled_from(["http", "https", "HTTPS", "ftp", "file"]),
    st.sampled_from(["a.test", "a.test:80", "a.test:443", "u:p@a.test", "A.test:81", ""]),
    st.text("/a?#%é ", max_size=6).map(lambda text: f"/{text}"),
)


@given(ODD_URLS, ODD_URLS)
def test_a_referrer_is_scrapys(response_url: str, request_url: str) -> None:
    expected = DefaultReferrerPolicy().referrer(response_url, request_url)
    assert QuickReferrerPolicy().referrer(response_url, request_url) == expected


@given(ODD_URLS)
def test_a_request_is_scrapys(url: str) -> None:
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


class Files(MediaPipeline):
    """Those whose name is `bad` cannot be had."""

    def get_media_requests(self, item: Any, info: Any) -> list[Request]:
        return [Request(f"http://files.test/{item['file']}")]

    def media_to_download(self, request: Request, info: Any, *, item: Any = None) -> Any:
        ASKED.append(item["file"])
        if item["file"] == "bad":
            raise FileException
        return {"url": request.url}

    def item_completed(self, results: Any, item: Any, info: Any) -> Any:
        return {**item, "has_file": results[0][0]}

    file_path = media_downloaded = media_failed = None  # type: ignore[assignment]


ASKED: list[str] = []


@pytest.mark.parametrize(("files", "asked"), [("a b a c a b", "a b c b"), ("bad bad a b bad", "bad a b bad")])
async def test_the_last_files_are_remembered(monkeypatch: pytest.MonkeyPatch, files: str, asked: str) -> None:
    """Scrapy's pipelines remember all, for as long as the process lives: months, and a failure in an outage too."""
    monkeypatch.setattr(callback_guard, "_MOST_FILES", 2)
    ASKED.clear()
    made = crawler()
    processor = SafeItemProcessor(Files(crawler=made), Same(), crawler=made)
    await processor.open_spider_async()
    for file in files.split():
        assert (await processor.process_item_async({"file": file}))["has_file"] is (file != "bad")
    assert " ".join(ASKED) == asked


CRAWLER: Any = SimpleNamespace(spider="spider")


@pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")
@pytest.mark.parametrize(
    "pipelines", [[], [Same, Same], [Other, Same], [Later, Other], [Same, WithSpider], [Later, Nothing, Same]], ids=str
)
def test_items_come_out_as_from_scrapy(pipelines: list[type]) -> None:
    def passed(kind: type[ItemPipelineManager]) -> Any:
        manager = kind(*(pipeline() for pipeline in pipelines), crawler=CRAWLER)
        return asyncio.run(manager.process_item_async({"a": 1}))

    assert passed(SafeItemProcessor) == passed(ItemPipelineManager)


def test_the_item_itself_comes_out() -> None:
    item = {"a": 1}
    assert asyncio.run(SafeItemProcessor(Same(), crawler=CRAWLER).process_item_async(item)) is item


def test_a_pipeline_that_returns_a_deferred_is_named() -> None:
    """As Scrapy does, which will not take them for ever."""
    work = SafeItemProcessor(WithDeferred(), crawler=CRAWLER).process_item_async({})
    with pytest.warns(ScrapyDeprecationWarning, match=r"WithDeferred\.process_item returned a Deferred"):
        assert asyncio.run(work) == {"deferred": True}
