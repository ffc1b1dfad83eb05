"""What the web as it is asks for, together with kills, pauses, spill and exactly-once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response

from site_spider import settings as defaults
from site_spider.adapters.local.results import LocalResults
from site_spider.engine.scrapy_parts import part_of
from site_spider.service.seed_producer import SeedProducer
from site_spider.service.service import SeedService
from site_spider.spiders import conditional
from site_spider.tasks.budgets import TaskStates
from tests.in_process import engine
from tests.in_process.engine import Crawled, crawl, page, settings_for
from tests.in_process.extraction import in_a_thread
from tests.results.test_exactly_once import PlayedConsumer, PlayedLog
from tests.tasks.test_end_in_crawl import events, told
from tests.tasks.test_pause_and_cancel import declare, desk

HOST = "http://host.test"
EXACTLY_ONCE: dict[str, Any] = {
    "SITE_KAFKA_BROKERS": "played:9092",
    "SITE_SINKS": "local,kafka",
    "SITE_KAFKA_EXACTLY_ONCE": True,
    "SITE_SEED_LOG_CLASSES": defaults.SITE_SEED_LOG_CLASSES | {"kafka": f"{PlayedLog.__module__}.{PlayedLog.__name__}"},
}


class Site:
    """Pages by path: a text, or what gives one; and what was asked for."""

    def __init__(self) -> None:
        self.pages: dict[str, Any] = {}
        self.asked: list[Request] = []

    async def download(self, request: Request) -> Response:
        self.asked.append(request)
        path = request.url.removeprefix(HOST)
        body = self.pages.get(path, self.pages.get("*", "<p>page"))
        body = body(path) if callable(body) else body
        if asyncio.iscoroutine(body):
            body = await body
        etag = f'"{hash(body)}"'
        same = request.headers.get("If-None-Match") == etag.encode()
        return page(request, "" if same else body, 304 if same else 200, ETag=etag)

    @property
    def paths(self) -> Counter[str]:
        return Counter(request.url.removeprefix(HOST) for request in self.asked)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site()

    async def download(_handler: Any, request: Request) -> Response:
        return await made.download(request)

    monkeypatch.setattr(engine.ScriptedHandler, "download_request", download)
    monkeypatch.setattr(conditional, "LOOK_UP_SECONDS", 60.0)
    PlayedConsumer.stored.clear()
    PlayedConsumer.away = 0
    PlayedConsumer.refuses = ""
    return made


def links(*paths: str) -> str:
    return "".join(f'<a href="{path}">' for path in paths)


def seed(path: str = "/page", **fields: Any) -> dict[str, Any]:
    return {"url": HOST + path, **fields}


def document(folder: Path, path: str = "/page") -> dict[str, Any]:
    found = [one for one in LocalResults(folder).search(limit=None) if one["url"] == HOST + path]
    return dict(found[0]) if found else {}


async def never(_path: str = "") -> str:
    await asyncio.Event().wait()
    return ""


def paused_at(
    folder: Path, site: Site, count: int, answer: Callable[[str], str], **task: Any
) -> Callable[[Crawler], bool]:
    """Pauses the task at so many requests; says whether nothing of it is in flight any more."""
    is_paused = asyncio.Event()

    async def pausing(path: str) -> str:
        if len(site.asked) == count:
            await asyncio.to_thread(declare, folder, state="paused", **task)
            await is_paused.wait()
        return answer(path)

    def is_done(crawler: Crawler) -> bool:
        states, service = part_of(crawler, TaskStates), SeedService.of(crawler)
        state = states.of("t")
        if state is not None and state.phase.name == "paused":
            is_paused.set()
        return is_paused.is_set() and not service.parts.completion.ledger.in_flight

    site.pages["*"] = pausing
    return is_done


# --- if_changed ---

CHECKED = seed(if_changed=True, meta={"task_id": "t"})


def killed_after_the_page(folder: Path, site: Site, **settings: Any) -> None:
    """The page is written, and a link of it was never answered."""
    site.pages["/below"] = never

    before = document(folder)

    def is_written(_crawler: Crawler) -> bool:
        found = document(folder)
        return bool(found) and site.paths["/below"] > 0 and found.get("checked_at") != before.get("checked_at")

    crawled = crawl(folder, [CHECKED], until=is_written, SITE_STOP_GRACE_SECONDS=0.1, **settings)
    assert crawled.lag == 1
    site.pages["/below"] = "<p>below"


def changed_once(folder: Path, site: Site) -> dict[str, Any]:
    """A page that is stored, and is another one now, with a link."""
    crawl(folder, [CHECKED])
    first = document(folder)
    site.pages["/page"] = "<p>new" + links("/below")
    return first


@pytest.mark.parametrize("settings", [{}, EXACTLY_ONCE], ids=["at least once", "exactly once"])
def test_after_a_kill_a_change_is_still_one_and_its_links_are_followed(
    tmp_path: Path, site: Site, settings: dict[str, Any]
) -> None:
    first = changed_once(tmp_path, site)
    killed_after_the_page(tmp_path, site, **settings)
    changed_at = document(tmp_path)["changed_at"]
    again = crawl(tmp_path, [], **settings)
    found = document(tmp_path)
    assert (found["unchanged"], found["changed_at"], again.lag) == (False, changed_at, 0)
    assert found["interval_s"] == max(3_600, first["interval_s"] // 2)  # counted once
    assert document(tmp_path, "/below")["status"] == 200


def test_exactly_once_holds_for_checks(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a page that has changed and of one that has not, while transactions fail."""
    monkeypatch.setattr("site_spider.results.exactly_once._RETRY_SECONDS", 0.05)
    seeds = [CHECKED, seed("/same", if_changed=True, meta={"task_id": "t"})]
    crawl(tmp_path, seeds, **EXACTLY_ONCE)
    site.pages["/page"] = "<p>new"
    PlayedConsumer.stored.clear()
    PlayedConsumer.away = 2
    again = crawl(tmp_path, seeds, **EXACTLY_ONCE)
    stored = {record.key: record.document for record in PlayedConsumer.stored}
    assert (PlayedConsumer.away, again.lag, len(PlayedConsumer.stored)) == (0, 0, 2)
    for path, is_same in (("/page", False), ("/same", True)):
        found = document(tmp_path, path)
        said = stored[found["url_id"]]
        assert (said["unchanged"], "body" in said) == (is_same, not is_same)
        assert (found["unchanged"], found["checked_at"]) == (is_same, said["checked_at"])


