"""Dupefilters in the real engine: links and seeds whose page was done, tasks on one site, trackers, outages."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, Self

import pytest
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.dupefilters import RFPDupeFilter
from scrapy.http import Response
from scrapy.utils.request import RequestFingerprinter

from site_spider import settings as settings_module
from site_spider.adapters.local.log import LocalSeedLog
from site_spider.dupefilter import dupefilter as dupefilter_module
from site_spider.dupefilter.dupefilter import SeedFilter, pages_of
from site_spider.errors import ConfigError
from site_spider.frontier.politeness import PoliteFrontier
from site_spider.ledger.ledger import Outcome, SeedInFlight
from site_spider.page.url import page_fingerprint, url_id
from site_spider.service.config import ServiceSettings
from site_spider.service.service import SeedService
from site_spider.spiders.crawl_spider import SeedSpider
from tests.in_process.engine import ANSWERS, Crawled, crawl, page, produce
from tests.in_process.linked_site import HOST, Site, case, every_kind, kinds_elsewhere, outcomes, seed, settings, site
from tests.tasks.test_pause_and_cancel import declare

__all__ = ["case", "settings", "site"]

# --- links ----------------------------------------------------------------------------------


def test_no_request_is_made_for_a_link_that_would_be_filtered(tmp_path: Path, site: Site) -> None:
    site.has("a", "a", "b", "c")
    site.has("b", "a", "c")
    site.has("c")
    scheduled: list[str] = []

    class Watching(SeedSpider):
        @classmethod
        def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
            crawler.signals.connect(cls.note, signal=signals.request_scheduled)
            return super().from_crawler(crawler, *args, **kwargs)

        @staticmethod
        def note(request: Request) -> None:
            scheduled.append(request.url.removeprefix(f"{HOST}/"))

    for name, own, dropped in (
        ("plain", {}, []),
        ("debug", {"DUPEFILTER_DEBUG": True}, ["a", "a", "c"]),
        ("other", {"REQUEST_FINGERPRINTER_CLASS": f"{__name__}.OtherFingerprinter"}, ["a", "a", "c"]),
    ):
        scheduled.clear()
        crawled = crawl(tmp_path / name, [seed("a")], Watching, **own)
        assert sorted(scheduled) == sorted(["b", "c", *dropped])
        assert crawled.stats["dupefilter/filtered"] == 3
    assert site.visits == {"a": 3, "b": 3, "c": 3}


class OtherFingerprinter(RequestFingerprinter):
    """Of a user's own, so nothing can be known of a page from its URL alone."""


@kinds_elsewhere
def test_a_link_to_a_page_that_an_earlier_process_did_is_not_followed(
    tmp_path: Path, site: Site, settings: dict[str, Any]
) -> None:
    """The store is asked for all links of the page before the scheduler sees them."""
    site.has("a", "b", "c")
    site.has("b")
    site.has("c")
    site.has("d", "a", "b", "c", "e")
    site.has("e")
    crawl(tmp_path, [seed("a")], **settings)
    crawled = crawl(tmp_path, [seed("d")], **settings)
    assert site.visits == {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}
    assert crawled.stats["dupefilter/known_elsewhere"] == 3
    assert crawled.stats["dupefilter/filtered"] == 3


class TidySpider(SeedSpider):
    """Callbacks of other shapes than the spider's own."""

    def parse(self, response: Response) -> Any:  # type: ignore[override]
        return self.pages(response) if response.url.endswith("generator") else self.broken(response)

    async def pages(self, response: Response) -> Any:
        for path in ("done", "new"):
            yield Request(f"{HOST}/{path}", callback=self.leaf)
            await asyncio.sleep(0)
        yield {"url_id": "an item"}

    def broken(self, response: Response) -> Any:
        yield Request(f"{HOST}/done", callback=self.leaf)
        yield Request(f"{HOST}/newer", callback=self.leaf)
        raise ValueError("after two links")

    def leaf(self, response: Response) -> Any:
        return None


@kinds_elsewhere
def test_callbacks_of_every_shape_are_looked_up_for(tmp_path: Path, site: Site, settings: dict[str, Any]) -> None:
    for path in ("done", "new", "newer"):
        site.has(path)
    crawl(tmp_path, [seed("done")], **settings)
    crawled = crawl(tmp_path, [seed("generator"), seed("broken")], TidySpider, **settings)
    assert site.visits == {"done": 1, "new": 1, "newer": 1}
    assert [item["url_id"] for item in crawled.items.values()] == ["an item"]


