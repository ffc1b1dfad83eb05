"""Pages that are fetched again only if they have changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import DownloadTimeoutError
from scrapy.http import Response

from site_spider import SeedSpider, runtime
from site_spider.adapters.local.log import LocalSeedLog
from site_spider.adapters.local.results import LocalResults, LocalSink, LocalStore
from site_spider.contracts.sink import Answer, Record, Verdict
from site_spider.dead_letter_replay import Replay
from site_spider.engine.scrapy_parts import LeanCookies, LeanOffsite
from site_spider.errors import SinkUnavailable
from site_spider.seed.topics import CrawlTopics
from site_spider.service import config as parts
from site_spider.service.seed_producer import SeedProducer
from site_spider.spiders import conditional
from site_spider.spiders.conditional import StoredPages
from tests.contracts.trials import written
from tests.in_process import engine
from tests.in_process.engine import ANSWERS, Crawled, crawl, page, produce, settings_for
from tests.in_process.extraction import in_a_thread
from tests.tasks.test_end_in_crawl import events, told
from tests.tasks.test_pause_and_cancel import declare

HOST = "http://a.test"
ETAG = 'W/"1"'
DATE = "Sat, 03 Jan 2026 00:00:00 GMT"
LINK = '<a href="/below">'
CHECK = {"if_changed": True}


class Site:
    def __init__(self, etag: str | None = ETAG, date: str | None = None, path: str = "/page", body: str = LINK):
        self.etag, self.date, self.body, self.status = etag, date, body, 200
        self.asked: list[dict[bytes, Any]] = []
        ANSWERS[path] = self

    def __call__(self, request: Request) -> Response:
        self.asked.append({name: request.headers[name] for name in request.headers})
        headers = {name: value for name, value in (("ETag", self.etag), ("Last_Modified", self.date)) if value}
        same = self.etag and request.headers.get("If-None-Match") == self.etag.encode()
        same = same or (self.date and request.headers.get("If-Modified-Since") == self.date.encode())
        return page(request, "" if same else self.body, 304 if same else self.status, **headers)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditional, "LOOK_UP_SECONDS", 60.0)


def no_answer(request: Request) -> Response:
    raise DownloadTimeoutError("too slow")


async def hang(request: Request) -> Response:
    await asyncio.Event().wait()
    return page(request)


def seed(path: str = "/page", **fields: Any) -> dict[str, Any]:
    return {"url": HOST + path, **fields}


def run(folder: Path, *seeds: dict[str, Any], **settings: Any) -> Crawled:
    return crawl(folder, seeds or [seed(**CHECK)], **settings)


def of_page(crawled: Crawled, path: str = "/page") -> dict[str, Any]:
    (found,) = [one for one in crawled.documents.values() if one["url"] == HOST + path]
    return found


def checks(folder: Path, answers: Mapping[str, engine.Answer], **settings: Any) -> list[dict[str, Any]]:
    """The documents of these pages, which answer so, after a check of each."""
    ANSWERS.update(answers)
    crawled = run(folder, *(seed(path, **CHECK) for path in answers), **settings)
    return [of_page(crawled, path) for path in answers]


def count(crawled: Crawled) -> int:
    return int(crawled.stats["downloader/request_count"])


def test_a_page_that_is_the_same_keeps_its_document_and_gives_no_links(tmp_path: Path) -> None:
    versions = {"/etag": (ETAG, None), "/date": (None, DATE), "/both": (ETAG, DATE), "/none": (None, None)}
    sites = {path: Site(*said, path) for path, said in versions.items()}
    seeds = [seed(path, **CHECK) for path in sites]
    before, again = run(tmp_path, *seeds), run(tmp_path, *seeds)
    assert count(again) == 4  # without the link
    assert again.seeds["completed_with_result"] == 4
    for path, site in sites.items():
        first, second = of_page(before, path), of_page(again, path)
        assert (first["unchanged"], second["unchanged"]) == (False, True)
        assert first["changed_at"] == first["checked_at"] == first["fetched_at"] < second["checked_at"]
        told = {name: first[name] for name in ("checked_at", "next_at", "interval_s")}
        assert {**second, "unchanged": False, **told} == first
        assert site.asked[-1].get(b"If-None-Match") == (site.etag and site.etag.encode())
        assert site.asked[-1].get(b"If-Modified-Since") == (site.date and site.date.encode())


NEW = {"body": "<p>new", "etag": '"2"'}
FAILS = {"status": 404}
# what a page is, and how it is asked for, time after time; its body in the end, and whether a change is known
TIMES: dict[str, tuple[list[tuple[dict[str, Any], dict[str, Any]]], str, bool]] = {
    "/whole": ([({}, CHECK), ({}, {})], LINK, False),  # compared with nothing
    "/of-its-own": ([({}, CHECK), (NEW, {**CHECK, "etag": '"2"'})], "<p>new", True),  # not of what is stored
    "/failed": ([(FAILS, CHECK), ({"status": 200}, CHECK)], LINK, False),
    "/failed-of-its-own": ([(FAILS, CHECK), ({"status": 200}, {**CHECK, "etag": ETAG})], LINK, False),
    "/failed-since": ([({}, CHECK), ({"status": 500, "etag": None}, {}), ({"status": 200}, CHECK)], LINK, False),
    "/head": ([({"body": ""}, {"method": "HEAD"}), ({"body": LINK}, CHECK)], LINK, False),
}


def test_what_is_no_version_of_a_page_is_compared_with_nothing(tmp_path: Path) -> None:
    """A failure, what has no body, and what nobody asked to be compared with; nor are its conditions sent."""
    sites = {path: Site(path=path) for path in TIMES}
    for left in (3, 2, 1):
        seeds = []
        for path, (times, _, _) in TIMES.items():
            if len(times) >= left:
                is_now, fields = times[-left]
                vars(sites[path]).update(is_now)
                seeds.append(seed(path, **fields))
        crawled = run(tmp_path, *seeds, RETRY_TIMES=0)
    for path, (_, body, is_known) in TIMES.items():
        found = of_page(crawled, path)
        assert (found["unchanged"], found["description"], found["body"]) == (False, None, body), path
        assert (found["changed_at"] is not None) is is_known, path
        assert path == "/of-its-own" or b"If-None-Match" not in sites[path].asked[-1], path


def test_links_of_a_page_that_is_the_same_are_followed_by_choice(tmp_path: Path) -> None:
    site = Site()
    run(tmp_path)
    again = run(tmp_path, seed(if_changed=True, follow_unchanged=True))
    assert count(again) == 2
    assert b"If-None-Match" not in site.asked[-1]  # the body is needed
    assert (of_page(again)["unchanged"], of_page(again)["body"]) == (True, site.body)


OWN: list[dict[str, Any]] = [
    *({**CHECK, "etag": ETAG}, {**CHECK, "last_modified": DATE}, {"meta": {"etag": ETAG, **CHECK}}),
    *({"headers": {"if-none-match": ETAG}}, {**CHECK, "headers": {"If-Modified-Since": DATE}}),
    *({**CHECK, "headers": {"if-none-match": ETAG}}, {"headers": {"If-Modified-Since": DATE}}),
]


def test_a_seeds_own_conditions_need_no_store(tmp_path: Path) -> None:
    Site(ETAG, DATE)
    crawled = run(tmp_path, *(seed(f"/page?{number}", **fields) for number, fields in enumerate(OWN)))
    for number, fields in enumerate(OWN):
        found = of_page(crawled, f"/page?{number}")
        assert (found["unchanged"], "body" in found, "description" in found) == (True, False, False), fields
    assert crawled.seeds["completed_with_result"] == len(OWN)


def test_a_304_that_nobody_asked_for_is_a_failure(tmp_path: Path) -> None:
    ANSWERS["/page"] = lambda request: page(request, "", 304)
    crawled = run(tmp_path)
    assert of_page(crawled)["description"] == "HTTP 304 Not Modified"
    assert crawled.seeds["completed_with_failure"] == 1


def test_what_a_crash_undid_says_of_a_change_stays(tmp_path: Path) -> None:
    """The document was written after the seed had been produced: by an attempt before."""
    site = Site()
    stored = of_page(run(tmp_path))
    said = {"changed_at": "2099-01-01T00:00:00.000+00:00", "checked_at": "2099-01-01T00:00:00.000+00:00"}
    written(LocalSink(tmp_path), [Record(stored["url_id"], {**stored, **said}, 0)])
    found = of_page(run(tmp_path))
    assert (found["unchanged"], found["changed_at"]) == (False, said["changed_at"])
    assert found["checked_at"] < said["checked_at"]
    assert b"If-None-Match" not in site.asked[-1]


def test_a_redirected_page_is_compared_as_well(tmp_path: Path) -> None:
    """With what was stored of the page that it led to: another one may have the same validators."""
    site, to = Site(), ["/page"]
    ANSWERS["/old"] = lambda request: Response(request.url, 301, headers={"Location": to[0]})
    moved = {"url": f"{HOST}/old", "if_changed": True}

    def found() -> tuple[Any, ...]:
        (one,) = [one for one in run(tmp_path, moved).documents.values() if one["url"].endswith("/old")]
        return one["unchanged"], one["status"], one["final_url"], one["body"]

    assert found() == (False, 200, f"{HOST}/page", site.body)
    assert found() == (True, 200, f"{HOST}/page", site.body)
    assert site.asked[-1][b"If-None-Match"] == ETAG.encode()
    to[0], ANSWERS["/other"], site.body = "/other", site, "<p>other"
    assert found() == (False, 200, f"{HOST}/other", site.body)


def test_pages_without_a_body_are_compared_by_what_their_heads_say(tmp_path: Path) -> None:
    sites = {name: Site(None, body="", path=f"/{name}") for name in ("etag", "date")}

    def heads(says: str | None, status: int = 200) -> list[dict[str, Any]]:
        for name, site in sites.items():
            vars(site).update({name: says, "status": status})
        crawled = run(tmp_path, *(seed(f"/{name}", method="HEAD", **CHECK) for name in sites))
        return [of_page(crawled, f"/{name}") for name in sites]

    first = heads("1")
    assert all(found["changed_at"] for found in first)
    for name, site in sites.items():  # which knows no conditions
        ANSWERS[f"/{name}"] = lambda request, site=site: site(request.replace(headers={}))
    assert [found["unchanged"] for found in heads("1")] == [True, True]
    for status in (500, 200):
        assert [found["changed_at"] for found in heads("1", status)] == [found["changed_at"] for found in first]
    for found in heads("2"):
        assert (found["unchanged"], found["changed_at"]) == (False, found["checked_at"])
    last = heads(None)
    assert [(found["unchanged"], found["changed_at"]) for found in last] == [(False, None)] * 2  # nobody can say
    assert [found["interval_s"] for found in heads(None)] == [found["interval_s"] for found in last]


@pytest.mark.parametrize(
    ("error", "said"), [(SinkUnavailable("the store is away"), "the store is away"), (KeyError("x"), "KeyError('x')")]
)
def test_without_a_store_all_is_whole(tmp_path: Path, monkeypatch: Any, caplog: Any, error: Any, said: str) -> None:
    site = Site()
    run(tmp_path)

    monkeypatch.setattr(LocalResults, "known", Mock(side_effect=error))
    found = of_page(run(tmp_path, seed(**CHECK), seed(**CHECK)))
    assert (found["unchanged"], found["changed_at"], found["status"]) == (False, None, 200)
    assert b"If-None-Match" not in site.asked[-1]
    warned = [record.getMessage() for record in caplog.records if "for a while" in record.getMessage()]
    assert warned == [f"Stored documents are not looked up for a while: {said}"]


def test_a_store_that_does_not_answer_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditional, "LOOK_UP_SECONDS", 0.05)
    monkeypatch.setattr(LocalResults, "known", lambda *_: time.sleep(0.5) or {})
    Site()
    assert of_page(run(tmp_path))["status"] == 200


def test_many_questions_are_one() -> None:
    questions: list[list[str]] = []

    class Store(LocalResults):
        def known(self, url_ids: Any, fields: Any) -> Any:
            questions.append(list(url_ids))
            return {url_id: {"etag": url_id, "hash": "h"} for url_id in url_ids if url_id != "none"}

    async def scenario() -> list[Any]:
        store, names = Store(Path("nowhere")), {"etag": "etag", "body_hash": "hash"}
        pages = StoredPages(store, names, lambda work, _: asyncio.ensure_future(work))
        ids = [str(number) for number in range(500)]
        return await asyncio.gather(*map(pages.of, [*ids, "none", "1"]))

    found = asyncio.run(scenario())
    assert found[:2] == [{"etag": "0", "body_hash": "h"}, {"etag": "1", "body_hash": "h"}]
    assert found[-2:] == [{}, found[1]]
    assert [len(question) for question in questions] == [200, 200, 101]


def test_a_seeds_own_conditions_are_not_sent_while_the_store_is_away(tmp_path: Path, monkeypatch: Any) -> None:
    """They are about a version that may not be the stored one."""
    site = Site()
    run(tmp_path)
    monkeypatch.setattr(LocalResults, "known", lambda *_: 1 / 0)
    site.etag, site.body = '"2"', "<p>new"
    assert of_page(run(tmp_path, seed(if_changed=True, etag='"2"')))["body"] == "<p>new"


def test_validators_of_the_url_that_a_page_redirects_to_now_are_not_those_of_what_is_stored(tmp_path: Path) -> None:
    site = Site()
    run(tmp_path)
    ANSWERS["/page"] = lambda request: Response(request.url, 302, headers={"Location": "/other"})
    ANSWERS["/other"] = lambda request: page(request, site.body, ETag='"of another"')
    found = of_page(run(tmp_path))
    assert (found["unchanged"], found["etag"], found["final_url"]) == (True, ETAG, f"{HOST}/page")


def redirect_loop(request: Request) -> Response:
    return Response(request.url, 302, headers={"Location": request.url})


CONTENT = {"body", "body_hash", "body_truncated", "content_type", "encoding", "etag", "last_modified"}


FAILURES: dict[str, engine.Answer] = {"/none": no_answer, "/loop": redirect_loop}
FAILURES["/error"] = lambda request: page(request, "error", 500, ETag='"2"')


@pytest.mark.parametrize("is_away", [False, True])
def test_a_check_that_fails_leaves_the_content(tmp_path: Path, monkeypatch: Any, is_away: bool) -> None:
    """Also while the store does not say what it has; when the page is back it says since when it is as it is."""
    sites = {path: Site(path=path) for path in FAILURES}
    all_stored = checks(tmp_path, sites)
    with monkeypatch.context() as patched:
        if is_away:
            patched.setattr(LocalResults, "known", Mock(side_effect=SinkUnavailable("away")))
        all_failed = checks(tmp_path, FAILURES, RETRY_TIMES=0)
    times = {"fetched_at", "checked_at", "next_at", "latency_ms", "failed_checks", "gone_checks", "absent"}
    for stored, failed, back in zip(all_stored, all_failed, checks(tmp_path, sites), strict=True):
        assert (bool(failed["description"]), failed["unchanged"]) == (True, False)
        assert {name: failed[name] for name in CONTENT} == {name: stored[name] for name in CONTENT}
        assert {**back, **dict.fromkeys(times)} == {**stored, **dict.fromkeys(times)}  # of the failure nothing stays
    sizes = [(failed["status"], failed["response_size"]) for failed in all_failed]
    assert sizes == [(None, None), (None, None), (500, 5)]  # which counts for a budget
    assert all(b"If-None-Match" not in site.asked[-1] for site in sites.values())
    checks(tmp_path, FAILURES, RETRY_TIMES=0)
    for site in sites.values():
        site.body, site.etag = "<p>new", '"2"'
    for stored, new in zip(all_stored, checks(tmp_path, sites), strict=True):
        assert new["changed_at"] > stored["changed_at"]


def test_a_check_whose_answer_somebody_refuses_leaves_the_content(tmp_path: Path, monkeypatch: Any) -> None:
    site, stored = Site(None), of_page(run(tmp_path))
    for middleware in (LeanOffsite, LeanCookies):
        monkeypatch.setattr(middleware, "process_response", lambda *_, **__: 1 / 0, raising=False)
        for site.body in (LINK, "<p>a captcha"):
            failed = of_page(run(tmp_path))
            assert (failed["body"], failed["changed_at"], failed["unchanged"]) == (LINK, stored["changed_at"], False)
            assert failed["description"]


@pytest.mark.parametrize(("stored", "failed"), [("GET", "HEAD"), ("HEAD", "GET")])
def test_a_check_that_fails_leaves_how_the_content_was_asked_for(tmp_path: Path, stored: str, failed: str) -> None:
    """A body is not compared with that of a page without one; and pages are checked again as they were stored."""
    site = Site()
    asked = {method: seed(method=method, meta={"url_id": "a"}, **CHECK) for method in ("GET", "HEAD")}
    before = of_page(run(tmp_path, asked[stored]))
    ANSWERS["/page"] = no_answer
    assert of_page(run(tmp_path, asked[failed], RETRY_TIMES=0))["method"] == stored
    ANSWERS["/page"] = site
    changed_at = of_page(run(tmp_path, asked["GET"]))["changed_at"]
    assert changed_at == (before["changed_at"] if stored == "GET" else None)


def test_a_check_that_fails_leaves_what_producers_have_under_chosen_names(tmp_path: Path) -> None:
    fields = {"title": "name", "etag": "etag", "encoding": "charset", "fetched_at": "fetched_at", "url": "url"}
    told = {"SITE_RESULT_FIELDS": fields, "RETRY_TIMES": 0}
    theirs = {"etag": '"0"', "charset": "theirs"}
    written(LocalSink(tmp_path), [Record("a", theirs, 100)])
    check = seed(meta={"url_id": "a"}, **CHECK)
    for answer in (no_answer, lambda request: Response(request.url)):
        ANSWERS["/page"] = answer
        found = run(tmp_path, check, **told).documents["a"]
        assert {name: found[name] for name in theirs} == theirs


@in_a_thread()
def test_a_page_that_says_noindex_later_loses_its_body_and_gets_it_back(tmp_path: Path) -> None:
    site, headers = Site(), {"X-Robots-Tag": "noindex"}
    told = {"SITE_NOINDEX": "Drop_Body"}  # as every choice it may be written so
    assert of_page(run(tmp_path, **told))["body"] == site.body
    for answer in (site, lambda request: page(request, site.body, ETag=ETAG)):
        run(tmp_path)  # with its body
        ANSWERS["/page"] = lambda request, answer=answer: _with(answer(request), headers)
        for _ in range(2):
            found = of_page(run(tmp_path, **told))
            assert (found["body"], found["robots_meta"]) == (None, "noindex")
        ANSWERS["/page"] = answer
        found = of_page(run(tmp_path, **told))
        assert (found["body"], found["robots_meta"]) == (site.body, None)


@in_a_thread()
def test_a_body_comes_back_where_the_document_does_not_say_that_it_was_dropped(tmp_path: Path) -> None:
    """SITE_RESULT_FIELDS leaves out what is asked for elsewhere: so it is fetched whole."""
    site, headers = Site(), {"X-Robots-Tag": "noindex"}
    fields = "url,etag,last_modified,body_hash,final_url,method,checked_at,changed_at,unchanged"
    told = {"SITE_NOINDEX": "drop_body", "SITE_RESULT_FIELDS": fields}
    ANSWERS["/page"] = lambda request: _with(site(request), headers)
    assert of_page(crawl(tmp_path, [seed(**CHECK)], **told))["body"] is None
    ANSWERS["/page"] = site
    assert of_page(crawl(tmp_path, [seed(**CHECK)], **told))["body"] == site.body


def _with(response: Response, headers: dict[str, str]) -> Response:
    return response.replace(headers={**response.headers, **headers})


@pytest.mark.parametrize("noindex", [True, False])
@in_a_thread()
def test_a_page_that_is_the_same_gives_no_links_where_it_is_fetched_for_its_body(tmp_path: Path, noindex: bool) -> None:
    """Else each check would fetch the site that is behind it."""
    site, headers = Site(), {"X-Robots-Tag": "noindex"} if noindex else {}
    ANSWERS["/page"] = lambda request: _with(site(request), headers)
    told: dict[str, Any] = {"SITE_NOINDEX": "drop_body"}
    if not noindex:
        told["SITE_RESULT_FIELDS"] = "url,etag,last_modified,body_hash,final_url,method,checked_at,changed_at,unchanged"
    assert [count(run(tmp_path, **told)) for _ in range(2)] == [2, 1]
    site.body, site.etag = f"new {LINK}", '"2"'
    assert count(run(tmp_path, **told)) == 2


@pytest.mark.parametrize("other", [seed(), {"url": f"{HOST}/list"}])
def test_a_page_that_is_the_same_does_not_count_as_done(tmp_path: Path, other: dict[str, Any]) -> None:
    """Its links are not followed: whoever had stored it may have died before they were."""
    Site()
    ANSWERS["/list"] = lambda request: page(request, '<a href="/page">')
    run(tmp_path, seed(meta={"NotExtract": True}))
    again = run(tmp_path, seed(if_changed=True, dont_filter=True), other, SITE_FILTER_SEEDS=True)
    assert f"{HOST}/below" in {one["url"] for one in again.documents.values()}


def test_a_failure_with_status_200_is_no_version_of_a_page(tmp_path: Path) -> None:
    """But no change either: a page that a callback cannot read is asked for ever less often."""
    broken = type("Broken", (SeedSpider,), {"name": "broken", "parse": lambda *_: 1 / 0})
    site = Site(etag=None)
    for body, interval_s in (LINK, 40_000), (LINK, 60_000), ("<p>new", 30_000), ("<p>new", 45_000), (LINK, 22_500):
        site.body = body
        found = of_page(crawl(tmp_path, [seed(**CHECK)], broken, SITE_RECRAWL_FIRST_SECONDS=40_000))
        assert found["interval_s"] == interval_s
    mended = run(tmp_path)
    assert (of_page(mended)["description"], of_page(mended)["unchanged"]) == (None, False)
    assert of_page(mended)["changed_at"] == found["changed_at"] == found["checked_at"]
    assert f"{HOST}/below" in {one["url"] for one in mended.documents.values()}
    odd = type("Odd", (), {"process_response": lambda *_: None})  # an error without a response, of what is unchanged
    refused = run(tmp_path, DOWNLOADER_MIDDLEWARES={**settings_for(tmp_path)["DOWNLOADER_MIDDLEWARES"], odd: 1})
    assert (of_page(refused)["body"], refused.seeds["completed_with_failure"]) == (LINK, 1)


def test_a_check_between_a_death_and_the_repeat_does_not_hide_a_change(tmp_path: Path) -> None:
    """The second seed says that the page is what the first one found; the links of that one are lost else."""
    site = Site(etag=None, body="old")
    run(tmp_path)
    site.body = '<a href="/new">'
    later, settings = [seed(**CHECK)], settings_for(tmp_path)

    def until(_crawler: Crawler) -> bool:
        (document,) = LocalResults(tmp_path).search(limit=None)
        if later and document["body"] == site.body:
            produce(parts.seed_log(settings), settings["SITE_SEED_TOPIC"], [later.pop()])
        return not later and document["unchanged"]

    ANSWERS["/new"] = hang
    crawl(tmp_path, [seed(**CHECK)], until=until, SITE_STOP_GRACE_SECONDS=0.1, SITE_SINK_FLUSH_SECONDS=0.02)
    ANSWERS["/new"] = page
    assert f"{HOST}/new" in {one["url"] for one in crawl(tmp_path, []).documents.values()}


@pytest.mark.parametrize("behind_seconds", [0, 1, 3_500])
def test_the_repeat_of_a_check_follows_links_where_the_clock_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind_seconds: int
) -> None:
    """By it the first attempt stored the page before its seed was written, as a check before would have."""
    site, now = Site(etag=None, body="old"), runtime.now
    run(tmp_path)
    monkeypatch.setattr(runtime, "now", lambda zone: now(zone) - timedelta(seconds=behind_seconds))
    site.body, ANSWERS["/below"] = LINK, hang

    def until(_crawler: Crawler) -> bool:
        (document,) = LocalResults(tmp_path).search(limit=None)
        return bool(document["body"] == LINK)

    crawl(tmp_path, [seed(**CHECK)], until=until, SITE_STOP_GRACE_SECONDS=0.1, SITE_SINK_FLUSH_SECONDS=0.02)
    ANSWERS["/below"] = page
    again = crawl(tmp_path, [])
    assert f"{HOST}/below" in {one["url"] for one in again.documents.values()}
    assert of_page(run(tmp_path))["unchanged"] is True


@pytest.mark.parametrize("status", [200, 404])
def test_a_page_that_a_callback_reads_is_met(tmp_path: Path, status: int) -> None:
    own = type("Own", (SeedSpider,), {"name": "own", "parse": lambda _, response: response.follow_all(css="a")})
    ANSWERS["/page"] = lambda request: page(request, '<a href="/page">', status)
    assert count(crawl(tmp_path, [seed(**CHECK)], own)) == 1


def test_what_is_posted_with_the_meta_of_a_page_has_no_part_in_its_check(tmp_path: Path) -> None:
    def parse(_: Any, response: Response) -> Any:  # as people write it
        return Request(f"{HOST}/post", method="POST", meta=response.meta) if response.url.endswith("/page") else None

    site, own = Site(etag=None), type("Own", (SeedSpider,), {"name": "own", "parse": parse})
    for status in (200, 200, 500):
        site.status, ANSWERS["/post"] = status, lambda request, status=status: page(request, f"posted {status}")
        found = of_page(crawl(tmp_path, [seed(follow_unchanged=True, **CHECK)], own, RETRY_TIMES=0), "/post")
        assert (found["body"], found["unchanged"], found["changed_at"]) == (f"posted {status}", False, None)


def test_a_dead_letter_that_is_put_back_is_no_later_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first attempt has written the new document; what was refused then is written now."""
    site = Site(etag=None, body="old")
    run(tmp_path)
    site.body = '<a href="/below">'
    put = LocalStore._put

    def refusing(store: LocalStore, connection: Any, record: Record, now: Any) -> Verdict:
        is_refused = record.document.get("url") == f"{HOST}/below"
        return Verdict(Answer.REJECTED, "wrong mapping") if is_refused else put(store, connection, record, now)

    with monkeypatch.context() as context:
        context.setattr(LocalStore, "_put", refusing)
        (letter,) = run(tmp_path).dead_letters
    topics = CrawlTopics.beside({"SITE_SEED_TOPIC": "seeds"})
    replay = Replay(LocalSeedLog(tmp_path), letter.partition.topic, print, topics)
    replay.run()
    again = crawl(tmp_path, [])
    assert replay.replayed == 1
    assert of_page(again, "/below")["status"] == 200
    assert (of_page(again)["unchanged"], of_page(again)["changed_at"] is None) == (False, False)


