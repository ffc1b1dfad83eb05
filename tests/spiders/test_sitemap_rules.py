"""Crawls that find their pages by sitemaps and feeds."""

from __future__ import annotations

import asyncio
import gc
import gzip
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.exceptions import DownloadTimeoutError
from scrapy.http import Response
from scrapy.spiders import SitemapSpider
from scrapy.utils.trackref import live_refs

from site_spider.engine.scrapy_parts import part_of
from site_spider.errors import ConfigError
from site_spider.page import sitemap
from site_spider.page.url import host_of
from site_spider.spiders.crawl_spider import SeedSpider
from site_spider.spiders.sitemap_rules import SitemapRules, level_below, looks_like_sitemap
from site_spider.tasks.budgets import TaskStates
from tests.in_process.engine import ANSWERS, crawl, page, settings_for
from tests.tasks.test_pause_and_cancel import declare, desk

HOST = "http://a.test"


def told_by(crawlers: list[Any]) -> Any:
    """All seeds are complete; the crawler is put there."""

    def is_over(crawler: Any) -> bool:
        crawlers[:] = [crawler]
        return bool(crawler.stats.get_value("seeds/completed", 0))

    return is_over


def serve(path: str, body: bytes, kind: str = "application/xml", status: int = 200) -> None:
    ANSWERS[path] = lambda request: Response(request.url, status, {"Content-Type": kind}, body)


def urlset(*paths: str, more: str = "") -> bytes:
    entries = "".join(f"<url><loc>{path}</loc>{more}</url>" for path in paths)
    return f"<urlset>{entries}</urlset>".encode()


def seed(path: str, **fields: Any) -> dict[str, Any]:
    return {"url": HOST + path, "meta": {"task_id": "t"}, **fields}


def paths(crawled: Any) -> list[str]:
    return sorted(document["url"].removeprefix(HOST) for document in crawled.documents.values())


def by_path(crawled: Any) -> dict[str, dict[str, Any]]:
    return {document["url"].removeprefix(HOST): document for document in crawled.documents.values()}


def test_the_pages_of_an_index_are_crawled_and_say_where_they_were_listed(tmp_path: Path) -> None:
    serve("/index", b"<sitemapindex><sitemap><loc>/map.gz</loc></sitemap></sitemapindex>")
    inside = urlset("/1", "http://other.test/2", more="<lastmod>2026-01-02</lastmod><priority>0.8</priority>")
    serve("/map.gz", gzip.compress(inside), "application/gzip")
    found = by_path(crawl(tmp_path, [seed("/index")]))
    assert found.keys() == {"/index", "/map.gz", "/1"}
    said = {"lastmod": "2026-01-02", "priority": "0.8", "changefreq": None, "source": f"{HOST}/map.gz"}
    assert found["/1"]["meta"]["sitemap"] == said
    assert found["/map.gz"]["meta"]["sitemap"]["level"] == 1
    assert [found[path]["depth"] for path in ("/index", "/map.gz", "/1")] == [0, 1, 1]
    assert "sitemap" not in found["/index"].get("meta", {})


@pytest.mark.parametrize(
    ("settings", "fields"), [({"SITE_SITEMAPS": "off"}, {}), ({}, {"meta": {"task_id": "t", "NotExtract": True}})]
)
def test_what_is_off_is_not_followed(tmp_path: Path, settings: dict[str, Any], fields: dict[str, Any]) -> None:
    serve("/index", b"<sitemapindex><sitemap><loc>/map</loc></sitemap></sitemapindex>")
    serve("/map", urlset("/1"))
    assert paths(crawl(tmp_path, [seed("/index", **fields)], **settings)) == ["/index"]


def test_files_of_sitemaps_are_no_level_of_links_but_their_pages_are(tmp_path: Path) -> None:
    """Else a limit of 1 would end at the robots.txt; and feeds that name feeds would have no end."""
    serve("/robots.txt", b"Sitemap: http://a.test/index", "text/plain")
    serve("/index", b"<sitemapindex><sitemap><loc>/map</loc></sitemap></sitemapindex>")
    serve("/map", urlset("/feed"))
    serve("/feed", b"<rss><item><link>/deeper</link></item></rss>")
    settings: dict[str, Any] = {"SITE_SITEMAPS": "robots", "SITE_KEEP_ROBOTS": True}
    for limit, tasks in ((1, {}), (2, {}), (2, {"SITE_LINKS_TO": "kafka"})):
        found = by_path(crawl(tmp_path / f"{limit}{tasks}", [seed("/x")], DEPTH_LIMIT=limit, **settings, **tasks))
        assert {path: document["depth"] for path, document in found.items()} == {
            "/x": 0,
            **dict.fromkeys(("/robots.txt", "/index", "/map", "/feed"), 1),
            **({"/deeper": 2} if limit == 2 else {}),
        }


