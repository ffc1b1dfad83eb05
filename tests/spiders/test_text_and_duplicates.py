"""Crawls whose results say what pages say of themselves, and what of a body is kept."""

from __future__ import annotations

import asyncio
import base64
import gzip
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import DownloadTimeoutError
from scrapy.http import Response

from site_spider import meta_keys
from site_spider.adapters.local.results import RESULTS, LocalResults, LocalStore
from site_spider.contracts.seed_log import Partition
from site_spider.contracts.sink import Answer, Exchange, Record, Verdict
from site_spider.errors import ConfigError, SinkUnavailable
from site_spider.ledger.completion import Job, id_of_page, job_of
from site_spider.ledger.ledger import SeedInFlight
from site_spider.results.document import PAGE_FIELDS, Result
from site_spider.seed.seed import parse_seed
from site_spider.service import config as parts
from site_spider.service.seed_producer import SeedProducer
from site_spider.service.service import SeedService
from site_spider.sources import extraction_process
from site_spider.spiders import conditional, text_and_duplicates
from site_spider.spiders.conditional import StoredPages
from site_spider.spiders.crawl_spider import SeedSpider
from site_spider.spiders.text_and_duplicates import PageTexts
from tests.in_process import engine, extraction
from tests.in_process.engine import ANSWERS, Crawled, crawl, page, produce, settings_for
from tests.in_process.extraction import in_a_thread
from tests.tasks.test_end_in_crawl import events, told
from tests.tasks.test_pause_and_cancel import declare

HOST = "http://a.test"
WORDS = "The harbour of the town lies behind a long wall, and ships come in every morning with fish. "


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stored is found, however slow the disk."""
    monkeypatch.setattr(conditional, "LOOK_UP_SECONDS", 60.0)
    monkeypatch.setattr(text_and_duplicates, "_CANONICAL_SECONDS", 10.0)


def serve(path: str, body: str | bytes, **headers: str) -> None:
    def answer(request: Request) -> Response:
        fields = {"Content-Type": "text/html; charset=utf-8"}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        return Response(request.url, headers=fields, body=body.encode() if isinstance(body, str) else body)

    ANSWERS[path] = answer


def run(folder: Path, *seeds: dict[str, Any], **settings: Any) -> Crawled:
    with in_a_thread():
        return crawl(folder, seeds, **{"SITE_TEXT": "plain", **settings})


def seed(path: str, **meta: Any) -> dict[str, Any]:
    return {"url": HOST + path, "meta": {"task_id": "t", **meta}}


def by_path(crawled: Crawled) -> dict[str, dict[str, Any]]:
    assert crawled.lag == 0
    return {document["url"].removeprefix(HOST): document for document in crawled.documents.values()}


@pytest.mark.parametrize("mode", ["plain", "main"])
def test_a_page_has_its_text_and_a_failure_has_none(tmp_path: Path, mode: str) -> None:
    serve("/a", f"<html><title> Har\nbour </title><nav>Menu</nav><p>{WORDS}<a href=/404>x</a><a href=/404>y</a>")
    ANSWERS["/404"] = lambda request: page(request, WORDS, status=404)
    found = by_path(run(tmp_path, seed("/a"), SITE_TEXT=mode))
    one = [found["/a"][name] for name in ("title", "language", "links_out", "page_notes")]
    assert (one, WORDS.strip() in found["/a"]["text"]) == (["Har bour", "en", 1, None], True)
    assert ("Menu" in found["/a"]["text"]) is (mode == "plain")
    assert {name: found["/404"][name] for name in PAGE_FIELDS} == dict.fromkeys(PAGE_FIELDS)


def test_pages_that_wait_too_long_for_others_have_a_note_and_are_no_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of pages that take nearly as long as they may, each of a host of its own, 60 take the time of a callback."""

    async def slowly(_: object, head: dict[str, Any], _body: bytes) -> dict[str, Any]:
        await asyncio.sleep(1.9 if head["read"] == "plain" else 0)
        return {"robots": [], "notes": [], "text": "read"}

    monkeypatch.setattr(extraction._Worker, "ask", slowly)
    serve("/", "<a href=/a></a>")
    seeds = ({"url": f"http://{number}.test/"} for number in range(100))
    found = run(tmp_path, *seeds, SITE_CALLBACK_TIMEOUT_SECONDS=60).documents.values()
    assert {document["description"] for document in found} == {None}
    assert {document["page_notes"] for document in found if document["text"] is None} == {
        "its text is not read: too many pages waited for that"
    }
    assert (len(found), len([document for document in found if document["text"] == "read"]) > 15) == (200, True)


def test_off_a_document_has_none_of_the_fields(tmp_path: Path) -> None:
    serve("/a", "<title>x</title>")
    assert by_path(crawl(tmp_path, [seed("/a")]))["/a"].keys().isdisjoint(PAGE_FIELDS)