# --- the next check ---


def test_a_check_says_when_the_next_one_is_due(tmp_path: Path) -> None:
    site = Site()
    first = of_page(run(tmp_path, seed(), SITE_RECRAWL_FIRST_SECONDS=40_000))
    assert not {"next_at", "interval_s", "failed_checks"} & first.keys()
    for body, interval_s in (site.body, 60_000), (site.body, 90_000), ("<p>new", 45_000):
        site.body, site.etag = body, ETAG if body == site.body else '"2"'
        found = of_page(run(tmp_path, SITE_RECRAWL_FIRST_SECONDS=40_000))
        waits = datetime.fromisoformat(found["next_at"]) - datetime.fromisoformat(found["checked_at"])
        assert waits.total_seconds() == found["interval_s"] == interval_s


def robots(request: Request) -> Response:
    return Response(request.url, 200, body=b"User-agent: *\nDisallow: /")


@pytest.mark.parametrize("is_forbidden", [False, True])
def test_a_failed_check_has_an_interval_of_its_own_and_is_counted(tmp_path: Path, is_forbidden: bool) -> None:
    failures = {"/page": robots} if is_forbidden else FAILURES
    sites = {path: Site(path=path) for path in failures}
    (interval,) = {found["interval_s"] for found in checks(tmp_path, sites)}
    ANSWERS["/robots.txt"] = robots
    settings = {"SITE_RECRAWL_ERROR_SECONDS": 77, "ROBOTSTXT_OBEY": is_forbidden}
    for count in (1, 2):
        for found in checks(tmp_path, failures, **settings):
            waits = datetime.fromisoformat(found["next_at"]) - datetime.fromisoformat(found["fetched_at"])
            assert (waits.total_seconds(), found["failed_checks"], found["interval_s"]) == (77, count, interval)
    for found in checks(tmp_path, sites):
        assert (found["status"], found["interval_s"], found["failed_checks"]) == (200, interval, 0)
    assert {found["failed_checks"] for found in checks(tmp_path, failures, **settings)} == {1}