@pytest.mark.parametrize("path", ["scrapy.dupefilters.RFPDupeFilter", "scrapy.dupefilters.BaseDupeFilter"])
def test_a_dotted_path_in_dupefilter_class_works_as_in_scrapy(tmp_path: Path, site: Site, path: str) -> None:
    """Also with the lookup of links on."""
    site.has("a", "b")
    site.has("b")
    crawled = crawl(tmp_path, [seed("a")], DUPEFILTER_CLASS=path, SITE_DUPEFILTER="local")
    assert site.visits == {"a": 1, "b": 1}
    assert len(crawled.documents) == 2


# --- outages ------------------------------------------------------------------------------------


def test_a_store_that_is_away_at_the_start_keeps_the_crawl_from_starting(tmp_path: Path) -> None:
    """As any other server: after SITE_STARTUP_WAIT_SECONDS, with the reason."""
    nobody = {"SITE_DUPEFILTER": "redis", "SITE_REDIS_URL": "redis://127.0.0.1:9/0"}
    crawled = crawl(tmp_path, [seed("a")], SITE_STARTUP_WAIT_SECONDS=0.1, **nobody)
    assert crawled.stats["finish_reason"] == "cannot_start"
    assert crawled.lag == 1


# --- seeds ----------------------------------------------------------------------------------


@every_kind
def test_a_seed_that_was_seen_ends_as_filtered(tmp_path: Path, site: Site, settings: dict[str, Any]) -> None:
    """Done, in flight or met as a link; its offset is committed, no result is written.

    But with dont_filter, and an attempt at a page that another process began, it is fetched.
    """
    site.has("a", "b")
    site.has("b")
    seeds = [seed("a"), *(seed("a", meta={"url_id": f"again {number}"}) for number in range(3))]
    seeds += [seed("a", dont_filter=True), seed("a", meta={"site_moved": {"url": f"{HOST}/before"}})]
    crawled = crawl(tmp_path, seeds, SITE_FILTER_SEEDS=True, **settings)
    assert site.visits == {"a": 3, "b": 1}
    assert outcomes(crawled) == {"completed_with_result": 3, "filtered": 3}
    assert len(crawled.documents) == 2
    assert crawled.lag == 0


def test_a_seed_whose_page_is_in_flight_for_another_one_ends_behind_that(tmp_path: Path) -> None:
    """Else its page is lost when the next owner of that one knows that as done, and has left it to this message."""
    link = seed("b", meta={"depth": 1, "site_moved": {"anchor_host": "host.test"}})
    in_flight: list[int] = []  # until the page is there: then one ends a moment before the other
    answers: list[Response] = []

    def first(request: Request) -> Response:
        log = LocalSeedLog(tmp_path)
        produce(log, "seeds", [link])
        log.close()
        return page(request, '<a href="/b">b')

    async def slow(request: Request) -> Response:
        await asyncio.sleep(10)
        answers.append(page(request))
        return answers[0]

    def are_done(crawler: Crawler) -> bool:
        ledger = SeedService.of(crawler).parts.completion.ledger
        if not answers:
            in_flight.append(ledger.in_flight)
        return ledger.consumed == 2 and not ledger.in_flight

    ANSWERS["/a"], ANSWERS["/b"] = first, slow
    crawled = crawl(tmp_path, [seed("a")], until=are_done)
    assert 2 in in_flight
    assert 1 not in in_flight[in_flight.index(2) :]
    assert outcomes(crawled) == {"completed_with_result": 1, "filtered": 1}
    assert crawled.lag == 0


def test_seeds_of_a_page_that_fails_end_with_the_first(tmp_path: Path) -> None:
    """They would fail one after the other, each with its retries, and nothing behind them could be committed."""
    visits: list[Request] = []

    def fails(request: Request) -> Response:
        visits.append(request)
        raise OSError("nobody there")

    ANSWERS["/a"] = fails
    again = [seed("a", meta={"url_id": f"again {number}"}) for number in range(5)]
    crawled = crawl(tmp_path, [seed("a"), *again], SITE_FILTER_SEEDS=True)
    assert outcomes(crawled) == {"completed_with_failure": 1, "filtered": 5}
    assert len(visits) == 2
    assert crawled.lag == 0


