"""Crawls whose links are not all followed: rules for URLs, and traps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, timedelta
from inspect import isawaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response

from site_spider import runtime
from site_spider.adapters.local.log import LocalSeedLog
from site_spider.ledger.completion import Job
from site_spider.service.seed_producer import SeedProducer
from site_spider.sources import url_rules
from site_spider.spiders.crawl_spider import SeedSpider
from site_spider.tasks.traps import _FIRST, _REST, Traps
from tests.in_process import engine
from tests.in_process.engine import Crawled, crawl, page, produce, settings_for
from tests.in_process.extraction import in_a_thread
from tests.tasks.test_end_in_crawl import events, told
from tests.tasks.test_pause_and_cancel import declare, desk

HOST = "http://h.test"


def paths(crawled: Crawled) -> list[str]:
    return sorted(said["url"].removeprefix(HOST) for said in crawled.documents.values())


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is served, by path; a text, or what gives one for a path, or will give it."""
    pages: dict[str, Any] = {}

    async def answer(handler: Any, request: Request) -> Response:
        path = request.url.removeprefix(HOST)
        found = pages.get(path, pages.get("*", "<p>page"))
        text = found(path) if callable(found) else found
        return page(request, await text if isawaitable(text) else text)

    monkeypatch.setattr(engine.ScriptedHandler, "download_request", answer)
    return pages


def links(*targets: str) -> str:
    return "".join(f'<a href="{target}">' for target in targets)


def seed(path: str, **meta: Any) -> dict[str, Any]:
    return {"url": HOST + path, "meta": meta}


def test_refused_links_are_counted_by_their_rule_and_seeds_are_never_refused(
    tmp_path: Path, site: dict[str, Any]
) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("h.test: {deny: {prefixes: [/cart]}}")
    site["/"] = site["/a.pdf"] = links("/b.pdf", "/cart/1", "/b", "/x/x/x", "/c?sort=1", "/cart/2")
    seeds = [seed("/", task_id="t"), seed("/a.pdf", task_id="t")]
    for way in ("memory", "kafka"):
        folder = tmp_path / way
        declare(folder)
        crawled = crawl(folder, seeds, SITE_URL_DENY=r"*.pdf,\?sort=", SITE_URL_RULES=str(file), SITE_LINKS_TO=way)
        assert paths(crawled) == ["/", "/a.pdf", "/b"]
        assert {key: crawled.stats[key] for key in crawled.stats if "refused" in key} == {
            "links/refused": 10,
            "links/refused/SITE_URL_DENY .pdf": 2,
            "links/refused/SITE_URL_DENY \\?sort=": 2,
            "links/refused/h.test deny /cart": 4,
            "links/refused/repeats": 2,
        }
        facts = desk(folder).overview().of("t")
        assert (facts.links_filtered, facts.traps) == (10, {})


def test_entries_of_sitemaps_are_refused_too_and_the_files_need_no_allow(tmp_path: Path, site: dict[str, Any]) -> None:
    site["/robots.txt"] = f"Sitemap: {HOST}/index"
    site["/index"] = "<sitemapindex>" + "".join(f"<sitemap><loc>/{name}</loc></sitemap>" for name in ("map", "old"))
    site["/map"] = "<urlset><url><loc>/p/1</loc></url><url><loc>/q/1</loc></url></urlset>"
    crawled = crawl(tmp_path, [seed("/")], SITE_SITEMAPS="robots", SITE_URL_ALLOW="/p/", SITE_URL_DENY="/old")
    assert paths(crawled) == ["/", "/index", "/map", "/p/1"]