def test_a_page_is_gone_after_some_checks_and_comes_back_with_one_good_answer(tmp_path: Path) -> None:
    """What leads to it when it is due is a check of it; what comes sooner counts for none, and ends no row."""
    pages = ("/own", "/linked")  # which is found by its own check, and which by a link
    lists = [Site(etag=None, path=f"/list{path}") for path in pages]
    found, gone = checks(tmp_path, dict.fromkeys(pages, page)), []
    for number, status in enumerate((404, 500, 410, 404, 404), 1):
        ANSWERS.update(dict.fromkeys(pages, lambda request, status=status: page(request, "", status)))
        for one in found:
            past = {name: one[name].replace("20", "19", 1) for name in ("fetched_at", "checked_at", "next_at")}
            written(LocalSink(tmp_path), [Record(one["url_id"], past, 0)])
        for first in ("/own", "/list/own"):
            for site, path in zip(lists, pages, strict=True):
                site.body += f'<a href="{path}">'
            crawled = run(tmp_path, seed(first, **CHECK), seed("/list/linked", **CHECK), SITE_GONE_AFTER=2)
            found = [of_page(crawled, path) for path in pages]
        gone.append([one.get("gone_at") for one in found])
        assert [one["failed_checks"] for one in found] == [number] * 2
    for times in zip(*gone, strict=True):
        assert [*times] == [None] * 3 + [times[3]] * 2 != [None] * 5
    ANSWERS.update(dict.fromkeys(pages, page))
    crawled = run(tmp_path, *map(seed, pages))  # also without if_changed
    assert [of_page(crawled, path)["gone_at"] for path in pages] == [None, None]


