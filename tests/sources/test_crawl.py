"""A crawl by sources: the real engine, seed log and sink, and a scripted site."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from scrapy import Request
from scrapy.http import Response, TextResponse

from site_spider.adapters.local.log import LocalSeedLog
from site_spider.service.seed_producer import SeedProducer
from site_spider.sources.extraction import Extracted, FoundLink
from site_spider.sources.model import Source
from site_spider.spiders.crawl_spider import SeedSpider, requests_of_source
from tests.in_process.engine import ANSWERS, Crawled, crawl, page, settings_for
from tests.in_process.extraction import in_a_thread
from tests.tasks.test_end_in_crawl import told
from tests.tasks.test_pause_and_cancel import declare, desk

SHOP = """
match: {hosts: [shop.test]}
request:
  headers: {X-Shop: "1", Accept-Language: fr}
  cookies: {consent: "yes"}
follow:
  - {css: .detail, allow: ['/book/']}
pagination: {css: a.next}
items:
  - urls: ['/book/']
    fields:
      title: {css: title, required: true}
"""
ASKED: list[Request] = []


class Recording(SeedSpider):
    name = "recording"
    items: ClassVar[list[Any]] = []

    async def parse(self, response: Response) -> list[Any]:
        output = await super().parse(response)
        type(self).items += [one for one in output if isinstance(one, dict)]
        return output


def shop(request: Request) -> Response:
    """Lists of two books, a link to the next list, and one that no rule meets."""
    ASKED.append(request)
    number = int(parse_qs(urlsplit(request.url).query).get("page", ["1"])[0])
    books = "".join(f'<p class=detail><a href="/book/{number}-{n}">b</a></p>' for n in range(2))
    following = f'<a class=next href="?page={number + 1}">next</a>' if number < 6 else ""
    return page(request, f'{books}{following}<a href="/imprint">i</a>')


def book(request: Request) -> Response:
    ASKED.append(request)
    return page(request, f"<title>{urlsplit(request.url).path}</title><a href='/other'>x</a>")


@pytest.fixture(autouse=True)
def site() -> None:
    ANSWERS["/shop"] = shop
    ANSWERS.update({f"/book/{number}-{n}": book for number in range(1, 7) for n in range(2)})
    ASKED.clear()
    Recording.items.clear()


def run(folder: Path, sources: dict[str, str], *seeds: dict[str, Any], **settings: Any) -> Crawled:
    directory = folder / "sources"
    directory.mkdir(exist_ok=True, parents=True)
    for name, text in sources.items():
        (directory / f"{name}.yaml").write_text(text)
    with in_a_thread():
        return crawl(folder / "data", seeds, **{"spider": Recording, "SITE_SOURCES_DIR": str(directory), **settings})


def paths(crawled: Crawled) -> set[str]:
    return {document["url"].removeprefix("http://shop.test") for document in crawled.documents.values()}


def test_links_pagination_items_headers_and_cookies(tmp_path: Path) -> None:
    """Six lists, though the depth limit is one: the pages of a list have one depth.

    What the seed says of its headers counts more than what the source does.
    """
    seed = {"url": "http://shop.test/shop", "headers": {"Accept-Language": "de"}}
    crawled = run(tmp_path, {"shop": SHOP}, seed, DEPTH_LIMIT=1)
    books = {f"/book/{number}-{n}" for number in range(1, 7) for n in range(2)}
    assert paths(crawled) == {"/shop", *books, *(f"/shop?page={n}" for n in range(2, 7))}
    assert {item["title"] for item in Recording.items} == books
    assert len(Recording.items) == len(books)
    assert {document["depth"] for document in crawled.documents.values()} == {0, 1}
    assert {document["description"] for document in crawled.documents.values()} == {None}
    assert {request.headers["X-Shop"] for request in ASKED} == {b"1"}
    assert {request.headers["Cookie"] for request in ASKED} == {b"consent=yes"}
    assert ASKED[0].headers["Accept-Language"] == b"de"
    languages = {urlsplit(request.url).path: request.headers["Accept-Language"] for request in ASKED}
    assert languages["/book/1-0"] == b"fr"


@pytest.mark.parametrize("links_to", ["memory", "kafka"])
def test_secrets_of_a_source_go_to_its_hosts_and_the_seeds_alone(tmp_path: Path, links_to: str) -> None:
    """A seed may name it for all of its tree, and a site may redirect or link to anywhere."""
    asked: dict[str, Request] = {}

    def answer(request: Request) -> Response:
        asked[request.url] = request
        if request.url.endswith("/away"):
            return page(request, status=302, Location="http://other.test/far")
        own = '<a href="http://www.shop.test/own"></a>' if "http://shop.test/" in request.url else ""
        ways = {
            "http://foreign.test/list": "http://other.test/back",
            "http://other.test/back": "http://foreign.test/own",
        }
        way = ways.get(request.url, "http://other.test/link")
        return page(request, f'<a href="{way}"></a>{own}')

    ANSWERS.update(dict.fromkeys(("/away", "/list", "/far", "/link", "/own", "/back"), answer))
    source = "match: {hosts: [shop.test, '*.shop.test']}\n"
    source += "request: {headers: {X-Shop: '1', Authorization: Bearer s3cret}, cookies: {session: s3cret}}\n"
    source += "follow: [{}]\n"
    urls = "http://shop.test/away", "http://shop.test/list", "http://foreign.test/list"
    seeds = [{"url": url, "meta": {"source": "shop"}} for url in urls]
    run(tmp_path, {"shop": source}, *seeds, SITE_LINK_SCOPE="any", SITE_LINKS_TO=links_to)
    own = *urls, "http://www.shop.test/own", "http://foreign.test/own"
    foreign = "http://other.test/far", "http://other.test/link", "http://other.test/back"
    assert asked.keys() == {*own, *foreign}
    assert {request.headers["X-Shop"] for request in asked.values()} == {b"1"}
    secrets = {
        url: (b"Authorization" in request.headers, b"Cookie" in request.headers) for url, request in asked.items()
    }
    assert secrets == {**dict.fromkeys(own, (True, True)), **dict.fromkeys(foreign, (False, False))}


def test_links_of_a_retry_that_was_sent_on_have_the_secrets_that_those_of_its_seed_have(tmp_path: Path) -> None:
    """Their host is that of the seed, and perhaps none of the source."""
    asked: list[Request] = []

    async def failing(request: Request) -> Response:
        asked.append(request)
        if len(asked) == 1:
            await asyncio.to_thread(declare, tmp_path / "data", state="paused")
        return page(request, f'<a href="/own/{len(asked)}"></a>', status=503 if len(asked) == 1 else 200)

    ANSWERS["/failing"] = failing
    ANSWERS["/own/2"] = lambda request: asked.append(request) or page(request)
    source = {"shop": "match: {hosts: [shop.test]}\nrequest: {headers: {Authorization: Bearer s3cret}}\n"}
    declare(tmp_path / "data")
    seed = {"url": "http://foreign.test/failing", "meta": {"task_id": "t", "source": "shop"}}
    run(tmp_path, source, seed, SITE_RETRY_PAUSE_SECONDS=30)
    declare(tmp_path / "data")
    assert desk(tmp_path / "data").put_back("t") == 1
    run(tmp_path, source)
    assert [b"Authorization" in one.headers for one in asked] == [True] * 3


@pytest.mark.parametrize("pauses", ["by command", "page_budget"])
def test_a_task_that_is_paused_pauses_its_lists_which_go_on_where_they_were(tmp_path: Path, pauses: str) -> None:
    """Also up to the limit of pages: the third page is the third one still."""
    source = {"shop": SHOP.replace("{css: a.next}", "{css: a.next, limit: 5}").replace(".detail", ".none")}

    def listed(request: Request) -> Response:
        if len(ASKED) == 1 and pauses == "by command":
            declare(tmp_path / "data", state="paused")
        return shop(request)

    ANSWERS["/shop"] = listed
    declare(tmp_path / "data", **({"max_pages": 2} if pauses == "page_budget" else {}))
    seed = {"url": "http://shop.test/shop", "meta": {"task_id": "t"}}
    before = run(tmp_path, source, seed, DOWNLOAD_DELAY=1.0)
    assert (len(before.documents), before.lag) == (2, 0)
    declare(tmp_path / "data")
    assert desk(tmp_path / "data").put_back("t") == 1
    assert paths(run(tmp_path, source)) == {"/shop", *(f"/shop?page={n}" for n in range(2, 6))}


def test_a_rule_that_finds_the_next_page_too_leaves_the_list_its_limit(tmp_path: Path) -> None:
    """It is the third page still, at the depth of the first."""
    rules = SHOP.replace("{css: .detail, allow: ['/book/']}", "{allow: ['/book/', 'page=']}")
    source = {"shop": rules.replace("{css: a.next}", "{css: a.next, limit: 3}")}
    crawled = run(tmp_path, source, {"url": "http://shop.test/shop"}, DEPTH_LIMIT=1)
    assert {path for path in paths(crawled) if "page=" in path} == {"/shop?page=2", "/shop?page=3"}


def test_a_seed_names_its_source(tmp_path: Path) -> None:
    """Also where hosts do not fit. One that there is not is a dead letter; what is no text is not meant."""
    elsewhere = SHOP.replace("shop.test", "elsewhere.test")
    seeds = [
        {"url": "http://shop.test/book/1-0", "meta": {"source": "shop"}},
        {"url": "http://shop.test/book/1-1"},
        {"url": "http://shop.test/book/2-0", "meta": {"source": "shpo"}},
        {"url": "http://shop.test/book/2-1", "meta": {"source": 7}},
    ]
    crawled = run(tmp_path, {"shop": elsewhere}, *seeds, DEPTH_LIMIT=1)
    assert Recording.items == [{"title": "/book/1-0"}]
    reasons = sorted(dict(letter.headers)["error"].decode() for letter in crawled.dead_letters)
    assert reasons == ["meta.source: 'shpo' is not the name of a source; known: shop"]
    assert crawled.lag == 0


def test_without_sources_a_producers_own_meta_means_nothing(tmp_path: Path) -> None:
    crawled = run(tmp_path, {}, {"url": "http://shop.test/book/1-0", "meta": {"source": "newsletter"}})
    assert crawled.dead_letters == []
    assert paths(crawled) == {"/book/1-0", "/other"}


def test_an_item_that_is_left_out_is_said_in_the_result(tmp_path: Path) -> None:
    ANSWERS["/book/1-0"] = lambda request: page(request, "<p>no title")
    crawled = run(tmp_path, {"shop": SHOP}, {"url": "http://shop.test/book/1-0"})
    (document,) = crawled.documents.values()
    assert document["description"] == "not extracted: an item is left out: title is missing"
    assert document["status"] == 200
    assert document["body"] == "<p>no title"


def test_links_go_to_another_topic_as_seeds(tmp_path: Path) -> None:
    """The list completes when they are there, and its task ends: they have left it."""
    with SeedProducer(settings_for(tmp_path / "data"), task_id="t", closes_task=True) as producer:
        producer.send({"url": "http://shop.test/shop"})
    lists = SHOP.replace("allow: ['/book/']", "allow: ['/book/'], to: details, not_extract: true")
    crawled = run(tmp_path, {"shop": lists}, until=told(tmp_path / "data"))
    assert crawled.lag == 0
    assert paths(crawled) == {"/shop", *(f"/shop?page={n}" for n in range(2, 7))}
    seeds = [json.loads(message.value or b"") for message in LocalSeedLog(tmp_path / "data").read("details")]
    assert {seed["url"].rpartition("/")[2] for seed in seeds} == {f"{n}-{m}" for n in range(1, 7) for m in range(2)}
    assert all(seed["meta"]["NotExtract"] and seed["meta"]["task_id"] == "t" for seed in seeds)


@pytest.mark.parametrize("count", [2, 200])
def test_entries_of_a_sitemap_meet_the_rules_that_are_about_urls(tmp_path: Path, count: int) -> None:
    """Those for elements of a page take none; further files need no rule, but where nothing is followed.

    Also to other hosts of the source, as links of its pages.
    """
    hosts = dict.fromkeys(("x", "book", "to"), "shop.test") | {"book/b": "b.test", "book/c": "c.test"}
    books = "".join(
        f"<url><loc>http://{host}/{kind}/{number}</loc></url>"
        for number in range(count)
        for kind, host in hosts.items()
    )
    files = {
        "/robots.txt": "Sitemap: /index",
        "/index": "<sitemapindex><sitemap><loc>/books</loc></sitemap></sitemapindex>",
        "/books": f"<urlset>{books}</urlset>",
    }
    for path, text in files.items():
        ANSWERS[path] = lambda request, text=text: TextResponse(request.url, body=text.encode())  # type: ignore[misc]
    ANSWERS["/shop"] = lambda request: page(request, "<a href=/y>y</a>")
    rules = (
        "match: {hosts: [shop.test, b.test]}\nfollow: [{css: p}, {allow: ['/book/']}, {allow: ['/to/'], to: details}]"
    )
    seed, asks = {"url": "http://shop.test/shop"}, {"SITE_SITEMAPS": "robots", "spider": SeedSpider}
    wanted = {
        "/shop",
        "/index",
        "/books",
        *(f"{book}{n}" for n in range(count) for book in ("/book/", "http://b.test/book/b/")),
    }
    assert paths(run(tmp_path, {"shop": rules}, seed, **asks)) == wanted
    assert len(list(LocalSeedLog(tmp_path / "data").read("details"))) == count
    none = rules.partition("follow")[0] + "follow: []"
    assert paths(run(tmp_path / "none", {"shop": none}, seed, **asks)) == {"/shop"}


def test_the_hosts_of_a_source_have_its_delay(tmp_path: Path) -> None:
    slow = "match: {hosts: [shop.test]}\nrequest: {delay: 3, concurrency: 1}\nfollow: []"
    moments: list[float] = []

    def answer(request: Request) -> Response:
        moments.append(asyncio.get_running_loop().time())
        return page(request)

    ANSWERS.update({f"/{n}": answer for n in range(3)})
    run(
        tmp_path, {"slow": slow}, *({"url": f"http://shop.test/{n}"} for n in range(3)),
        DOWNLOAD_DELAY_JITTER=0,
    )  # fmt: skip
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert len(gaps) == 2
    assert min(gaps) > 2.5


@pytest.mark.parametrize(("said", "by_default", "asked"), [("true", False, True), ("false", True, False)])
def test_a_source_says_whether_robots_txt_counts(tmp_path: Path, said: str, by_default: bool, asked: bool) -> None:
    robots: set[str] = set()

    def answer(request: Request) -> Response:
        robots.add(urlsplit(request.url).hostname or "")
        return TextResponse(request.url, body=b"User-agent: *\nDisallow: /shop")

    ANSWERS["/robots.txt"] = answer
    source = f"match: {{hosts: [shop.test]}}\nrequest: {{robots: {said}}}\nfollow: []"
    seeds = [{"url": f"http://{host}/shop", "meta": {"NotExtract": True}} for host in ("shop.test", "other.test")]
    crawled = run(tmp_path, {"shop": source}, *seeds, ROBOTSTXT_OBEY=by_default)
    assert robots == {"shop.test" if asked else "other.test"}
    forbidden = {d["host"] for d in crawled.documents.values() if "robots" in (d["description"] or "")}
    assert forbidden == robots


def test_links_of_a_page_are_looked_at_some_at_a_time() -> None:
    """Those to 10,000 hosts out of reach took 90 ms in one turn of the event loop."""
    said = {"name": "shop", "match": {"hosts": ["shop.test"]}, "follow": [{}]}
    source = Source.model_validate(said, strict=False)
    urls = [f"http://h{number}.test/" for number in range(500)] + ["http://shop.test/"]
    found = Extracted(links=[FoundLink(url, 0) for url in urls])
    slices = [*requests_of_source(source, found, Response("http://shop.test/list"), "host", "shop.test")]
    assert len(slices) == 11
    assert [request.url for some in slices for request in some] == ["http://shop.test/"]