def test_robots_txt_is_kept_without_its_sitemaps_too_and_never_forbidden(tmp_path: Path) -> None:
    serve("/robots.txt", b"User-agent: *\nDisallow: /\nAllow: /x\nSitemap: /x/map", "text/plain")
    serve("/x", b"<html>", "text/html")
    for mode in ("off", "seed"):
        crawled = crawl(tmp_path / mode, [seed("/x")], SITE_SITEMAPS=mode, SITE_KEEP_ROBOTS=True, ROBOTSTXT_OBEY=True)
        assert {path: said["status"] for path, said in by_path(crawled).items()} == {"/x": 200, "/robots.txt": 200}


def test_a_broken_file_gives_what_stands_before_the_fault_and_is_no_failure(tmp_path: Path) -> None:
    serve("/map", b"<urlset><url><loc>/1</loc></url><url><loc>/2")
    crawled = crawl(tmp_path, [seed("/map")])
    found = by_path(crawled)
    assert found.keys() == {"/map", "/1"}
    assert found["/map"]["page_notes"].startswith("sitemap read up to 1 entries: its XML is broken")
    assert found["/map"]["description"] is None
    assert crawled.seeds["completed_with_failure"] == 0
    serve("/map", urlset("/1"))
    assert by_path(crawl(tmp_path, [seed("/map")]))["/map"]["page_notes"] is None


def test_a_file_that_is_refused_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sitemap, "MOST_BYTES", 1_000)
    serve("/map", gzip.compress(urlset("/1") + b" " * 1_000))
    crawled = crawl(tmp_path, [seed("/map")])
    assert by_path(crawled)["/map"]["description"].startswith("sitemap not read: it has more than ")
    assert crawled.seeds["completed_with_failure"] == 1


def test_indexes_that_lead_to_each_other_without_end_are_left_at_the_fifth(tmp_path: Path) -> None:
    for n in range(8):
        serve(f"/{n}", f"<sitemapindex><sitemap><loc>/{n + 1}</loc></sitemap></sitemapindex>".encode())
    serve("/robots.txt", b"Sitemap: /0", "text/plain")
    for mode, first, way in (("seed", "/0", "kafka"), ("robots", "/x", "memory"), ("robots", "/robots.txt", "kafka")):
        settings = {"SITE_SITEMAPS": mode, "SITE_LINKS_TO": way, "DEPTH_LIMIT": 0}
        found = by_path(crawl(tmp_path / f"{mode}{first[1]}", [seed(first)], **settings))
        assert sorted({*found} - {first, "/robots.txt"} | {"/0"}) == ["/0", "/1", "/2", "/3", "/4", "/5"]
        assert "more than 5 indexes" in found["/5"]["description"]
        levels = [found[f"/{n}"].get("meta", {}).get("sitemap", {}).get("level") for n in range(6)]
        assert levels == [0 if mode == "robots" else None, 1, 2, 3, 4, 5]
    assert level_below("sitemapindex", {"level": -40}) == 1  # as a producer may say


def requests_alive() -> int:
    gc.collect()
    return len(live_refs.get(Request, ()))


def test_entries_of_a_long_file_wait_as_less_than_requests(tmp_path: Path) -> None:
    """And say where they were listed, also those that come twice, far from each other."""
    more = "<lastmod>2026-01-02</lastmod>"
    serve("/map", urlset("/199", *(f"/{n}" for n in range(200)), more=more))
    alive: list[int] = []

    async def first(request: Request) -> Response:
        while not crawlers or crawlers[0].stats.get_value("scheduler/enqueued", 0) < 200:
            await asyncio.sleep(0.01)
        alive.append(requests_alive())
        return page(request, "first")

    ANSWERS["/199"] = first
    crawlers: list[Any] = []
    is_over = told_by(crawlers)
    of_other_tests = requests_alive()
    found = by_path(crawl(tmp_path, [seed("/map")], until=is_over, CONCURRENT_REQUESTS=1, SITE_TREE_MAX_PAGES=5_000))
    assert len(found) == 201
    assert 0 < alive[0] - of_other_tests < 100
    assert {tuple(said["meta"]["sitemap"].values()) for path, said in found.items() if path != "/map"} == {
        ("2026-01-02", None, None, f"{HOST}/map")
    }