def test_rules_are_taken_while_the_crawl_runs(
    tmp_path: Path, site: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong file changes nothing; what waits in the frontier by then is fetched."""
    monkeypatch.setattr(url_rules, "_LOOK_SECONDS", 0.1)
    file = tmp_path / "rules.yaml"
    file.write_text("h.test: {deny: ['/a']}")
    site["/1"] = site["/2"] = links("/a", "/b")
    log, steps = LocalSeedLog(tmp_path), ["completed", "what it said before counts", "was read"]

    def until(crawler: Crawler) -> bool:
        done = crawler.stats.get_value("seeds/completed", 0)
        if steps and (steps[0] in caplog.text or (steps[0] == "completed" and done)):
            del steps[0]
            if steps:
                new = tmp_path / "new"  # half of a file may be read
                new.write_text("h.test: {deny: [" + ("" if len(steps) == 2 else "'/b']}"))
                new.replace(file)
            else:
                produce(log, "seeds", [seed("/2", task_id="2")])
        return not steps and done == 2

    with caplog.at_level("INFO"):
        crawled = crawl(tmp_path, [seed("/1", task_id="1")], until=until, SITE_URL_RULES=str(file))
    assert paths(crawled) == ["/1", "/2", "/a", "/b"]
    assert caplog.text.count("what it said before counts") == 1


def day(path: str) -> str:
    """Leads to the ten days that follow; its text is that of any other."""
    number = int(path.rpartition("/")[2])
    return "<p>nothing" + links(*(f"/day/{number + n}" for n in range(1, 11)))


@in_a_thread()
def test_a_trap_ends_and_is_named_in_the_report_of_its_task(tmp_path: Path, site: dict[str, Any]) -> None:
    """Pages that are like each other by their URLs, and not by their text, are followed to the end."""
    site["*"] = day
    site["/"] = links("/day/1", "/page/0")
    site |= {f"/page/{n}": f"<p>{'x' * (n // 5)}" + links(f"/page/{n + 1}") for n in range(99)}

    with SeedProducer(settings_for(tmp_path), task_id="t", closes_task=True) as producer:
        producer.send(seed("/"))
    declare(tmp_path)
    settings: dict[str, Any] = {"DEPTH_LIMIT": 0, "CONCURRENT_REQUESTS": 1, "SITE_TEXT": "plain"}
    crawled = crawl(tmp_path, [], until=told(tmp_path), **settings)
    assert "/page/99" in paths(crawled)
    assert 50 <= sum(path.startswith("/day/") for path in paths(crawled)) < 100
    refused = crawled.stats["links/refused/trap"]
    facts = desk(tmp_path).overview().of("t")
    assert facts.document()["traps"] == {"h.test/day/N": refused}
    assert events(tmp_path)[0]["reasons"] == {"trap h.test/day/N": refused}


class OwnItemSpider(SeedSpider):
    page_results = False

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"a": 1}
        yield from response.follow_all(css="a")


def test_a_trap_ends_where_nobody_wants_the_results_of_its_pages(tmp_path: Path, site: dict[str, Any]) -> None:
    site["*"] = lambda path: f"2031-03-04 {day(path)}"
    crawled = crawl(tmp_path, [seed("/day/1")], OwnItemSpider, DEPTH_LIMIT=90, CONCURRENT_REQUESTS=1)
    assert crawled.stats["links/refused/trap"] > 0
    assert 50 <= len(crawled.items) < 100


class Page(NamedTuple):
    """Of a job, what a trap goes by."""

    url: str
    is_link: bool = True
    seed: Any = SimpleNamespace(page_scope=None)


def write(traps: Traps, path: str, text: str, **fields: Any) -> None:
    traps.written(cast(Job, Page(HOST + path)), {"status": 200, "body_hash": text, **fields})


def calendar(number: int, more: str = "") -> str:
    at = date(2031, 1, 1) + timedelta(number)
    links = f'<a href="/calendar/{at}">today</a> <a href=/calendar/{at.year}/{at.month}/>month</a>'
    return f"<title>{at}</title><h1>{at:%A}, {at.day} {at:%B %Y}</h1><p>No events.{more}{links}"


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("is_link", [True, False])
def test_a_calendar_without_events_is_a_trap_with_and_without_site_text(is_link: bool, text: bool) -> None:
    """What has no dates differs with any link: galleries and lists are none. Pages of seeds are not looked at so."""
    traps, page = Traps(), Page("", is_link=is_link)
    for n in range(60):
        for kind, body in (
            ("calendar", calendar(n)),
            ("events", calendar(n, f"event {n // 2}")),
            ("gallery", f'<img src="{chr(256 + n)}.jpg"><a href="/gallery/{n + 1}">next</a>'),
            ("list", f'<a href="/{chr(256 + n)}">Open</a><p>Updated 27 Nov 2026'),
        ):
            said = {"status": 200, "body_hash": body, "body": body}
            said |= dict.fromkeys(("text", "text_hash"), re.sub("<.*?>", " ", body)) if text else {}
            traps.written(cast(Job, page._replace(url=f"{HOST}/{kind}/{n}")), said)
    found = [traps.of(f"{HOST}/{kind}/99", None) for kind in ("calendar", "events", "gallery", "list")]
    assert found == ["h.test/calendar/N" if is_link else None, None, None, None]


@pytest.mark.parametrize("comments", [0, 8_000])
def test_pages_of_one_text_differ_by_links_and_images_and_not_by_numbers_in_them(comments: int) -> None:
    """A calendar and a session are traps; a gallery and a list are none, however long their pages are."""
    traps, padding, day = Traps(), "<!-- -->" * comments, '<a href="/day/{}?sid={:032x}"><img src={}.png></a>'
    for n in range(60):
        write(traps, f"/day/{n}", f"{n}", text_hash="a", body=padding + day.format(n, n**20 + 2**120, n))
        write(traps, f"/list/{n}", f"{n}", text_hash="a", body=f'{padding}<a href="/{chr(256 + n)}">Open</a>')
        write(traps, f"/gallery/{n}", f"{n}", text_hash="a", body=f"{padding}<img src='/{chr(256 + n)}.jpg'>")
    found = [traps.of(f"{HOST}/{kind}/99", None) for kind in ("day", "list", "gallery")]
    assert found == ["h.test/day/N", None, None]


def test_pages_that_may_differ_behind_what_is_kept_of_them_are_no_trap() -> None:
    """A gallery, with a small SITE_BODY_MAX_BYTES."""
    traps, body = Traps(), "<p>My pictures, 27 Nov 2026"
    for n in range(60):
        write(traps, f"/cut/{n}", f"{n}", text_hash="a", body=body, body_truncated=True)
        write(traps, f"/untold/{n}", f"{n}", body=body, body_truncated=True)
        write(traps, f"/same/{n}", "same", text_hash="a", body=body, body_truncated=True)
    found = [traps.of(f"{HOST}/{kind}/99", None) for kind in ("cut", "untold", "same")]
    assert found == [None, None, "h.test/same/N"]


def test_pages_with_texts_of_their_own_are_looked_at_now_and_then() -> None:
    traps = Traps()
    first, rest = _FIRST, _REST
    for n in range(first):
        write(traps, f"/a/{n}", "same")
    for n in range(first, first + 50):
        write(traps, f"/a/{n}", f"{n}")
    for n in range(first + 50, first + 50 + rest + 50):
        assert traps.of(f"{HOST}/a/9", None) is None, n
        write(traps, f"/a/{n}", "same")
    assert traps.of(f"{HOST}/a/9", None) == "h.test/a/N"


def test_a_trap_is_made_by_different_pages_that_were_fetched_well() -> None:
    traps = Traps()
    for n in range(200):
        write(traps, "/same/1", "one page, fetched again and again")
        write(traps, f"/gone/{n}", "", status=404)
        write(traps, f"/new/{n}", f"{n // 10}")  # one in ten
        write(traps, f"/text/{n}", f"{n}", text_hash="the same")
        write(traps, f"/body/{n}", "the same", text_hash=f"{n}")
        write(traps, f"/unchanged/{n}", "", body_hash=None)
        write(traps, f"/head/{n}", "the hash of nothing", method="HEAD")
    kinds = ("same", "gone", "new", "body", "unchanged", "head")
    assert [traps.of(f"{HOST}/{kind}/999", None) for kind in kinds] == [None] * 6
    assert traps.of(f"{HOST}/text/999", None) == "h.test/text/N"
    assert traps.of(f"{HOST}/text/x", None) is traps.of(f"{HOST}/text/1", "task") is None


def test_a_trap_is_looked_at_anew_after_an_hour_and_when_its_pages_differ_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traps = Traps()
    now = 1_000.0
    monkeypatch.setattr(runtime, "monotonic", lambda: now)
    for n in range(_FIRST + 50):
        assert traps.of(f"{HOST}/a/99", None) is None, n
        write(traps, f"/a/{n}", "same")
        write(traps, f"/b/{n}", "same")
    assert traps.of(f"{HOST}/a/99", None) == "h.test/a/N"
    for n in range(100, 104):
        write(traps, f"/a/{n}", f"{n}")
    assert traps.of(f"{HOST}/a/99", None) is None
    now += 3_600
    assert traps.of(f"{HOST}/b/99", None) is None
    write(traps, "/b/100", "same")
    assert traps.of(f"{HOST}/b/99", None) is None


def test_a_recrawl_of_its_pages_neither_hides_nor_ends_a_trap() -> None:
    traps, seeds, links = Traps(), Page("", is_link=False), Page("")

    def written(page: Page, number: int) -> None:
        said = {
            "status": 200,
            "body_hash": f"{number}",
            "body": f"<p>No events on {date(2031, 1, 1) + timedelta(number)}",
        }
        traps.written(cast(Job, page._replace(url=f"{HOST}/day/{number}")), said)

    for kind in (seeds, links, seeds):
        for number in range(_FIRST + 50):
            assert traps.of(f"{HOST}/day/99", None) is None or kind is seeds
            written(kind, number)
    assert traps.of(f"{HOST}/day/99", None) == "h.test/day/N"


def test_traps_keep_a_bounded_number_of_patterns_and_pages() -> None:
    traps = Traps()
    for n in range(2_500):
        for again in range(_FIRST + 1):
            write(traps, f"/{'x' * (n % 100)}{'y' * (n // 100)}/{again}", "same")
        write(traps, f"/y/{n}", f"{n}")
        if n % 41 == 0:  # that its first pages have passed is forgotten before it is found
            write(traps, f"/slow/{n}", "same")
    assert traps.of(f"{HOST}/slow/9", None) == "h.test/slow/N"
    assert len(traps._pages) == 2_000
    assert max(map(len, traps._pages.values())) == 50