def test_a_page_that_is_gone_is_deleted_by_choice(tmp_path: Path) -> None:
    ANSWERS["/page"] = lambda request: page(request, "", 410)
    choice = {"SITE_GONE": "delete", "SITE_GONE_AFTER": 2}
    assert of_page(run(tmp_path, **choice))["gone_checks"] == 1
    assert run(tmp_path, **choice).documents == {}
    ANSWERS["/page"] = page
    assert of_page(run(tmp_path, **choice))["status"] == 200


@pytest.mark.parametrize("is_spilled", [False, True])
def test_a_page_that_a_check_leads_to_is_compared_and_its_links_are_followed(tmp_path: Path, is_spilled: bool) -> None:
    """Whichever of its own check and the link comes first: the document says when it changed, once a round."""
    spill = {"SITE_LINKS_TO": "kafka" if is_spilled else "memory"}
    linked, same = f"{HOST}/linked", f"{HOST}/same"
    ANSWERS["/same"] = lambda request: page(request, '<a href="/deep">')
    for version in "ab":
        body = f'{version}<a href="/linked"><a href="/same">'
        ANSWERS["/page"] = lambda request, body=body: page(request, body)
        ANSWERS["/linked"] = lambda request, version=version: page(request, version)
        before = run(tmp_path, **spill)
    found = {document["url"]: document for document in before.documents.values()}
    assert (found[linked]["unchanged"], found[linked]["body"]) == (False, "b")
    assert found[linked]["changed_at"] == found[linked]["checked_at"]
    assert found[same]["unchanged"] is True
    assert found[same]["changed_at"] < found[same]["checked_at"]
    assert found[f"{HOST}/deep"]["unchanged"] is True
    own = run(tmp_path, {"url": linked, "if_changed": True})
    assert of_page(own, "/linked")["unchanged"] is True
    assert of_page(own, "/linked")["changed_at"] == found[linked]["changed_at"]