def test_a_parked_seed_keeps_its_conditions(tmp_path: Path, site: Site) -> None:
    """Those of the store, and its own; and so does one whose retry is parked."""
    crawl(tmp_path, [CHECKED])
    etag = document(tmp_path)["etag"]
    own = seed("/own", if_changed=True, etag='"mine"', follow_unchanged=False, meta={"task_id": "t"})
    declare(tmp_path, state="paused")
    assert crawl(tmp_path, [CHECKED, own]).seeds["spilled"] == 2
    site.asked.clear()
    declare(tmp_path)
    assert desk(tmp_path).put_back("t") == 2
    crawl(tmp_path, [])
    asked = {request.url: request.headers.get("If-None-Match") for request in site.asked}
    assert asked == {HOST + "/page": etag.encode(), HOST + "/own": b'"mine"'}
    assert document(tmp_path)["unchanged"] is True


def test_a_seed_that_is_parked_after_a_kill_is_the_same_check(tmp_path: Path, site: Site) -> None:
    """What it had written before is no version to compare with: its links were not followed."""
    declare(tmp_path)
    first = changed_once(tmp_path, site)
    killed_after_the_page(tmp_path, site)
    changed_at = document(tmp_path)["changed_at"]
    declare(tmp_path, state="paused")
    assert crawl(tmp_path, []).seeds["spilled"] == 1
    declare(tmp_path)
    assert desk(tmp_path).put_back("t") == 1
    crawl(tmp_path, [])
    found = document(tmp_path)
    assert document(tmp_path, "/below").get("status") == 200
    assert (found["unchanged"], found["changed_at"]) == (False, changed_at)
    assert found["interval_s"] == max(3_600, first["interval_s"] // 2)


def test_a_link_that_leaves_after_a_kill_is_the_same_check(tmp_path: Path, site: Site) -> None:
    """As a seed that does: else what its page leads to would be lost."""
    site.pages |= {"/top": links("/page"), "/page": links("/below"), "/below": never}
    top = seed("/top", if_changed=True, meta={"task_id": "t"})
    crawl(tmp_path, [top], until=lambda _crawler: site.paths["/below"] > 0, SITE_STOP_GRACE_SECONDS=0.1)
    assert document(tmp_path)["status"] == 200
    site.pages["/below"] = "<p>below"
    assert crawl(tmp_path, [], SITE_LINKS_TO="kafka").lag == 0
    assert (document(tmp_path)["unchanged"], document(tmp_path, "/below").get("status")) == (False, 200)


# --- traps ---


def day(path: str) -> str:
    """Leads to the ten days that follow; its text is that of any other."""
    number = int(path.rpartition("/")[2])
    return "<p>nothing" + links(*(f"/day/{number + n}" for n in range(1, 11)))


TRAP = "host.test/day/N"
OF_TRAPS: dict[str, Any] = {"DEPTH_LIMIT": 0, "CONCURRENT_REQUESTS": 1, "SITE_TEXT": "plain"}
DAY = seed("/day/0", meta={"task_id": "t"})


def trapped(crawled: Crawled) -> int:
    return int(crawled.stats.get("links/refused/trap", 0))


def shown(folder: Path) -> dict[str, int]:
    return dict(desk(folder).overview().of("t").document()["traps"])


@pytest.mark.parametrize("way", ["memory", "kafka"])
@in_a_thread()
def test_a_trap_ends_with_exactly_once_and_its_links_are_counted_once(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Whatever transactions fail; links are kept with their tree, or leave in its transaction."""
    monkeypatch.setattr("site_spider.results.exactly_once._RETRY_SECONDS", 0.05)
    site.pages["*"] = day
    PlayedConsumer.away = 3
    declare(tmp_path)
    crawled = crawl(tmp_path, [DAY], SITE_LINKS_TO=way, **OF_TRAPS, **EXACTLY_ONCE)
    assert 50 <= len(crawled.documents) < 150
    assert Counter(record.key for record in PlayedConsumer.stored) == dict.fromkeys(crawled.documents, 1)
    assert shown(tmp_path) == {TRAP: trapped(crawled)}
    assert trapped(crawled) > 0


@in_a_thread()
def test_links_out_of_a_trap_are_counted_and_not_parked(tmp_path: Path, site: Site) -> None:
    """What waits when its task is paused is fetched when that goes on, and leads no deeper."""
    declare(tmp_path)
    is_done = paused_at(tmp_path, site, 65, day)  # the trap is known, and links wait
    first = crawl(tmp_path, [DAY], until=is_done, **OF_TRAPS)
    parked = first.stats["spill/sent"]
    assert (first.lag, trapped(first) > 0) == (0, True)
    assert shown(tmp_path) == {TRAP: trapped(first)}
    declare(tmp_path)
    assert desk(tmp_path).put_back("t") == parked
    again = crawl(tmp_path, [], **OF_TRAPS)
    assert set(site.paths) == {said["url"].removeprefix(HOST) for said in again.documents.values()}
    assert len(again.documents) >= len(first.documents) + parked
    assert shown(tmp_path) == {TRAP: trapped(first) + trapped(again)}


@in_a_thread()
def test_a_trap_is_found_anew_after_a_kill_and_what_was_counted_stays(tmp_path: Path, site: Site) -> None:
    """The report has the links of both processes: the seed is repeated with its tree."""
    declare(tmp_path)
    counted: list[int] = []

    async def dying(path: str) -> str:
        while not counted and len(site.asked) > 65 and not shown(tmp_path):
            await asyncio.sleep(0.05)
        return await never() if not counted and shown(tmp_path) else day(path)

    site.pages["*"] = dying
    with SeedProducer(settings_for(tmp_path), task_id="t", closes_task=True) as producer:
        producer.send(DAY)
    brief = {**OF_TRAPS, "SITE_STOP_GRACE_SECONDS": 0.1}
    assert crawl(tmp_path, [], until=lambda _crawler: bool(shown(tmp_path)), **brief).lag == 1
    counted.append(shown(tmp_path)[TRAP])
    again = crawl(tmp_path, [], until=told(tmp_path), **OF_TRAPS)
    assert (again.lag, trapped(again) > 0) == (0, True)
    assert shown(tmp_path) == {TRAP: counted[0] + trapped(again)}
    assert 0 < events(tmp_path)[0]["reasons"][f"trap {TRAP}"] <= counted[0] + trapped(again)  # as told by then


# --- parameters that are not compared ---

ROOT = seed("/", meta={"task_id": "t"})
FORMS = ("/p/0?x=1", "/p/0?x=2", "/p/0", "/p/1?x=7")  # two pages


def forms(path: str) -> str:
    return f"<p>{path}" + links(*FORMS, *(f"/q/{n}?x={len(path)}" for n in range(20)))


@pytest.mark.parametrize(
    "settings", [{"SITE_LINKS_TO": "kafka"}, {"SITE_FRONTIER_MAX_REQUESTS": 3}, {"SITE_TREE_MAX_PAGES": 2}], ids=str
)
@pytest.mark.parametrize("filters", [False, True])
def test_pages_of_one_form_are_fetched_once_though_their_links_are_spilled(
    tmp_path: Path, site: Site, settings: dict[str, Any], filters: bool
) -> None:
    site.pages["*"] = forms
    declare(tmp_path, drop_params=["x"])
    crawled = crawl(tmp_path, [ROOT], SITE_FILTER_SEEDS=filters, DEPTH_LIMIT=0, **settings)
    fetched = Counter(path.partition("?")[0] for path in site.paths)
    assert fetched == dict.fromkeys(["/", "/p/0", "/p/1", *(f"/q/{n}" for n in range(20))], 1)
    assert (crawled.lag, len(crawled.documents), crawled.dead_letters) == (0, 23, [])


def test_pages_of_one_form_are_fetched_once_though_their_task_was_paused(tmp_path: Path, site: Site) -> None:
    """Links that were parked come back after others of their form, or before."""
    declare(tmp_path, drop_params=["x"])
    is_done = paused_at(tmp_path, site, 5, forms, drop_params=["x"])
    settings: dict[str, Any] = {"DEPTH_LIMIT": 0, "CONCURRENT_REQUESTS": 1, "SITE_DUPEFILTER": "local"}
    crawl(tmp_path, [ROOT], until=is_done, **settings)
    assert 5 <= len(site.asked) < 23
    declare(tmp_path, drop_params=["x"])
    assert desk(tmp_path).put_back("t") > 0
    crawled = crawl(tmp_path, [], **settings)
    fetched = Counter(path.partition("?")[0] for path in site.paths)
    assert (crawled.lag, len(crawled.documents), set(fetched.values())) == (0, 23, {1})


def test_links_that_were_parked_are_fetched_though_another_form_was_tried_meanwhile(tmp_path: Path, site: Site) -> None:
    """They left as pages of the form in which they were found: none is done with the page that led to them."""
    declare(tmp_path)
    is_done = paused_at(tmp_path, site, 5, forms, drop_params=["x"])
    settings: dict[str, Any] = {"DEPTH_LIMIT": 1, "CONCURRENT_REQUESTS": 1, "SITE_DUPEFILTER": "local"}
    crawl(tmp_path, [ROOT], until=is_done, **settings)
    assert 5 <= len(site.asked) < 25
    declare(tmp_path)
    assert desk(tmp_path).put_back("t") > 0
    crawled = crawl(tmp_path, [], **settings)
    assert (crawled.lag, len(crawled.documents), set(Counter(site.paths).values())) == (0, 25, {1})