def test_seeds_that_waited_for_one_are_looked_at_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop goes on in between."""
    monkeypatch.setattr(dupefilter_module, "_MOST_AT_ONCE", 2)
    ended: list[int] = []
    sort_seeds = SeedFilter.sort_seeds

    def sort(pages: SeedFilter) -> None:
        before = pages._completion.ledger.outcomes[Outcome.FILTERED]
        sort_seeds(pages)
        ended.append(pages._completion.ledger.outcomes[Outcome.FILTERED] - before)

    monkeypatch.setattr(SeedFilter, "sort_seeds", sort)
    crawled = crawl(tmp_path, [seed("a")] * 6, SITE_FILTER_SEEDS=True)
    assert outcomes(crawled) == {"completed_with_result": 1, "filtered": 5}
    assert max(ended) == 2


def test_a_seed_does_not_wait_for_one_that_cannot_be_queued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That ends while the seeds of the same poll are queued; nobody else says that this one may be looked at again."""
    put_seed, failing = PoliteFrontier.put_seed, ["settings of its host"]

    def put(room: PoliteFrontier, waiting: SeedInFlight) -> None:
        if failing:
            raise ConfigError(failing.pop())
        put_seed(room, waiting)

    monkeypatch.setattr(PoliteFrontier, "put_seed", put)
    crawled = crawl(tmp_path, [seed("a"), seed("a")], SITE_FILTER_SEEDS=True)
    assert outcomes(crawled) == {"completed_with_result": 1, "dead_lettered": 1}


def test_what_waits_for_one_seed_is_not_looked_at_anew_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one takes all the others over: thousands of one page, whose task is cancelled, end in linear time."""
    decide, decided = SeedFilter._decide, []
    put_seed, queued = PoliteFrontier.put_seed, []

    def count_decided(pages: SeedFilter, *asked: Any) -> None:
        decided.append(asked)
        decide(pages, *asked)

    def refuse(room: PoliteFrontier, waiting: SeedInFlight) -> None:
        queued.append(waiting)
        if len(queued) < 30:
            raise ConfigError("settings of its host")
        put_seed(room, waiting)

    monkeypatch.setattr(SeedFilter, "_decide", count_decided)
    monkeypatch.setattr(PoliteFrontier, "put_seed", refuse)
    crawled = crawl(tmp_path, [seed("a")] * 40, SITE_FILTER_SEEDS=True)
    assert outcomes(crawled) == {"completed_with_result": 1, "dead_lettered": 29, "filtered": 10}
    assert len(decided) <= 40 * 3


def test_a_seed_does_not_end_with_one_that_is_a_page_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that waits with it is compared with more pages than a seed of a producer is."""
    put_seed = PoliteFrontier.put_seed

    def put(room: PoliteFrontier, waiting: SeedInFlight) -> None:
        if waiting.seed.url_id == "first":
            raise ConfigError("settings of its host")
        put_seed(room, waiting)

    def fails(request: Request) -> Response:
        if "utm_source" in request.url:
            raise OSError("nobody there")
        return page(request)

    monkeypatch.setattr(PoliteFrontier, "put_seed", put)
    ANSWERS["/p"] = fails
    link = seed("p", meta={"url_id": "link", "depth": 1, "site_moved": {"anchor_host": "host.test"}})
    seeds = [seed("p", meta={"url_id": "first"}), link, seed("p", meta={"url_id": "own"}), seed("p?utm_source=a")]
    crawled = crawl(tmp_path, seeds, SITE_FILTER_SEEDS=True)
    assert crawled.documents["own"]["status"] == 200


def test_seeds_are_not_filtered_by_what_does_not_obey_the_rule() -> None:
    """Scrapy's own dupefilter would take a replayed seed for a duplicate of itself."""
    nothing: Any = None
    with pytest.raises(ConfigError, match="DUPEFILTER_CLASS is RFPDupeFilter"):
        pages_of(RFPDupeFilter(), *[nothing] * 4, all_seeds=True)
    assert not isinstance(pages_of(RFPDupeFilter(), *[nothing] * 4, all_seeds=False), SeedFilter)


# --- two tasks on one site: each gets all of it, or they share it (SITE_DUPEFILTER_SCOPE) ----------------


PAGES = ["root", *(f"page{number}" for number in range(8))]


def of_nine_pages(site: Site) -> None:
    for name in PAGES:
        site.has(name, *PAGES)