def test_entries_older_than_asked_for_are_not_followed(tmp_path: Path) -> None:
    serve("/map", urlset("/1", more="<lastmod>2001-01-01</lastmod>"))
    for since in ("7d", "2001-01-02"):
        assert paths(crawl(tmp_path / since, [seed("/map")], SITE_SITEMAP_SINCE=since)) == ["/map"]
    assert paths(crawl(tmp_path / "all", [seed("/map")], SITE_SITEMAP_SINCE="2001-01-01")) == ["/1", "/map"]


class OwnSpider(SeedSpider):
    async def parse(self, response: Any) -> Any:
        for output in await super().parse(response):
            yield output


@pytest.mark.parametrize("spider", [SeedSpider, OwnSpider])
@pytest.mark.parametrize("keeps", [False, True])
def test_robots_txt_of_a_seeds_host_leads_to_its_sitemaps(tmp_path: Path, spider: Any, keeps: bool) -> None:
    asked: list[str] = []

    def robots(request: Request) -> Response:
        asked.append(request.url)
        lines = "User-agent: *\nSitemap: http://a.test/map\nsitemap:http://other.test/map"
        return Response(request.url, headers={"Content-Type": "text/plain"}, body=lines.encode())

    ANSWERS["/robots.txt"] = robots
    serve("/map", urlset("/1"))
    seeds = [seed("/x"), seed("/y"), seed("/x", meta={"task_id": "u"})]
    found = paths(crawl(tmp_path, seeds, spider, SITE_SITEMAPS="robots", SITE_KEEP_ROBOTS=keeps))
    assert found == sorted(2 * ["/1", "/map", *(["/robots.txt"] if keeps else []), "/x"] + ["/y"])
    assert len(asked) == 2  # once a task


def test_a_file_that_is_named_as_a_sitemap_and_is_none_says_so(tmp_path: Path) -> None:
    """A page that a host has for what is not there, say, or what a DOCTYPE says to be one."""
    ANSWERS["/robots.txt"] = lambda request: Response(request.url, body=b"Sitemap: /map\nSitemap: /none")
    serve("/none", b"<!DOCTYPE html>" + urlset("/1"))
    serve("/map", urlset("/2"))
    found = by_path(crawl(tmp_path, [seed("/x")], SITE_SITEMAPS="robots"))
    assert found.keys() == {"/x", "/map", "/none", "/2"}
    assert found["/none"]["page_notes"] == "named as a sitemap, but is none"
    assert not found["/map"].get("page_notes")


def no_answer(request: Request) -> Response:
    raise DownloadTimeoutError("too slow")


def away(request: Request) -> Response:
    return Response(request.url, status=302, headers={"Location": "http://other.test/x"})


PAGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "fails": (no_answer, {}),
    "is-not-there": (lambda request: page(request, status=404), {}),
    "is-elsewhere": (away, {}),
    "is-unchanged": (lambda request: page(request, "", 304), {"if_changed": True, "etag": '"1"'}),
    "is-nofollow": (lambda request: page(request, X_Robots_Tag="nofollow"), {}),
    "gives-no-links": (page, {"meta": {"task_id": "t", "NotExtract": True}}),
}


def test_robots_txt_is_asked_whatever_becomes_of_the_page_of_the_seed(tmp_path: Path) -> None:
    """That of its host, and of the one where it is found; what they name is within the scope of the seed."""
    asked: list[str] = []

    def robots(request: Request) -> Response:
        asked.append(request.url.removesuffix("/robots.txt"))
        maps = {f"{asked[-1]}/map", "http://other.test/map"}
        return Response(request.url, body="".join(f"Sitemap: {each}\n" for each in maps).encode())

    ANSWERS["/robots.txt"] = robots
    ANSWERS["/x"] = lambda request: PAGES.get(host_of(request.url), (page, {}))[0](request)
    serve("/map", urlset("/1"))
    ANSWERS["/1"] = lambda request: page(request, '<a href="/2">')
    seeds = [{**seed("/x"), "url": f"http://{name}/x", **fields} for name, (_, fields) in PAGES.items()]
    crawled = crawl(tmp_path, seeds, SITE_SITEMAPS="robots", DEPTH_LIMIT=2)
    found = {f"http://{name}{path}" for name in PAGES for path in ("/x", "/map", "/1", "/2")} - {
        "http://gives-no-links/2"
    }
    found = {url if url.endswith("/x") else url.replace("//is-elsewhere/", "//other.test/") for url in found}
    assert sorted(asked) == sorted([*(f"http://{name}" for name in PAGES), "http://other.test"])
    assert {document["url"] for document in crawled.documents.values()} == found