def test_spilled_links_and_seeds_of_other_tiers_have_their_text(tmp_path: Path) -> None:
    serve("/a", "<a href=/b>b</a>")
    serve("/b", f"<title>b</title>{WORDS}")
    found = by_path(run(tmp_path, seed("/a"), SITE_LINKS_TO="kafka", SITE_SEED_TOPICS="urgent:8,seeds:4"))
    assert found["/b"]["title"] == "b"


@pytest.mark.parametrize("text", ["off", "plain"])
def test_a_noindex_page_keeps_no_body(tmp_path: Path, text: str) -> None:
    serve("/meta", f"<meta name=Robots content='NoIndex'>{WORDS}<a href=/next>")
    serve("/header", WORDS, X_Robots_Tag="none")
    serve("/other", WORDS, X_Robots_Tag="googlebot: noindex")
    of_failure = "<meta name=robots content=noindex>" + WORDS
    ANSWERS["/404"] = lambda request: page(request, of_failure, 404)
    ANSWERS["/500"] = lambda request: page(request, WORDS, 500)
    ANSWERS["/moved"] = lambda request: page(request, of_failure, 302)
    serve("/utf16", f"<html>{of_failure}".encode("utf-16"), Content_Type="")
    serve("/xhtml", f"<!--{WORDS * 12}--><html>{of_failure}", Content_Type="application/xml")
    for name, first in (("cut", ""), ("cut_index", "<meta name=robots content=index>"), ("long", "")):
        serve(f"/{name}", f"{first}<p>{' ' * extraction_process.MAX_TEXT_BYTES}{of_failure}")
    ANSWERS["/long"] = lambda request: page(request, " " * 4_000_001, **{"Content-Type": "text/plain"})
    serve("/tags", f"{'<a b c d>' * 70_000}{of_failure}")
    dropped = ("/meta", "/header", "/404", "/moved", "/utf16", "/xhtml", "/cut", "/tags")
    paths = (*dropped, "/other", "/500", "/cut_index", "/long")
    found = by_path(run(tmp_path, *map(seed, paths), SITE_TEXT=text, SITE_NOINDEX="drop_body"))
    assert {path for path, document in found.items() if document["body"] is None} == {*dropped}
    said = [found[path][name] for path, name in (("/404", "title"), ("/404", "text_hash"), ("/meta", "text"))]
    assert (said, found["/meta"]["robots_meta"], "/next" in found) == ([None] * 3, "noindex", True)