def of_task(task_id: str | None, path: str = "root", **meta: Any) -> dict[str, Any]:
    return seed(path, meta={"task_id": task_id, **meta})


def documents_by_task(found: Crawled) -> Counter[str | None]:
    return Counter(document["task_id"] for document in found.documents.values())


@every_kind
def test_two_tasks_on_one_site_both_get_all_of_it(tmp_path: Path, site: Site, settings: dict[str, Any]) -> None:
    of_nine_pages(site)
    found = crawl(tmp_path, [of_task("a"), of_task("b"), of_task(None)], **settings)
    assert documents_by_task(found) == {"a": 9, "b": 9, None: 9}
    assert set(site.visits.values()) == {3}
    for task_id in ("a", "b", None):
        ids = {key for key, document in found.documents.items() if document["task_id"] == task_id}
        assert ids == {url_id(f"{HOST}/{name}", task_id) for name in PAGES}


def test_with_the_scope_group_they_share_what_is_done_and_ids(tmp_path: Path, site: Site) -> None:
    of_nine_pages(site)
    group: dict[str, Any] = {"SITE_DUPEFILTER_SCOPE": "group", "SITE_DUPEFILTER": "local"}
    assert documents_by_task(crawl(tmp_path, [of_task("a")], **group)) == {"a": 9}
    found = crawl(tmp_path, [of_task("b")], **group)
    assert found.documents.keys() == {url_id(f"{HOST}/{name}") for name in PAGES}
    assert site.visits == {name: 2 if name == "root" else 1 for name in PAGES}


@pytest.mark.parametrize("where", ["memory", "kafka"])
def test_with_the_scope_group_nothing_waits_for_another_task(tmp_path: Path, site: Site, where: str) -> None:
    """That may be cancelled, paused or expire before it comes to these pages."""
    of_nine_pages(site)
    crawl(tmp_path, [of_task("a"), of_task("b")], SITE_DUPEFILTER_SCOPE="group", SITE_LINKS_TO=where)
    assert set(site.visits.values()) == {2}


def test_with_the_scope_group_a_seed_is_filtered_for_what_is_done_alone(tmp_path: Path, site: Site) -> None:
    """Or for a seed of its own task."""
    site.has("x")
    group: dict[str, Any] = {"SITE_DUPEFILTER_SCOPE": "group", "SITE_DUPEFILTER": "local", "SITE_FILTER_SEEDS": True}
    both = [of_task(task, "x") for task in ("a", "b", "a")]
    assert outcomes(crawl(tmp_path, both, **group)) == {"completed_with_result": 2, "filtered": 1}
    assert outcomes(crawl(tmp_path, [of_task("c", "x")], **group)) == {"filtered": 1}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_seeds_are_filtered_within_their_task(tmp_path: Path, site: Site, method: str) -> None:
    """With SITE_FILTER_SEEDS; over a restart as well. HEAD is compared by Scrapy's fingerprinter, not as pages are."""
    site.has("x")
    *both, another = ({**of_task(task, "x"), "method": method} for task in ("a", "b", None, "c"))
    store = {"SITE_DUPEFILTER": "local", "SITE_FILTER_SEEDS": True}
    assert outcomes(crawl(tmp_path, both, **store)) == {"completed_with_result": 3}
    assert outcomes(crawl(tmp_path, [*both, another], **store)) == {"completed_with_result": 1, "filtered": 3}


def test_no_two_tasks_share_a_fingerprint_or_an_id() -> None:
    """Whatever their names are: no part of a name passes for a part of the URL."""
    url = f"{HOST}/x"
    names = [None, "a", "ab", "a\u2028", "http://host.test/x", "\ud83d", "0" * 512]
    assert len({page_fingerprint(url, name) for name in names}) == len(names)
    assert len({url_id(url, name) for name in names}) == len(names)


def test_another_word_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"SITE_DUPEFILTER_SCOPE is 'host', .* one of: task, group"):
        ServiceSettings({**vars(settings_module), "SITE_DUPEFILTER_SCOPE": "host"})


# --- links that differ in parameters of trackers alone are one page (SITE_DROP_PARAMS) -------------------


LINKS = "".join(f'<a href="/p{tail}">' for tail in ("?utm_source=a", "", "?utm_source=b&gclid=1", "?n=1"))