def test_robots_txt_of_a_host_that_does_not_answer_is_no_result(tmp_path: Path) -> None:
    ANSWERS["/x"] = no_answer
    ANSWERS["/robots.txt"] = lambda request: no_answer(request) if "//a." in request.url else page(request, "", 404)
    crawled = crawl(tmp_path, [seed("/x"), {"url": "http://b.test/x"}], SITE_SITEMAPS="robots")
    assert paths(crawled) == ["/x", "http://b.test/x"]
    assert crawled.lag == 0
    declare(tmp_path / "task", depth=0)
    ANSWERS["/robots.txt"] = lambda request: pytest.fail("it is deeper than the task goes")
    assert paths(crawl(tmp_path / "task", [seed("/x")], SITE_SITEMAPS="robots")) == ["/x"]


@pytest.mark.parametrize("path", ["/x", "/robots.txt"])
def test_a_robots_txt_that_is_a_page_as_well_leads_to_its_sitemaps(tmp_path: Path, path: str) -> None:
    ANSWERS["/x"] = lambda request: page(request, '<a href="/robots.txt">')
    serve("/robots.txt", b"Sitemap: /map", "text/plain")
    serve("/map", urlset("/1"))
    assert {"/map", "/1"} <= set(paths(crawl(tmp_path, [seed(path)], SITE_SITEMAPS="robots", DEPTH_LIMIT=1)))