def test_pages_that_a_check_leads_to_count_for_traps_whether_they_have_changed_or_not(tmp_path: Path) -> None:
    """Else each round would follow a calendar for as many more pages as it takes to know it."""

    def day(request: Request) -> Response:
        number = int(request.url.rpartition("/")[2])
        return page(request, f'<p>nothing on 2031-03-04<a href="/calendar/{number + 1}">')

    ANSWERS.update({f"/calendar/{number}": day for number in range(1, 150)})
    counts = []
    for version in "abc":
        ANSWERS["/page"] = lambda request, version=version: page(request, f'{version}<a href="/calendar/1">')
        counts.append(len(run(tmp_path, DEPTH_LIMIT=200).documents))
    assert counts == [61, 61, 61]


def test_a_page_that_a_check_leads_to_counts_as_failed_where_it_cannot_be_written(tmp_path: Path) -> None:
    """It is unchanged, and what is counted of it is more than what is written."""

    class Failing:
        def process_item(self, item: Any) -> Any:
            if item.unchanged:
                raise ValueError("no room")
            return item

    declare(tmp_path)
    for version in "ab":
        ANSWERS["/page"] = lambda request, version=version: page(request, f'{version}<a href="/linked">')
        with SeedProducer(settings_for(tmp_path), task_id="t", closes_task=version == "b") as producer:
            producer.send(seed(**CHECK))
        pipelines = {Failing: 950, "site_spider.results.pipeline.ResultPipeline": 900}
        crawl(tmp_path, [], until=told(tmp_path) if version == "b" else None, ITEM_PIPELINES=pipelines)
    assert [(event["pages"], event["failures"]) for event in events(tmp_path)] == [(2, 1)]
