"""Spiders of one's own: what they know of a page, mixins with Scrapy's, seeds that are no URL, seed meta."""

from __future__ import annotations

import asyncio
import copy
import gzip
import inspect
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any, Self, get_type_hints
from unittest.mock import Mock

import pytest
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.http import HtmlResponse, Response, TextResponse
from scrapy.http.request import NO_CALLBACK
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, CSVFeedSpider, Rule, SitemapSpider, XMLFeedSpider
from scrapy.utils.defer import deferred_from_coro
from twisted.internet.defer import Deferred, inlineCallbacks
from twisted.python.failure import Failure

from site_spider import SeedSpider, page_of, to_topic
from site_spider import settings as project
from site_spider.adapters.local.log import LocalSeedLog
from site_spider.errors import ConfigError
from tests.in_process import engine
from tests.in_process.engine import crawl, page


def test_the_package_is_light_until_a_name_is_asked_for() -> None:
    """Tools that only want a setting or a pure module do not load Scrapy."""
    code = (
        "import sys, site_spider; assert 'scrapy' not in sys.modules; "
        "from site_spider import SeedSpider, Result, page_of; assert 'scrapy' in sys.modules; "
        "print(SeedSpider.__name__, Result.__name__, page_of.__name__)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["SeedSpider", "Result", "page_of"]


def test_a_name_that_is_not_there_is_said() -> None:
    with pytest.raises(ImportError, match="cannot import name 'SeedSpyder'"):
        from site_spider import SeedSpyder  # type: ignore[attr-defined] # noqa: F401


def test_page_of_a_saved_page_is_known_by_its_url() -> None:
    """In a test of one's own there is no seed."""
    response = HtmlResponse("http://h.test/b?y=1&x=2", body=b"<p>")
    same = HtmlResponse("http://h.test/b?x=2&y=1", request=Request("http://h.test/b?x=2&y=1"))
    known = page_of(response)
    assert (known.url, known.task_id, known.depth, dict(known.meta)) == (response.url, None, 0, {})
    assert known.url_id == page_of(same).url_id
    assert known.parent is None


@pytest.mark.parametrize("name", ["punycode", "PunyCode", "idna", "undefined"])
@pytest.mark.parametrize("said", ["text/html; charset={}", "text/html"])
def test_a_page_whose_encoding_is_none_of_pages_is_read_as_one_that_says_nothing(
    tmp_path: Path, name: str, said: str
) -> None:
    """Punycode takes Python hours for a page of megabytes, in which the event loop would stand."""

    class Reader(SeedSpider):
        def parse(self, response: Response) -> Any:
            assert isinstance(response, TextResponse)
            yield {"text": response.css("p::text").get()}

    body = f'<meta charset="{name}"><p>caf\u00e9-'
    engine.ANSWERS["/"] = lambda request: page(request, body, Content_Type=said.format(name))
    crawled = crawl(tmp_path, [{"url": "http://host.test/"}], Reader)
    assert [item["text"] for item in crawled.items.values()] == ["caf\u00e9-"]


@pytest.mark.parametrize("links_to", ["memory", "kafka"])
def test_page_of_knows_the_seed_of_a_page_and_of_its_links(tmp_path: Path, links_to: str) -> None:
    """The seed's meta is on the documents of links, too, also of those that leave as seeds."""
    known: dict[str, Any] = {}

    class Knowing(SeedSpider):
        async def parse(self, response: Response) -> list[Any]:
            known[response.url] = page_of(response)
            return await super().parse(response)

    engine.ANSWERS["/list"] = lambda request: page(request, "<a href=/leaf>x</a>")
    meta = {"url_id": "list", "task_id": "t", "colour": "red"}
    found = crawl(tmp_path, [{"url": "http://h.test/list", "meta": meta}], Knowing, SITE_LINKS_TO=links_to)
    assert found.seeds["consumed"] == (1 if links_to == "memory" else 2)
    seed, leaf = known["http://h.test/list"], known["http://h.test/leaf"]
    assert (seed.url_id, seed.task_id, seed.depth, seed.parent) == ("list", "t", 0, None)
    assert (leaf.task_id, leaf.depth, leaf.parent, leaf.seed_url_id) == ("t", 1, "list", "list")
    assert seed.meta == leaf.meta == {"colour": "red"}
    assert found.documents[leaf.url_id]["meta"] == {"colour": "red"}


class SendsAway(SeedSpider):
    def parse(self, response: Response) -> Iterator[Any]:
        yield to_topic(Request("http://other.test/1"), "details", not_extract=True)
        yield to_topic(Request("http://other.test/2", callback=self.parse_detail), "details")

    def parse_detail(self, response: Response) -> Iterator[Any]:
        yield {"url": response.url}


def test_a_spider_sends_requests_to_the_topic_of_another(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What no seed can say is crawled by itself, and that is said."""
    seed = {"url": "http://h.test/list", "meta": {"url_id": "list", "colour": "red"}}
    found = crawl(tmp_path, [seed], SendsAway)
    assert {document["url"] for document in found.documents.values()} == {"http://h.test/list", "http://other.test/2"}
    (message,) = LocalSeedLog(tmp_path).read("details")
    sent = json.loads(message.value or b"")
    assert (message.key, sent["url"]) == (b"other.test", "http://other.test/1")
    assert sent["meta"].items() >= {"parent_url_id": "list", "colour": "red", "NotExtract": True}.items()
    assert [line for line in caplog.messages if line.startswith("A request to topic details is crawled here")]
    with pytest.raises(ConfigError, match="to_topic is 'a b', but a topic's name has"):
        to_topic(Request("http://other.test/"), "a b")


def test_named_keys_of_a_seeds_meta_reach_the_requests_of_its_tree(tmp_path: Path) -> None:
    """And no others; a request of the spider's that has the key keeps it."""
    metas: dict[str, Any] = {}

    class Watching(SeedSpider):
        def parse(self, response: Response) -> Iterator[Any]:  # type: ignore[override]
            metas[response.url] = response.meta
            if response.url.endswith("/list"):
                yield Request("http://h.test/leaf")
                yield Request("http://h.test/plain", meta={"playwright": False})

    seed = {"url": "http://h.test/list", "meta": {"playwright": True, "colour": "red"}}
    crawl(tmp_path, [seed], Watching, SITE_SEED_META_KEYS="playwright,unknown")
    assert {url.rpartition("/")[2]: meta["playwright"] for url, meta in metas.items()} == {
        "list": True,
        "leaf": True,
        "plain": False,
    }
    assert not any("colour" in meta for meta in metas.values())


# --- mixins with Scrapy's own spiders ----------------------------------------------------------------


class RuleSpider(SeedSpider, CrawlSpider):
    name = "rules"
    rules = (Rule(LinkExtractor(allow="/item/"), callback="parse_item"),)

    def parse_item(self, response: Response) -> dict[str, Any]:
        return {"at": response.url}


def test_crawl_spider_follows_its_rules(tmp_path: Path) -> None:
    """Each page has its result, also one whose download fails; items come from the rule's callback.

    NotExtract is the producer's word, whatever the spider.
    """
    engine.ANSWERS["/"] = lambda request: page(request, "<a href=/item/1>1</a><a href=/item/2>2</a><a href=/o>o</a>")

    def broken(_request: Request) -> Response:
        raise RuntimeError("it fails")

    engine.ANSWERS["/item/2"] = broken
    engine.ANSWERS["/closed"] = lambda request: page(request, "<a href=/item/3>3</a>")
    closed = {"url": "http://h.test/closed", "meta": {"NotExtract": True}}
    found = crawl(tmp_path, [{"url": "http://h.test/"}, closed], RuleSpider)
    assert [item["at"] for item in found.items.values()] == ["http://h.test/item/1"]
    said = {document["url"]: document["description"] for document in found.documents.values()}
    assert said == {
        "http://h.test/": None,
        "http://h.test/closed": None,
        "http://h.test/item/1": None,
        "http://h.test/item/2": "RuntimeError: it fails",
    }


class FeedSpider(SeedSpider, XMLFeedSpider):
    name = "feed"
    itertag = "item"

    def parse_node(self, response: Response, selector: Any) -> dict[str, Any]:
        return {"name": selector.xpath("title/text()").get()}


class TableSpider(SeedSpider, CSVFeedSpider):
    name = "table"

    def parse_row(self, response: Response, row: dict[str, str]) -> dict[str, Any]:
        return {"item_id": row["id"], "name": row["name"]}


@pytest.mark.parametrize(
    ("spider", "body", "items"),
    [
        (
            FeedSpider,
            b"<rss><item><title>a</title></item><item><title>b</title></item></rss>",
            {"f-1": "a", "f-2": "b"},
        ),
        (TableSpider, b"id,name\n7,seven\n8,eight\n", {"7": "seven", "8": "eight"}),
    ],
)
def test_feed_spiders_give_nodes_and_rows(tmp_path: Path, spider: Any, body: bytes, items: dict[str, str]) -> None:
    """In their order, or under ids of their own."""
    engine.ANSWERS["/feed"] = lambda request: TextResponse(request.url, body=body)
    found = crawl(tmp_path, [{"url": "http://h.test/feed", "meta": {"url_id": "f"}}], spider)
    assert {key: item["name"] for key, item in found.items.items()} == items
    assert found.documents["f"]["description"] is None


class ShopSpider(SeedSpider, SitemapSpider):
    name = "shop"
    sitemap_rules = [("/product/", "parse_product"), ("/list", "parse")]  # noqa: RUF012
    sitemap_follow = ["/products"]  # noqa: RUF012

    def parse_product(self, response: Response) -> dict[str, Any]:
        return {"item_id": response.url.rpartition("/")[2]}


class SwappedShopSpider(SitemapSpider, SeedSpider):
    name = "swapped"
    sitemap_rules = ShopSpider.sitemap_rules
    sitemap_follow = ShopSpider.sitemap_follow
    parse_product = ShopSpider.parse_product


def sitemap(root: str, *paths: str) -> bytes:
    tag = {"urlset": "url", "sitemapindex": "sitemap"}[root]
    entries = "".join(f"<{tag}><loc>http://h.test{path}</loc></{tag}>" for path in paths)
    return f'<?xml version="1.0"?><!-- of the shop --><{root} xmlns="s">{entries}</{root}>'.encode()


def serve_sitemaps() -> None:
    def answer(body: bytes) -> Any:
        return lambda request: TextResponse(request.url, body=body)

    engine.ANSWERS["/robots.txt"] = answer(b"Sitemap: http://h.test/sitemap_index.xml")
    engine.ANSWERS["/sitemap_index.xml"] = answer(sitemap("sitemapindex", "/products.xml.gz", "/news.xml"))
    products = sitemap("urlset", "/product/1", "/product/2", "/list", "/other")
    engine.ANSWERS["/products.xml.gz"] = lambda request: Response(request.url, body=gzip.compress(products))
    engine.ANSWERS["/list"] = lambda request: page(request, "<a href=/leaf>x</a>")


@pytest.mark.parametrize("spider", [ShopSpider, SwappedShopSpider])
def test_a_seed_that_names_sitemaps_leads_to_the_pages_of_their_rules(tmp_path: Path, spider: type[SeedSpider]) -> None:
    """By an index and a packed sitemap; other entries are left out, and each page has its result."""
    serve_sitemaps()
    found = crawl(tmp_path, [{"url": "http://h.test/robots.txt"}], spider, DEPTH_LIMIT=0)
    assert set(found.items) == {"1", "2"}
    paths = {document["url"].removeprefix("http://h.test") for document in found.documents.values()}
    sitemaps = {"/robots.txt", "/sitemap_index.xml", "/products.xml.gz"}
    assert paths == {*sitemaps, "/product/1", "/product/2", "/list", "/leaf"}
    assert {document["description"] for document in found.documents.values()} == {None}


def test_a_seed_that_is_no_sitemap_is_parsed_as_ever(tmp_path: Path) -> None:
    """And a sitemap whose seed says NotExtract leads nowhere."""
    serve_sitemaps()
    seeds = [
        {"url": "http://h.test/list", "meta": {"url_id": "list"}},
        {"url": "http://h.test/sitemap_index.xml", "meta": {"url_id": "map", "NotExtract": True}},
        {"url": "http://h.test/missing.xml", "meta": {"url_id": "missing"}},
    ]
    engine.ANSWERS["/missing.xml"] = lambda request: page(request, sitemap("urlset", "/p").decode(), 404)
    found = crawl(tmp_path, seeds, ShopSpider)
    assert {document["url"].rpartition("/")[2] for document in found.documents.values()} == {
        *("list", "leaf", "sitemap_index.xml", "missing.xml")
    }


def test_pages_of_a_long_sitemap_can_leave_as_seeds(tmp_path: Path) -> None:
    """With the callback of their rule, so that memory stays bounded; it is read beside the event loop."""
    paths = [f"/product/{number}" for number in range(40)]
    body = sitemap("urlset", *paths) + b" " * 300_000
    engine.ANSWERS["/long.xml"] = lambda request: TextResponse(request.url, body=body)
    found = crawl(tmp_path, [{"url": "http://h.test/long.xml"}], ShopSpider, SITE_LINKS_TO="kafka")
    assert len(found.items) == 40
    assert found.seeds["consumed"] == 41


# --- seeds that are no URL ---------------------------------------------------------------------------


class ForumSpider(SeedSpider):
    name = "forum"

    def request_from_seed(self, seed: Any) -> Any:
        number = seed.meta["forum"]
        assert seed["meta"] is seed.meta
        if number == 0:
            raise ValueError("no forum 0")
        if number == 1:
            return None
        if number == 2:
            return Request("file:///etc/hostname")
        return Request(f"http://h.test/forum/{number}", callback=self.parse_forum, cb_kwargs={"number": number})

    def parse_forum(self, response: Response, number: int) -> Iterator[Any]:
        yield {"item_id": f"forum-{number}", "depth": page_of(response).depth}


def forum(number: int, **meta: Any) -> dict[str, Any]:
    return {"meta": {"forum": number, **meta}}


def test_a_seed_without_a_url_becomes_the_request_of_the_spider(tmp_path: Path) -> None:
    """Its document has an id of its meta, and holds it. Without a request it is a dead letter with the reason."""
    bad = [forum(0), forum(1), forum(2), {"meta": {}}, {"task_id": "x"}]
    good = [forum(7), forum(8, url_id="mine", task_id="t"), {"url": "http://h.test/x", "meta": {"url_id": "x"}}]
    found = crawl(tmp_path, [*bad, *good], ForumSpider)
    assert set(found.items) == {"forum-7", "forum-8"}
    assert found.documents["mine"]["url"] == "http://h.test/forum/8"
    assert found.documents["mine"]["task_id"] == "t"
    (seventh,) = (d for d in found.documents.values() if d["url"] == "http://h.test/forum/7")
    assert seventh["meta"] == {"forum": 7}
    reasons = [dict(letter.headers)["error"].decode() for letter in found.dead_letters]
    assert [json.loads(letter.value or b"") for letter in found.dead_letters] == bad
    assert "request_from_seed of the spider raised ValueError('no forum 0')" in reasons[0]
    assert "must give a Request" in reasons[1]
    assert "scheme 'file' is not allowed" in reasons[2]
    assert all("url" in reason and "missing" in reason for reason in reasons[3:])
    again = crawl(tmp_path, [forum(7)], ForumSpider)
    assert set(again.documents) == set(found.documents)
    [letter] = crawl(tmp_path / "usual", [forum(7)]).dead_letters  # where no spider makes requests of seeds
    assert dict(letter.headers)["error"].startswith(b"url: missing; ")


class Upper:
    """An item pipeline as people write them."""

    def process_item(self, item: Any) -> Any:
        return {name: value.upper() for name, value in item.items()} if isinstance(item, dict) else item


class Marking:
    """A downloader middleware of one's own."""

    def process_response(self, request: Request, response: Response) -> Response:
        return response.replace(headers={**response.headers, "X-Mark": "mine"})


class OwnParts(SeedSpider):
    name = "own_parts"
    custom_settings = {  # noqa: RUF012
        "ITEM_PIPELINES": {f"{__name__}.Upper": 300},
        "DOWNLOADER_MIDDLEWARES": {f"{__name__}.Marking": 543},
        "EXTENSIONS": {"scrapy.extensions.logstats.LogStats": None},
    }

    def parse(self, response: Response) -> Iterator[Any]:  # type: ignore[override]
        yield {"title": "quiet"}


def test_parts_of_ones_own_stand_beside_those_of_the_project(tmp_path: Path) -> None:
    """A pipeline in custom_settings does not take away the one that writes, nor a middleware the retries."""
    tries: list[int] = []

    def shaky(request: Request) -> Response:
        tries.append(1)
        return page(request, "no", 503) if len(tries) == 1 else page(request)

    engine.ANSWERS["/p"] = shaky
    found = crawl(tmp_path, [{"url": "http://h.test/p", "meta": {"url_id": "p"}}], OwnParts)
    assert found.items["p-1"]["title"] == "QUIET"
    assert found.documents["p"]["retries"] == 1
    assert "X-Mark" in found.documents["p"]["headers"]


# --- what spiders of Scrapy do -----------------------------------------------------------------------


class CopiesMeta(SeedSpider):
    def parse(self, response: Response) -> Iterator[Any]:  # type: ignore[override]
        yield {"at": response.url, "meta": response.meta}
        yield Request("http://h.test/leaf", callback=self.parse_leaf, meta=copy.deepcopy(response.meta))

    def parse_leaf(self, response: Response) -> Iterator[Any]:
        yield {"at": response.url}


def test_a_link_with_a_deep_copy_of_the_meta_of_its_page_is_a_page_of_its_own(tmp_path: Path) -> None:
    """Its result and its item took the place of those of the page."""
    found = crawl(tmp_path, [{"url": "http://h.test/list", "meta": {"url_id": "list"}}], CopiesMeta)
    assert sorted(item["at"] for item in found.items.values()) == ["http://h.test/leaf", "http://h.test/list"]
    assert sorted(document["url"] for document in found.documents.values()) == [
        "http://h.test/leaf",
        "http://h.test/list",
    ]
    assert found.seeds["completed_with_result"] == 1
    assert found.items["list-1"]["meta"]["depth"] == 0  # with words for what the crawl has put there


class CopiesWithoutCounts(CopiesMeta):
    def parse(self, response: Response) -> Iterator[Any]:  # type: ignore[override]
        meta = {key: value for key, value in response.meta.items() if not key.startswith(("redirect_", "retry_"))}
        yield {"at": response.url}
        yield Request("http://h.test/leaf", callback=self.parse_leaf, meta=meta)


def test_a_link_with_the_meta_of_a_redirected_page_but_its_counts_is_a_page_of_its_own(tmp_path: Path) -> None:
    """Scrapy warns of who copies these, too: without them it was taken for another attempt at the page."""
    engine.ANSWERS["/moved"] = lambda request: page(request, "", 302, Location="http://h.test/there")
    found = crawl(tmp_path, [{"url": "http://h.test/moved"}], CopiesWithoutCounts)
    assert sorted(item["at"] for item in found.items.values()) == ["http://h.test/leaf", "http://h.test/there"]
    assert sorted(document["url"] for document in found.documents.values()) == [
        "http://h.test/leaf",
        "http://h.test/moved",
    ]


class KeepsMeta(SeedSpider):
    def parse(self, response: Response) -> Iterator[Any]:  # type: ignore[override]
        yield {"at": response.url}
        yield Request("http://h.test/leaf", callback=self.parse_leaf, cb_kwargs={"meta": dict(response.meta)})

    def parse_leaf(self, response: Response, meta: dict[str, Any]) -> Iterator[Any]:
        yield {"at": response.url}
        yield Request("http://h.test/last", callback=self.parse_last, meta=meta)

    def parse_last(self, response: Response) -> Iterator[Any]:
        yield {"at": response.url}


class Twice:
    """A downloader middleware that has each page fetched by a request like the first."""

    def process_request(self, request: Request) -> Request | None:
        return None if request.flags else request.replace(flags=["again"], dont_filter=True)


@pytest.mark.parametrize("parts", [{}, {Twice: 500}])
def test_a_link_with_the_meta_of_an_earlier_page_is_a_page_of_its_own(tmp_path: Path, parts: dict[type, int]) -> None:
    """Its result and its item took the place of those of the earlier one."""
    middlewares = {**project.DOWNLOADER_MIDDLEWARES, **parts}
    found = crawl(tmp_path, [{"url": "http://h.test/list"}], KeepsMeta, DOWNLOADER_MIDDLEWARES=middlewares)
    urls = [f"http://h.test/{name}" for name in ("last", "leaf", "list")]
    assert sorted(item["at"] for item in found.items.values()) == urls
    assert sorted(document["url"] for document in found.documents.values()) == urls


class AsksAgain(SeedSpider):
    def parse(self, response: Response) -> Iterator[Any]:  # type: ignore[override]
        if response.text == "captcha":
            yield response.request.replace(dont_filter=True)
        else:
            yield {"text": response.text}


def test_the_result_of_a_seed_is_that_of_its_request_made_again(tmp_path: Path) -> None:
    """As people retry in callbacks: what came at last stood under another id than the seed's."""
    bodies = iter(["captcha", "captcha", "content"])
    engine.ANSWERS["/p"] = lambda request: page(request, next(bodies))
    found = crawl(tmp_path, [{"url": "http://h.test/p", "meta": {"url_id": "p"}}], AsksAgain)
    assert {key: document["body"] for key, document in found.documents.items()} == {"p": "content"}
    assert found.items["p-1"]["text"] == "content"


class Deferring(SeedSpider):
    @inlineCallbacks
    def parse(self, response: Response) -> Iterator[Any]:  # type: ignore[override]
        other = yield deferred_from_coro(self.crawler.engine.download_async(Request("http://h.test/other")))
        if response.url.endswith("/endless"):
            yield Deferred()
        return [{"at": response.url, "other": other.url}]


def test_a_callback_may_give_a_deferred(tmp_path: Path) -> None:
    """It is bounded in time as any other: the seed of one that never fires ends as a failure."""
    seeds = [{"url": f"http://h.test/{name}", "meta": {"url_id": name}} for name in ("list", "endless")]
    found = crawl(tmp_path, seeds, Deferring, SITE_CALLBACK_TIMEOUT_SECONDS=5)
    assert found.items["list-1"]["other"] == "http://h.test/other"
    assert found.documents["list"]["description"] is None
    assert "did not finish within SITE_CALLBACK_TIMEOUT_SECONDS=5" in found.documents["endless"]["description"]


class LooksAtCallbacks(SeedSpider):
    def parse(self, response: Response) -> Iterator[Any]:  # type: ignore[override]
        yield Request("http://h.test/leaf", callback=self.parse_leaf, cb_kwargs={"number": 1})

    def parse_leaf(self, response: Response, number: int) -> Iterator[Any]:
        assert response.request is not None
        callback: Any = response.request.callback
        yield {"name": callback.__name__, "arguments": [*inspect.signature(callback).parameters]}
        yield {"name": response.request.to_dict(spider=self)["callback"], "arguments": [*get_type_hints(callback)]}


def test_the_callback_of_a_request_is_known_by_its_name_and_its_arguments(tmp_path: Path) -> None:
    """To scrapy-poet, which makes the objects that it asks for, and to who logs or keeps a request."""
    found = crawl(tmp_path, [{"url": "http://h.test/list"}], LooksAtCallbacks)
    assert [item["name"] for item in found.items.values()] == ["parse_leaf", "parse_leaf"]
    arguments = [item["arguments"] for item in found.items.values()]
    assert arguments == [["response", "number"], ["response", "number", "return"]]


class HasPartialMethod(SeedSpider):
    def parse(self, response: Response) -> Iterator[Any]:  # type: ignore[override]
        yield Request("http://h.test/leaf", callback=self.parse_leaf)

    def parse_kind(self, response: Response, kind: str) -> Iterator[Any]:
        yield {"kind": kind}

    parse_leaf = partialmethod(parse_kind, kind="leaf")


def test_a_callback_may_be_a_partial_method(tmp_path: Path) -> None:
    """It has a `__self__`, and is no method: none of its requests could be begun."""
    found = crawl(tmp_path, [{"url": "http://h.test/list"}], HasPartialMethod)
    assert [item["kind"] for item in found.items.values()] == ["leaf"]


class AsksLate(SeedSpider):
    left = 3

    def parse(self, response: Response) -> Iterator[Any]:  # type: ignore[override]
        again = response.request and response.request.replace(url="http://h.test/again", callback=self.parse_late)
        later = [
            Request("http://h.test/late", callback=self.parse_late),
            Request("http://h.test/copied", callback=self.parse_late, meta=response.meta),
            again,
        ]
        for request in later:
            asyncio.get_running_loop().call_later(5, self.crawler.engine.crawl, request)
        yield {"at": response.url}

    def parse_late(self, response: Response) -> Iterator[Any]:
        yield {"at": response.url}
        self.left -= 1


def test_a_request_that_comes_after_the_end_of_its_seed_is_fetched_as_one_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A timer runs in the context of the callback that has set it. It was refused with an error of the ledger."""
    found = crawl(tmp_path, [{"url": "http://h.test/list"}], AsksLate, lambda crawler: not crawler.spider.left, 60)
    assert {item["at"].rpartition("/")[2] for item in found.items.values()} == {"list", "late", "copied", "again"}
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


class LogsIn(SeedSpider):
    name = "logs_in"
    logins = 0

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.log_in, signals.spider_opened)
        return spider

    def log_in(self) -> None:
        for number in (1, 2):
            self.crawler.engine.crawl(Request(f"http://h.test/login/{number}", callback=self.logged_in))

    def logged_in(self, response: Response) -> Iterator[Any]:
        yield {"at": response.url}
        self.logins += 1


def test_requests_that_are_given_as_the_spider_opens_are_fetched(tmp_path: Path) -> None:
    """The crawl opens its parts then; Scrapy has a scheduler already."""
    found = crawl(tmp_path, [{"url": "http://h.test/"}], LogsIn, lambda crawler: crawler.spider.logins == 2)
    assert {item["at"] for item in found.items.values()} == {"http://h.test/login/1", "http://h.test/login/2"}


class Renders:
    """Has each page fetched by a service, with a request that knows nothing of the first."""

    def process_request(self, request: Request) -> Request | None:
        if request.url.startswith("http://render.test/"):
            return None
        return Request(f"http://render.test/?url={request.url}", callback=request.callback, errback=request.errback)


class Asks:
    """Does so itself, and gives the answer."""

    crawler: Crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        made = cls()
        made.crawler = crawler
        return made

    async def process_request(self, request: Request) -> Response | None:
        if request.url.startswith("http://render.test/"):
            return None
        return await self.crawler.engine.download_async(
            Request(f"http://render.test/?url={request.url}", callback=self.callback)
        )

    callback: Any = None


class AsksAsScrapySays(Asks):
    callback = staticmethod(NO_CALLBACK)


@pytest.mark.parametrize("service", [Renders, Asks, AsksAsScrapySays])
@pytest.mark.parametrize("throttled", [False, True])
def test_what_a_downloader_middleware_has_fetched_is_the_page(tmp_path: Path, service: type, throttled: bool) -> None:
    """The page ended without a result, and what was fetched was a page of its own; or nobody's."""
    parts = {"DOWNLOADER_MIDDLEWARES": {**project.DOWNLOADER_MIDDLEWARES, service: 500}}
    seed = {"url": "http://h.test/p", "meta": {"url_id": "p"}}
    engine.ANSWERS["/"] = lambda request: page(request, "<p>rendered")
    found = crawl(tmp_path, [seed], AUTOTHROTTLE_ENABLED=throttled, **parts)
    assert [*found.documents] == ["p"]
    said = found.documents["p"]
    assert (said["url"], said["body"], said["description"]) == ("http://h.test/p", "<p>rendered", None)


class Rescues:
    def process_spider_exception(self, response: Response, exception: Exception) -> list[Any]:
        return [{"rescued": str(exception)}]


class RaisesAtOnce(SeedSpider):
    custom_settings = {"SPIDER_MIDDLEWARES": {Rescues: 500}}  # noqa: RUF012

    def parse(self, response: Response) -> list[Any]:  # type: ignore[override]
        if response.url.endswith("/odd"):
            raise ValueError("odd")
        return [Request("http://h.test/broken", errback=self.raise_again)]

    def raise_again(self, failure: Failure) -> None:
        failure.raiseException()


def test_an_error_that_is_handled_or_raised_again_is_no_page_without_a_result(tmp_path: Path) -> None:
    """A spider middleware may have an answer to that of a callback; an errback has none to that of a download."""
    engine.ANSWERS["/broken"] = Mock(side_effect=RuntimeError("it fails"))
    found = crawl(tmp_path, [{"url": "http://h.test/odd"}, {"url": "http://h.test/list"}], RaisesAtOnce)
    assert [item["rescued"] for item in found.items.values()] == ["odd"]
    said = {document["url"].rpartition("/")[2]: document["description"] for document in found.documents.values()}
    assert said == {"odd": None, "list": None, "broken": "RuntimeError: it fails"}


class DownloadsAgain(SeedSpider):
    async def parse(self, response: Response) -> AsyncIterator[Any]:  # type: ignore[override]
        again = await self.crawler.engine.download_async(response.request)
        yield {"bodies": [response.text, again.text]}


@pytest.mark.parametrize("throttled", [False, True])
def test_a_callback_may_download_its_own_request_again(tmp_path: Path, throttled: bool) -> None:
    """It ended the crawl, or the page without a result: Scrapy knows a request under way once."""
    bodies = iter(["captcha", "content"])
    engine.ANSWERS["/p"] = lambda request: page(request, next(bodies))
    seed = {"url": "http://h.test/p", "meta": {"url_id": "p"}}
    found = crawl(tmp_path, [seed], DownloadsAgain, AUTOTHROTTLE_ENABLED=throttled)
    assert found.items["p-1"]["bodies"] == ["captcha", "content"]
    assert (found.documents["p"]["body"], found.documents["p"]["description"]) == ("captcha", None)
    assert found.exit_code == 0