@pytest.mark.parametrize("settings", [{}, {"SITE_LINKS_TO": "kafka"}])
def test_rules_of_a_task_are_about_pages_and_its_budgets_about_files_too(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    serve("/robots.txt", b"Sitemap: /index", "text/plain")
    serve("/index", b"<sitemapindex><sitemap><loc>/map</loc></sitemap></sitemapindex>")
    serve("/map", urlset(*(f"/good/{n}" for n in range(5)), "/other"))
    serve("/good/0", b'<a href="/good/below">', "text/html")
    settings["SITE_SITEMAPS"] = "robots"
    declare(tmp_path, allow=["/good/"], depth=1, max_pages=6)
    assert len(crawl(tmp_path, [seed("/x")], **settings).documents) == 6
    declare(tmp_path, allow=["/good/"], depth=1, max_pages=100)
    assert desk(tmp_path).put_back("t") == 2
    found = by_path(crawl(tmp_path, [], **settings))
    assert found.keys() == {"/x", "/index", "/map", *(f"/good/{n}" for n in range(5))}
    assert {found[f"/good/{n}"]["meta"]["sitemap"]["source"] for n in range(5)} == {f"{HOST}/map"}


def test_entries_of_a_task_that_pauses_are_parked_with_what_the_file_says_of_them(tmp_path: Path) -> None:
    """Of a file that is small, and of one whose entries become requests one after the other."""
    for count in (20, 200):
        folder = tmp_path / str(count)
        serve("/map", urlset(*(f"/page/{n}" for n in range(count)), more="<lastmod>2026-01-02</lastmod>"))
        is_paused = asyncio.Event()

        async def third(request: Request, folder: Path = folder, heard: asyncio.Event = is_paused) -> Response:
            await asyncio.to_thread(declare, folder, state="paused")
            await heard.wait()
            return page(request, "third")

        def is_over(crawler: Any, heard: asyncio.Event = is_paused) -> bool:
            states = part_of(crawler, TaskStates)
            state = states.of("t") if states else None
            if state is not None and state.phase.name == "paused":
                heard.set()
            return bool(crawler.stats.get_value("seeds/completed", 0))

        ANSWERS["/page/2"] = third
        declare(folder)
        settings: dict[str, Any] = {"CONCURRENT_REQUESTS_PER_DOMAIN": 1, "SITE_TREE_MAX_PAGES": 1_000}
        found = paths(crawl(folder, [seed("/map")], until=is_over, **settings))
        assert len(found) < count
        declare(folder)
        assert desk(folder).put_back("t") == count + 1 - len(found)
        documents = by_path(crawl(folder, [], **settings))
        del documents["/map"]
        assert len(documents) == count
        assert {said["meta"]["sitemap"]["lastmod"] for said in documents.values()} == {"2026-01-02"}


def test_what_a_feed_says_of_a_page_counts_before_a_link_in_its_text(tmp_path: Path) -> None:
    said = b"<link href='/1'/><updated>2026-01-02</updated><div><a href='/1'>x</a></div>"
    serve("/feed", b"<feed><entry>" + said + b"</entry></feed>", "application/xhtml+xml")
    assert by_path(crawl(tmp_path, [seed("/feed")]))["/1"]["meta"]["sitemap"]["lastmod"] == "2026-01-02"


@pytest.mark.parametrize("settings", [{}, {"SITE_SEED_TOPICS": "urgent:8,seeds:4"}])
def test_spilled_entries_say_where_they_were_listed(tmp_path: Path, settings: dict[str, Any]) -> None:
    serve("/map", urlset(*(f"/{n}" for n in range(5)), more="<changefreq>daily</changefreq>"))
    ANSWERS["/0"] = lambda request: page(request, '<a href="/below">')
    found = by_path(crawl(tmp_path, [seed("/map")], SITE_LINKS_TO="kafka", **settings))
    for n in range(5):
        assert found[f"/{n}"]["meta"]["sitemap"]["changefreq"] == "daily"
        assert found[f"/{n}"]["meta"]["sitemap"]["source"] == f"{HOST}/map"
        assert found[f"/{n}"]["seed_url_id"] == found["/map"]["url_id"]
    assert "sitemap" not in found["/below"].get("meta", {})


def test_hosts_of_other_scripts_are_within_the_scope(tmp_path: Path) -> None:
    serve("/map", "<urlset><url><loc>http://bücher.test/1</loc></url></urlset>".encode())
    found = crawl(tmp_path, [{"url": "http://xn--bcher-kva.test/map"}]).documents.values()
    assert sorted(document["host"] for document in found) == ["xn--bcher-kva.test"] * 2


def test_a_sitemap_that_another_host_has_gives_nothing_outside_of_the_scope(tmp_path: Path) -> None:
    """The scope is about where a seed's own page is found, as for links."""

    def away(request: Request) -> Response:
        return Response(request.url, status=302, headers={"Location": "http://other.test/map"})

    ANSWERS["/index"] = lambda request: page(request, '<a href="/moved">')
    ANSWERS["/moved"] = away
    serve("/map", urlset("/away", "http://a.test/1"))
    assert paths(crawl(tmp_path, [seed("/index")])) == ["/1", "/index", "/moved"]


@pytest.mark.parametrize("settings", [{}, {"SITE_LINKS_TO": "kafka"}])
def test_a_sitemap_is_redirected_within_the_scope_alone(tmp_path: Path, settings: dict[str, Any]) -> None:
    serve("/index", b"<sitemapindex><sitemap><loc>/map</loc></sitemap></sitemapindex>")
    ANSWERS["/map"] = lambda request: away(request) if "//a." in request.url else page(request)
    serve("/x", urlset("http://a.test/1"))
    found = by_path(crawl(tmp_path / "host", [seed("/index")], **settings))
    assert found.keys() == {"/index", "/map"}
    assert found["/map"]["description"].endswith("not followed: it leads a sitemap out of the link scope")
    found = by_path(crawl(tmp_path / "any", [seed("/index")], SITE_LINK_SCOPE="any", **settings))
    assert found.keys() == {"/index", "/map", "/1"}


@pytest.mark.parametrize("settings", [{"SITE_SITEMAPS": "all"}, {"SITE_SITEMAP_SINCE": "soon"}])
def test_a_wrong_setting_is_named(tmp_path: Path, settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        SitemapRules.read(settings_for(tmp_path, **settings))


def test_a_spider_mixed_with_scrapys_reads_a_sitemap_behind_a_doctype() -> None:
    body = b'<?xml version="1.0"?>\n<!DOCTYPE urlset>\n<urlset></urlset>'
    assert looks_like_sitemap(Response("http://a.test/map", body=body))
    assert not looks_like_sitemap(Response("http://a.test/map", body=b"<html>"))


async def test_requests_of_a_long_sitemap_of_scrapys_spider_are_made_one_by_one() -> None:
    """A file of 33 MB has 700,000 entries."""

    class Maps(SeedSpider, SitemapSpider):
        name = "maps"

    spider = Maps()
    spider._max_size = spider._warn_size = 10_000_000
    body = gzip.compress(urlset(*(f"{HOST}/{n}" for n in range(2_000))))
    response = Response(f"{HOST}/map.xml.gz", body=body, request=Request(f"{HOST}/map.xml.gz"))
    before = requests_alive()
    found = spider._parse_sitemap(response)
    assert (await anext(found)).url == f"{HOST}/0"
    assert requests_alive() - before < 100
    assert len([request async for request in found]) == 1_999