def on_the_wire(body: str, **headers: str) -> engine.Answer:
    def answer(request: Request) -> Response:
        response = page(request, body, **headers)
        job = job_of(request)
        assert job is not None
        job.exchanged(Exchange(request.url, b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", response.body, 0.0))
        return response

    return answer


@in_a_thread()
def test_a_noindex_page_is_not_archived_either(tmp_path: Path) -> None:
    """Nor is one whose body is stored already, by a crawl that kept it, when a check finds that unchanged."""
    ANSWERS["/no"] = on_the_wire("<p>words of no", X_Robots_Tag="noindex")
    ANSWERS["/meta"] = on_the_wire("<meta name=robots content=noindex><p>words of meta")
    ANSWERS["/yes"] = on_the_wire("<p>words of yes")
    seeds = [seed("/no"), seed("/yes"), seed("/meta", if_changed=True)]
    crawl(tmp_path, seeds[2:])
    crawled = crawl(tmp_path, seeds, SITE_SINKS="local,warc", SITE_NOINDEX="drop_body")
    archived = b"".join(gzip.decompress(path.read_bytes()) for path in tmp_path.rglob("*.warc.gz"))
    assert [name for name in (b"yes", b"no", b"meta") if b"words of " + name in archived] == [b"yes"]
    found = by_path(crawled)
    assert (found["/meta"]["body"], found["/no"]["url_id"].encode() in archived) == (None, True)  # what is known of it


@in_a_thread()
def test_a_body_that_was_not_kept_for_want_of_time_is_stored_by_the_next_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that an earlier crawl had stored, and whose page is the same."""

    def too_many(*_: object) -> Any:
        raise extraction_process.NotExtracted("its text is not read: too many pages waited for that")

    serve("/a", f"<p>{WORDS}", ETag='"a"')
    serve("/b", f"<p>{WORDS}")
    seeds = [{**seed(path), "if_changed": True} for path in ("/a", "/b")]
    how = {"SITE_NOINDEX": "drop_body", "SITE_TEXT": "plain"}
    crawl(tmp_path, seeds)
    with monkeypatch.context() as patched:
        patched.setattr(extraction_process.Extractor, "read", too_many)
        assert by_path(crawl(tmp_path, seeds, **how))["/b"]["body"] is None
    assert WORDS in by_path(crawl(tmp_path, seeds, **how))["/b"]["body"]


def test_a_check_for_the_body_alone_calls_no_callback_of_ones_own(tmp_path: Path) -> None:
    """As any of an unchanged page. A link to the page itself had it fetched again, as its own parent."""

    def parse(_: SeedSpider, response: Response) -> Any:
        yield {"title": "of the callback"}
        yield response.follow("/a")

    own = type("Own", (SeedSpider,), {"name": "own", "parse": parse})
    serve("/a", "<a href=/a>", X_Robots_Tag="noindex")
    crawls = [run(tmp_path, seed("/a", if_changed=True), spider=own, SITE_NOINDEX="drop_body") for _ in range(3)]
    assert [crawled.stats["downloader/request_count"] for crawled in crawls] == [1, 1, 1]
    assert [crawled.stats.get("item_scraped_count") for crawled in crawls] == [1, None, None]
    first, last = (by_path(crawled)["/a"] for crawled in (crawls[0], crawls[-1]))
    changed = {name for name in first if first[name] != last[name]}
    assert changed == {"checked_at", "fetched_at", "next_at", "interval_s"}


def test_a_check_for_the_body_of_a_sitemap_says_of_it_what_was_said(tmp_path: Path) -> None:
    serve("/a", "<urlset><url><loc>/b</loc></url><a", X_Robots_Tag="noindex")
    told = {"SITE_NOINDEX": "drop_body", "SITE_SITEMAPS": "seed"}
    first, last = (by_path(run(tmp_path, seed("/a", if_changed=True), **told))["/a"] for _ in range(2))
    assert (first["links_out"], "broke" in first["page_notes"]) == (1, True)
    assert {name: last[name] for name in PAGE_FIELDS} == {name: first[name] for name in PAGE_FIELDS}


@pytest.mark.parametrize("text", ["off", "plain"])
def test_a_calendar_whose_bodies_are_not_kept_is_a_trap_as_well(tmp_path: Path, text: str) -> None:
    """Its days differ in their dates alone, which nothing that is kept says."""
    for number in range(1, 100):
        body = f'<p>nothing on 2031-{number // 28 + 1:02}-{number % 28 + 1:02}<a href="/calendar/{number + 1}">'
        serve(f"/calendar/{number}", body, X_Robots_Tag="noindex")
    serve("/list", '<a href="/calendar/1">')
    told = {"SITE_TEXT": text, "SITE_NOINDEX": "drop_body", "DEPTH_LIMIT": 200}
    documents = by_path(run(tmp_path / "a", seed("/list"), **told))
    assert len(documents) == 61
    assert documents["/calendar/1"]["body"] is None
    items_alone = type("Items", (SeedSpider,), {"page_results": False})
    assert run(tmp_path / "b", seed("/list"), spider=items_alone, **told).stats["downloader/request_count"] == 62


def test_pages_whose_bodies_are_not_kept_are_no_trap_where_they_may_differ_behind_what_was_read(tmp_path: Path) -> None:
    """A gallery, with a small SITE_BODY_MAX_BYTES."""
    for number in range(1, 100):
        body = f'<p>My pictures</p>{" " * 50}<a href="/{number + 1}">{"<br>" * number}'
        serve(f"/{number}", body, X_Robots_Tag="noindex")
    told = {"SITE_NOINDEX": "drop_body", "DEPTH_LIMIT": 200, "SITE_BODY_MAX_BYTES": 50}
    assert len(run(tmp_path, seed("/1"), **told).documents) == 100


@pytest.mark.parametrize("follows", [False, True])
def test_nofollow_in_the_header_is_obeyed(tmp_path: Path, follows: bool) -> None:
    serve("/a", "<a href=/b>b</a>", X_Robots_Tag="noarchive, nofollow")
    serve("/c", "<a href=/d>d</a>", X_Robots_Tag="otherbot: nofollow")
    found = by_path(crawl(tmp_path, [seed("/a"), seed("/c")], SITE_FOLLOW_NOFOLLOW=follows))
    assert found.keys() == {"/a", "/c", "/d"} | ({"/b"} if follows else set())
    assert [found[path]["robots_meta"] for path in ("/a", "/c")] == ["noarchive, nofollow", None]


@pytest.mark.parametrize("checks", [False, True])
def test_what_a_page_says_to_robots_is_stored_until_it_says_so_no_more(tmp_path: Path, checks: bool) -> None:
    """Of a meta tag where links are looked for. A check that fails leaves it."""
    said = []
    serve("/a", "<meta name=robots content='NoIndex, noarchive'><a href=/b>", X_Robots_Tag="noindex, max-snippet:5")
    for answer in (ANSWERS["/a"], lambda request: page(request, "", 503), lambda request: page(request, "<p>")):
        ANSWERS["/a"] = answer
        crawled = crawl(tmp_path, [{**seed("/a"), "if_changed": checks}], RETRY_TIMES=0, DEPTH_LIMIT=1)
        said.append(by_path(crawled)["/a"]["robots_meta"])
    told = "noindex, max-snippet:5, noarchive"
    assert said == [told, told if checks else None, None]


@pytest.mark.parametrize("follows", [False, True])
def test_the_second_page_with_a_text_is_a_duplicate(tmp_path: Path, follows: bool) -> None:
    declare(tmp_path, follow_duplicates=follows)
    serve("/a", f"<p>{WORDS}<a href=/b>next</a>")
    serve("/b", f"<div>{WORDS}  <a href=/c>next</a></div>")
    found = by_path(run(tmp_path, seed("/a")))
    assert [found[path]["duplicate_of"] for path in ("/a", "/b")] == [None, found["/a"]["url_id"]]
    assert ("/c" in found) is follows


def test_a_duplicate_is_one_for_the_next_process_as_well_if_the_first_page_is_unchanged(tmp_path: Path) -> None:
    serve("/a", f"<p>{WORDS}", ETag='"a"')
    seeds = [{**seed(path), "if_changed": True} for path in ("/a", "/b")]
    for mark_up in ("<p>", "<b>"):
        serve("/b", f"{mark_up}{WORDS}")
        found = by_path(run(tmp_path, *seeds, CONCURRENT_REQUESTS=1))
        assert [found[path]["duplicate_of"] for path in ("/a", "/b")] == [None, found["/a"]["url_id"]]


CANONICAL = f"<link rel=canonical href=/a>{WORDS}"


def test_links_with_the_text_of_their_canonical_page_are_one_document(tmp_path: Path) -> None:
    serve("/a", f"{CANONICAL}<a href=/b></a><a href=/c></a><a href=/lie></a>")
    serve("/b", CANONICAL)
    serve("/c", WORDS, Link='</x>; rel=next, <http://a.test/a>; rel="canonical"')
    serve("/lie", "<link rel=canonical href=/a>Something else")
    for _ in range(2):
        found = by_path(run(tmp_path / "one", seed("/a"), SITE_CANONICAL="merge", CONCURRENT_REQUESTS=1))
        assert found.keys() == {"/a", "/lie"}
        assert sorted(found["/a"]["additional_urls"]) == [f"{HOST}/b", f"{HOST}/c"]
        assert (found["/a"]["depth"], found["/a"]["status"]) == (0, 200)
        assert found["/lie"]["page_notes"] == "canonical not merged: its text is another"


def test_pages_that_fail_push_no_canonical_page_out_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_and_duplicates, "_MOST_PAGES", 2)
    gone = [f"/gone{number}" for number in range(4)]
    serve("/a", CANONICAL + "".join(f"<a href={path}></a>" for path in [*gone, "/b"]))
    serve("/b", CANONICAL)
    for path in gone:
        ANSWERS[path] = partial(page, body="", status=404)
    found = by_path(run(tmp_path, seed("/a"), SITE_CANONICAL="merge", CONCURRENT_REQUESTS=1))
    assert found.keys() == {"/a", *gone}
    assert found["/a"]["additional_urls"] == [f"{HOST}/b"]


@pytest.mark.parametrize("how", [{"CONCURRENT_REQUESTS": 1}, {"CONCURRENT_REQUESTS": 8}, {"SITE_LINKS_TO": "kafka"}])
def test_the_canonical_page_is_fetched_first_wherever_it_is_linked(
    tmp_path: Path, how: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Also by nothing but those that name it. A budget counts pages once that are asked for twice."""
    declare(tmp_path, max_pages=60)  # of 44
    asked = Counter[str]()
    aliases, lies = [f"/a?{number}" for number in range(20)], [f"/lie?{number}" for number in range(20)]
    serve("/list", "".join(f"<a href={path}></a>" for path in (*aliases, *lies)))

    def answer(request: Request) -> Response:
        path = request.url.removeprefix(HOST)
        asked[path] += 1
        request.meta["download_latency"] = 0.1
        name = "/a" if path.startswith("/a") else "/gone"
        said = f"<link rel=canonical href={name}>{WORDS}<a href=/below></a>"
        return Response(request.url, headers={"Content-Type": "text/html"}, body=said.encode())

    ANSWERS.update(dict.fromkeys(["/a", "/lie"], answer))
    ANSWERS["/gone"] = lambda request: page(request, "", status=404)
    found = by_path(run(tmp_path, seed("/list"), SITE_CANONICAL="merge", **how))
    assert found.keys() == {"/list", "/a", "/gone", "/below", *lies}
    assert sorted(found["/a"]["additional_urls"]) == sorted(HOST + path for path in aliases)
    assert {each["duplicate_of"] for each in found.values()} <= {None, *(each["url_id"] for each in found.values())}
    assert asked["/a"] == 1
    assert "internal meta keys" not in caplog.text
    assert max(asked.values()) == 2


@pytest.mark.parametrize("params", [None, ["ref"]])
def test_a_page_is_asked_for_once_where_its_canonical_page_is_compared_as_the_same(
    tmp_path: Path, params: list[str] | None
) -> None:
    """As without the parameters of trackers, or of its task: a link to it would be a duplicate of the page."""
    asked = Counter[str]()

    def answer(request: Request) -> Response:
        asked[request.url] += 1
        return page(request, CANONICAL)

    declare(tmp_path, drop_params=params)
    serve("/list", "<a href=/a?ref=x></a>" if params else "<a href=/a?utm_source=x></a>")
    ANSWERS["/a"] = answer
    run(tmp_path, seed("/list"), SITE_CANONICAL="merge")
    assert [*asked.values()] == [1]


@pytest.mark.parametrize("own", [{}, {"url_id": "42"}], ids=repr)
def test_a_canonical_page_that_is_compared_as_the_same_is_waited_for_where_it_is_a_seed(
    tmp_path: Path, own: dict[str, str]
) -> None:
    """A seed is filtered for no link."""

    async def slowly(request: Request) -> Response:
        await asyncio.sleep(1)  # the link is found meanwhile, and served before a seed
        return page(request, "")

    serve("/list", "<a href=/a?utm_source=x></a>")
    serve("/a", CANONICAL)
    ANSWERS["/slow"] = slowly
    seeds = [seed("/list"), seed("/slow"), {"url": "no seed"}, seed("/a", **own)]
    found = by_path(run(tmp_path, *seeds, SITE_CANONICAL="merge", CONCURRENT_REQUESTS=1))
    assert found["/a"]["additional_urls"] == [f"{HOST}/a?utm_source=x"]


def test_no_page_is_the_duplicate_of_one_that_is_merged_into_another_host(tmp_path: Path) -> None:
    """Which is the first page of its own host with that text, and has no document."""
    serve("/list", f"<a href={HOST}/a></a><a href=http://m.a.test/b></a><a href=http://m.a.test/c></a>")
    serve("/a", WORDS)
    serve("/b", f"<link rel=canonical href={HOST}/a>{WORDS}")
    serve("/c", WORDS)
    settings = {"SITE_CANONICAL": "merge", "SITE_LINK_SCOPE": "domain", "CONCURRENT_REQUESTS": 1}
    found = by_path(run(tmp_path, seed("/list"), **settings))
    assert found["/a"]["additional_urls"] == ["http://m.a.test/b"]
    assert found["http://m.a.test/c"]["duplicate_of"] is None


def test_pages_of_another_host_that_are_not_merged_are_duplicates_of_the_first_of_them(tmp_path: Path) -> None:
    """Their canonical page has the same text, and names another one itself."""
    aliases = [f"http://m.a.test/{name}" for name in "bcd"]
    serve("/list", "".join(f"<a href={url}></a>" for url in [f"{HOST}/a", *aliases]))
    serve("/a", f"<link rel=canonical href={HOST}/gone>{WORDS}")
    ANSWERS["/gone"] = lambda request: page(request, "", status=404)
    ANSWERS.update(
        dict.fromkeys(["/b", "/c", "/d"], lambda request: page(request, CANONICAL.replace("/a", HOST + "/a")))
    )
    settings = {"SITE_CANONICAL": "merge", "SITE_LINK_SCOPE": "domain", "CONCURRENT_REQUESTS": 1}
    found = by_path(run(tmp_path, seed("/list"), **settings))
    first = found[aliases[0]]["url_id"]
    assert [found[url]["duplicate_of"] for url in aliases] == [None, first, first]


def test_merging_adds_urls_to_the_canonical_document_and_changes_nothing_else_of_it(tmp_path: Path) -> None:
    """Neither its validators, which would make the next check wrong, nor URLs of an earlier process."""
    serve("/a", f"{CANONICAL}<a href=/b></a>", ETag='"a"')
    serve("/b", f"{CANONICAL}<p>", ETag='"b"', Last_Modified="Sat, 03 Jan 2026 00:00:00 GMT")
    settings = {"SITE_CANONICAL": "merge", "CONCURRENT_REQUESTS": 1}
    found = by_path(run(tmp_path / "one", seed("/a"), **settings))["/a"]
    alone = by_path(run(tmp_path / "two", seed("/a", NotExtract=True), **settings))["/a"]
    times = ("fetched_at", "checked_at", "latency_ms")
    assert {name for name in found if found[name] != alone.get(name)} - {*times} == {"additional_urls"}
    checked = by_path(run(tmp_path / "one", {**seed("/a"), "if_changed": True}, **settings))["/a"]
    assert (checked["unchanged"], checked["additional_urls"]) == (True, [f"{HOST}/b"])
    serve("/a", f"{CANONICAL}<a href=/c></a>")
    serve("/c", CANONICAL)
    again = by_path(run(tmp_path / "one", seed("/a"), **settings))["/a"]
    assert sorted(again["additional_urls"]) == [f"{HOST}/b", f"{HOST}/c"]


def test_a_link_that_is_unchanged_is_merged_as_any_other(tmp_path: Path) -> None:
    """It has a document of its own, as its canonical page was not there at first."""
    settings = {"SITE_CANONICAL": "merge", "CONCURRENT_REQUESTS": 1}
    serve("/hub", "<a href=/a></a><a href=/b></a>")
    serve("/b", f"{CANONICAL}<p>", ETag='"b"')
    ANSWERS["/a"] = lambda request: page(request, "", status=404)
    assert "/b" in by_path(run(tmp_path, seed("/hub"), **settings))
    serve("/a", CANONICAL, ETag='"a"')
    check = {**seed("/hub"), "if_changed": True, "follow_unchanged": True}
    found = by_path(run(tmp_path, check, **settings))["/a"]
    said = found["etag"], found["unchanged"], found["additional_urls"]
    assert said == ('"a"', False, [f"{HOST}/b"])


@pytest.mark.parametrize("urls", [[f"{HOST}/b", f"{HOST}/x"], f"{HOST}/x", [5], 5], ids=repr)
def test_what_another_process_has_merged_meanwhile_stays(tmp_path: Path, urls: Any) -> None:
    """It had the partition for a while; or somebody else wrote what is no list of URLs."""

    async def answer(request: Request) -> Response:
        await asyncio.sleep(1)  # what was merged here before is written
        with closing(LocalStore(tmp_path, RESULTS)) as store:
            store.write([Record(id_of_page(f"{HOST}/a", "t"), {"additional_urls": urls}, 1)])
        return page(request, CANONICAL)

    serve("/a", f"{CANONICAL}<a href=/b></a><a href=/c></a>")
    serve("/b", CANONICAL)
    ANSWERS["/c"] = answer
    found = by_path(run(tmp_path, seed("/a"), SITE_CANONICAL="merge", CONCURRENT_REQUESTS=1))["/a"]
    paths = ["/b", "/c", *(["/x"] if "/x" in str(urls) else [])]
    assert sorted(found["additional_urls"]) == [f"{HOST}{path}" for path in paths]


def test_nothing_is_merged_into_a_document_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> Any:
        raise SinkUnavailable("the store is away")

    monkeypatch.setattr(LocalResults, "known", away)
    serve("/a", f"{CANONICAL}<a href=/b></a>")
    serve("/b", CANONICAL)
    found = by_path(run(tmp_path, seed("/a"), SITE_CANONICAL="merge", CONCURRENT_REQUESTS=1))
    assert found["/b"]["page_notes"] == "canonical not merged: its stored document could not be read"


@pytest.mark.parametrize("answer", [404, DownloadTimeoutError("too slow")], ids=repr)
@pytest.mark.parametrize("own", [{}, {"url_id": "42"}], ids=repr)
def test_nothing_is_merged_into_a_page_that_has_failed_since(tmp_path: Path, own: dict[str, str], answer: Any) -> None:
    later = [seed("/a", **own), seed("/hub")]
    for path, body in {"/a": CANONICAL, "/b": CANONICAL, "/hub": "<a href=/b></a>"}.items():
        serve(path, body)
    log = parts.seed_log(settings_for(tmp_path))

    def fail(request: Request) -> Response:
        if isinstance(answer, Exception):
            raise answer
        return page(request, "", status=answer)

    def until(crawler: Crawler) -> bool:
        ledger = SeedService.of(crawler).parts.completion.ledger
        is_done = ledger.consumed == 3 - len(later) and not ledger.in_flight
        if is_done and later:
            ANSWERS["/a"] = fail
            produce(log, "seeds", [later.pop(0)])
            return False
        return is_done

    with in_a_thread():
        found = by_path(crawl(tmp_path, [seed("/a", **own)], until=until, SITE_TEXT="plain", SITE_CANONICAL="merge"))
    assert found["/a"]["description"] is not None
    assert found["/b"]["text"] == WORDS.strip()


def test_nothing_is_merged_into_a_page_that_the_sink_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its seed is a dead letter: what was merged into it would be nowhere."""
    serve("/a", f"{CANONICAL}<!-- too large -->")
    serve("/b", CANONICAL)
    refused, put = Verdict(Answer.REJECTED, "too large"), LocalStore._put

    def refusing(store: LocalStore, connection: Any, record: Record, now: float) -> Verdict:
        is_large = "too large" in (record.document.get("body") or "")
        return refused if is_large else put(store, connection, record, now)

    async def when_refused(request: Request) -> Response:
        await asyncio.sleep(1)
        return page(request, "<a href=/b></a>")

    monkeypatch.setattr(LocalStore, "_put", refusing)
    ANSWERS["/hub"] = when_refused
    crawled = run(tmp_path, seed("/a"), seed("/hub"), SITE_CANONICAL="merge")
    assert by_path(crawled)["/b"]["text"] == WORDS.strip()
    assert len(crawled.dead_letters) == 1


def test_seeds_loops_and_what_is_not_there_stay_documents_of_their_own(tmp_path: Path) -> None:
    serve("/a", CANONICAL + "<a href=/x></a><a href=/gone></a><a href=/far></a>")
    serve("/b", CANONICAL)
    serve("/x", f"<link rel=canonical href=/y>x {WORDS}<a href=/y></a>")
    serve("/y", f"<link rel=canonical href=/x>x {WORDS}")
    serve("/gone", f"<link rel=canonical href=/404>{WORDS}")
    ANSWERS["/404"] = lambda request: page(request, "", status=404)
    serve("/far", f"<link rel=canonical href=http://other.test/>{WORDS}")
    seeds = (seed("/a"), seed("/b"))
    found = by_path(run(tmp_path, *seeds, SITE_CANONICAL="merge", CONCURRENT_REQUESTS=1))
    assert found.keys() == {"/a", "/b", "/x", "/y", "/gone", "/404", "/far"}
    notes = {path: str(document.get("page_notes")) for path, document in found.items()}
    reasons = "this page is a seed's", "it was not fetched well here before this page"
    assert notes["/b"] in [f"canonical not merged: {reason}" for reason in reasons]
    assert notes["/y"] == "canonical not merged: the two name each other"
    assert "not fetched well" in notes["/gone"]
    assert "outside of the link scope" in notes["/far"]


def test_loops_and_lies_about_pages_that_were_fetched_before_are_notes(tmp_path: Path) -> None:
    """Where nothing is merged, too. What is not known here is not asked for."""
    named = {
        "/x": "/y",
        "/y": "/x",
        "/other": "/x",
        "/same": "/hub",
        "/page": "/hub",
        "/gone": "/404",
        "/far": "/far/away",
        "/words": "/empty",
    }
    serve("/hub", WORDS + "".join(f"<a href={path}></a>" for path in ("/404", "/empty", *named)))
    serve("/empty", "<div id=app>")
    ANSWERS["/404"] = lambda request: page(request, "", status=404)
    for path, canonical in named.items():
        serve(path, f"<link rel=canonical href={canonical}>{WORDS}{path if path == '/page' else ''}")
    found = by_path(run(tmp_path, seed("/hub"), CONCURRENT_REQUESTS=1))
    assert found.keys() == {"/hub", "/404", "/empty", *named}
    assert {path: found[path]["page_notes"] for path in named if found[path]["page_notes"]} == {
        "/y": "canonical doubtful: the two name each other",
        "/other": "canonical doubtful: it names another page itself",
        "/page": "canonical doubtful: its text is another",
        "/words": "canonical doubtful: its text is another",
        "/gone": "canonical doubtful: it was not fetched well here before this page",
    }


def test_a_link_that_was_spilled_is_merged_and_its_seed_is_complete(tmp_path: Path) -> None:
    serve("/a", f"{CANONICAL}<a href=/b></a>")
    serve("/b", CANONICAL)
    crawled = run(tmp_path, seed("/a"), SITE_CANONICAL="merge", SITE_LINKS_TO="kafka")
    assert (list(by_path(crawled)), crawled.dead_letters) == (["/a"], [])


def test_merged_pages_are_pages_of_their_task_and_not_more_of_them_than_a_document_may_name(tmp_path: Path) -> None:
    serve("/a", CANONICAL + "".join(f"<a href=/b/{number}></a>" for number in range(103)))
    serve("/b", CANONICAL)
    ANSWERS.update({f"/b/{number}": ANSWERS["/b"] for number in range(103)})
    settings = {"SITE_TEXT": "plain", "SITE_CANONICAL": "merge"}
    with SeedProducer(settings_for(tmp_path), task_id="t", closes_task=True) as producer:
        producer.send(seed("/a"))
    with in_a_thread():
        found = by_path(crawl(tmp_path, [], until=told(tmp_path), **settings))
    first, note = found.pop("/a"), "canonical not merged: 100 pages are merged into it already"
    assert len(first["additional_urls"]) == 100
    assert [one["page_notes"] for one in found.values()] == [note] * 3
    (end,) = events(tmp_path)
    size = first["response_size"] + 103 * found["/b/102"]["response_size"]
    assert (end["pages"], end["bytes"], end["failures"]) == (104, size, 0)


@pytest.mark.parametrize("fields", [{}, {"SITE_TEXT": "plain", "SITE_RESULT_FIELDS": "url,text"}])
def test_merging_needs_texts_and_a_place_for_urls(tmp_path: Path, fields: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=[*fields, "SITE_TEXT"][bool(fields)]):
        PageTexts.read(settings_for(tmp_path, SITE_CANONICAL="merge", **fields))
    assert PageTexts.read(settings_for(tmp_path)) is None


# --- What of a body is kept


LIMIT = 1000
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8


def binary(body: bytes) -> Callable[[Request], Response]:
    return lambda request: Response(request.url, headers={"Content-Type": "image/png"}, body=body)


SITE: dict[str, engine.Answer] = {
    "/exact": lambda request: page(request, "é" * (LIMIT // 2)),
    "/cut": lambda request: page(request, "x" + "é" * LIMIT),
    "/links": lambda request: page(request, "x" * LIMIT + "<a href=/behind-the-cut>"),
    "/large": lambda request: page(request, "x" * 300_000 + "<a href=/behind-the-large-cut>"),
    "/not-found": lambda request: page(request, "x" * (LIMIT + 1), 404),
    "/binary": binary(PNG),
    "/binary-short": binary(PNG[:LIMIT]),
    "/binary-empty": binary(b""),
}
TEXTS = {  # body, whether it was cut, size of the answer
    "/exact": ("é" * (LIMIT // 2), False, LIMIT),
    "/cut": ("x" + "é" * 499, True, 1 + 2 * LIMIT),
    "/not-found": ("x" * LIMIT, True, LIMIT + 1),
}


@pytest.mark.parametrize("keeps", [False, True])
def test_what_is_kept_of_a_body_and_that_links_behind_it_are_followed(tmp_path: Path, keeps: bool) -> None:
    """The limit counts in UTF-8; binary content is kept by choice, in base64. Sizes are those of the answers."""
    engine.ANSWERS.update(SITE)
    seeds = [{"url": f"http://h.test{path}", "meta": {"url_id": path}} for path in SITE]
    documents = crawl(tmp_path, seeds, SITE_BODY_MAX_BYTES=LIMIT, SITE_KEEP_BINARY=keeps).documents
    for path, expected in TEXTS.items():
        found = documents[path]
        assert (found["body"], found["body_truncated"], found["response_size"]) == expected, path
        assert found["body_base64"] is None
    for path, link in (("/links", "/behind-the-cut"), ("/large", "/behind-the-large-cut")):
        (child,) = (found for found in documents.values() if found.get("parent_url_id") == path)
        assert (documents[path]["body_truncated"], child["url"]) == (True, f"http://h.test{link}")
    for path, whole in (("/binary", PNG), ("/binary-short", PNG[:LIMIT]), ("/binary-empty", b"")):
        found = documents[path]
        kept = found["body_base64"]
        assert not found["body"]
        assert (kept and base64.b64decode(kept, validate=True)) == (whole[:LIMIT] if keeps and whole else None)
        assert (found["body_truncated"], found["response_size"]) == (keeps and len(whole) > LIMIT, len(whole))


def test_what_a_lost_partition_took_along_is_no_canonical_page() -> None:
    """Its request was dropped, or its document, so it is asked for again."""
    asyncio.run(asked_for_again())


async def asked_for_again() -> None:
    texts, entries = PageTexts("plain", merges=True), [SeedInFlight(Partition("s", 0), 7, epoch) for epoch in (1, 2, 3)]
    same = {"method": "GET", "status": 200, "text_hash": "same"}
    copy = Result("copy", url=f"{HOST}/copy", canonical=f"{HOST}/one", **same)

    def link(entry: SeedInFlight, path: str) -> Job:
        entry.reads(parse_seed(b'{"url": "http://a.test/"}'))
        return Job(Request(HOST + path), entry, Job(Request(HOST), entry))

    def again(entry: SeedInFlight, **meta: Any) -> Request | None:
        return texts.again(copy, Request(f"{HOST}/copy", meta=meta), link(entry, "/copy"), cast(Crawler, None))

    async def merged(result: Result, job: Job) -> Result | None:
        return await texts.merged(result, job, cast(StoredPages, Mock(of=AsyncMock(return_value={}))), is_in_scope=True)

    first, second, third = entries
    assert again(first)
    assert not again(first, **{meta_keys.AGAIN: True})  # it did not come
    assert not again(second)
    first.live = False
    assert again(second)

    await merged(Result("one", url=f"{HOST}/one", **same), one := link(second, "/one"))
    one.written = True
    assert await merged(copy, link(second, "/copy"))
    second.live = False
    assert again(third)
    assert not await merged(copy, link(third, "/copy"))