@pytest.fixture
def visits() -> Any:
    """URLs asked for, of a site whose every page has these links."""
    asked: list[str] = []

    def answer(request: Request) -> Response:
        asked.append(request.url.removeprefix(HOST))
        return page(request, LINKS)

    ANSWERS.update(dict.fromkeys(("/", "/p", "/s"), answer))
    return asked


@pytest.mark.parametrize(
    ("names", "asked"),
    [
        ("tracking", ["/", "/p?n=1", "/p?utm_source=a"]),
        ("none", ["/", "/p", "/p?n=1", "/p?utm_source=a", "/p?utm_source=b&gclid=1"]),
        ("tracking,n", ["/", "/p?utm_source=a"]),
    ],
)
def test_the_first_of_them_is_fetched_and_stored_as_it_was_found(
    tmp_path: Path, visits: list[str], names: str, asked: list[str]
) -> None:
    crawled = crawl(tmp_path, [seed("")], **({} if names == "tracking" else {"SITE_DROP_PARAMS": names}))
    assert sorted(visits) == asked
    assert {document["url"].removeprefix(HOST) for document in crawled.documents.values()} == set(visits)


def test_a_task_has_parameters_of_its_own(tmp_path: Path, visits: list[str]) -> None:
    declare(tmp_path, "t", drop_params="tracking,n")
    declare(tmp_path, "u", drop_params=["none"])
    of_task = [seed("", meta={"task_id": name}) for name in ("t", "u")]
    crawled = crawl(tmp_path, of_task)
    pages = [document["task_id"] for document in crawled.documents.values()]
    assert (pages.count("t"), pages.count("u")) == (2, 5)


@every_kind
@pytest.mark.parametrize("filters", [False, True])
def test_seeds_are_never_filtered_by_it(
    tmp_path: Path, visits: list[str], settings: dict[str, Any], filters: bool
) -> None:
    """Not for each other, and not for links that look like them; a link to a seed's page is."""
    twice = seed("s?utm_source=1")
    seeds = [twice, seed("s?utm_source=2"), seed("s"), seed("p"), twice]
    crawled = crawl(tmp_path, seeds, SITE_FILTER_SEEDS=filters, **settings)
    asked = [url for url in visits if url.startswith("/s")]
    assert sorted(set(asked)) == ["/s", "/s?utm_source=1", "/s?utm_source=2"]
    assert outcomes(crawled).get("filtered", 0) == (1 if filters else 0)
    assert "/p" in visits
    assert sum(url.startswith("/p") and url != "/p?n=1" for url in visits) <= 2


@kinds_elsewhere
def test_a_later_process_knows_them_by_their_form_and_seeds_by_their_url(
    tmp_path: Path, visits: list[str], settings: dict[str, Any]
) -> None:
    """With SITE_FILTER_SEEDS, where links have a fingerprint apart."""
    both = {"SITE_FILTER_SEEDS": True, **settings}
    crawl(tmp_path, [seed("")], **both)
    visits.clear()
    crawled = crawl(tmp_path, [seed(""), seed("s"), seed("p"), seed("p?utm_source=a")], **both)
    assert sorted(visits) == ["/p", "/s"]
    assert outcomes(crawled) == {"completed_with_result": 2, "filtered": 2}


def test_links_that_were_sent_to_the_seed_topic_are_compared_there(tmp_path: Path, visits: list[str]) -> None:
    for filters in (False, True):
        visits.clear()
        folder = tmp_path / str(filters)
        crawled = crawl(folder, [seed("")], SITE_LINKS_TO="kafka", SITE_FILTER_SEEDS=filters)
        assert sorted(visits) == ["/", "/p?n=1", "/p?utm_source=a"]
        assert outcomes(crawled).get("filtered", 0) == 0
        assert crawled.lag == 0


def test_a_redirect_to_the_bare_page_is_followed(tmp_path: Path, visits: list[str]) -> None:
    """It is another attempt at the same page, and no link."""

    def moved(request: Request) -> Response:
        return Response(request.url, status=301, headers={"Location": f"{HOST}/p"})

    ANSWERS["/r"] = moved
    crawled = crawl(tmp_path, [seed("p"), seed("r")])
    (redirected,) = (said for said in crawled.documents.values() if said["url"] == f"{HOST}/r")
    assert (redirected["status"], redirected["final_url"]) == (200, f"{HOST}/p")


def test_what_is_no_list_of_names_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SITE_DROP_PARAMS says none beside other names"):
        crawl(tmp_path, [seed("")], SITE_DROP_PARAMS="none,a")
