"""Every way in which a request can end is seen: the seed completes, with a result that says what happened.

All the seeds of the first part are crawled at once by the real engine; each test looks at one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from scrapy import Request, signals
from scrapy.downloadermiddlewares.retry import get_retry_request
from scrapy.exceptions import (
    CannotResolveHostError,
    CloseSpider,
    DownloadConnectionRefusedError,
    DownloadFailedError,
    DownloadTimeoutError,
    DropItem,
    IgnoreRequest,
)
from scrapy.http import Response
from twisted.python.failure import Failure

from site_spider import settings as project
from site_spider.engine.callback_guard import SafeDownloader
from site_spider.results.document import Result
from site_spider.spiders.crawl_spider import SeedSpider
from tests.in_process import engine
from tests.in_process.engine import Crawled, crawl, page

LONG_WAY = property(lambda _downloader: False, lambda _downloader, _value: None)  # Scrapy's own


def raising(error: BaseException) -> Any:
    def raise_it(*_arguments: Any, **_keywords: Any) -> Any:
        raise error

    return raise_it


def redirect(to: str, status: int = 302) -> engine.Answer:
    return lambda request: page(request, "", status, Location=to)


async def never(*_arguments: Any) -> Any:
    await asyncio.Event().wait()


class ScenarioSpider(SeedSpider):
    """Does with each response what the scenario of its path says."""

    def parse(self, response: Response) -> Any:
        scenario = SCENARIOS.get(urlsplit(response.url).path)
        if scenario is not None and scenario.generator is not None:
            return scenario.generator()
        return self._parse_and_go_on(response, scenario)

    async def _parse_and_go_on(self, response: Response, scenario: Scenario | None) -> Any:
        output = await super().parse(response)
        if scenario is None or scenario.callback is None:
            return output
        made = scenario.callback(self, response, output)
        return await made if asyncio.iscoroutine(made) else made

    def failed(self, failure: Failure) -> Any:
        scenario = SCENARIOS.get(urlsplit(failure.request.url).path)  # type: ignore[attr-defined]
        if scenario is not None and scenario.errback is not None:
            return scenario.errback(self, failure)
        return super().failed(failure)


class Middleware:
    def process_request(self, request: Request) -> Any:
        scenario = SCENARIOS.get(urlsplit(request.url).path)
        return scenario.on_request(request) if scenario is not None and scenario.on_request else None

    def process_response(self, request: Request, response: Response) -> Any:
        scenario = SCENARIOS.get(urlsplit(request.url).path)
        return scenario.on_response(request) if scenario is not None and scenario.on_response else response


class EarlierPipeline:
    def process_item(self, item: Any) -> Any:
        scenario = SCENARIOS.get(urlsplit(item.url).path) if isinstance(item, Result) else None
        if scenario is not None and scenario.on_item:
            scenario.on_item(item)
        return item


class Scenario(NamedTuple):
    """What happens to the seed of one path, and what its document must say."""

    description: str | None  # a part of it; None: success
    status: int | None = 200
    answer: Any = None
    callback: Any = None
    generator: Any = None
    errback: Any = None
    on_request: Any = None
    on_response: Any = None
    on_item: Any = None
    children: int = 0  # documents of links


def yields_twice(_spider: Any, response: Response, output: list[Any]) -> list[Any]:
    link = Request("http://h.test/child-twice", dont_filter=True)
    return [*output, link, link]


def retries_itself(spider: Any, response: Response, output: list[Any]) -> list[Any]:
    assert response.request is not None
    if response.request.meta.get("retry_times"):
        return output
    return [get_retry_request(response.request, spider=spider, reason="try again")]


def copies_meta(_spider: Any, response: Response, output: list[Any]) -> list[Any]:
    return [*output, Request("http://h.test/child-with-copied-meta", meta=response.meta)]


def generator_fails() -> Iterator[Any]:
    yield Request("http://h.test/child-before-the-failure")
    raise ValueError("half way")


def generator_is_cancelled() -> Iterator[Any]:
    yield Request("http://h.test/child-before-the-cancelling")
    raise asyncio.CancelledError


async def asynchronous(_spider: Any, _response: Response, output: list[Any]) -> list[Any]:
    await asyncio.sleep(0.05)
    return output


async def cancelled_later(*_arguments: Any) -> Any:
    await asyncio.sleep(0)
    raise asyncio.CancelledError


def errback_asks_once_more(_spider: Any, failure: Failure) -> Any:
    return Request("http://h.test/child-of-an-errback")


SCENARIOS: dict[str, Scenario] = {
    "/ok": Scenario(None),
    "/tree": Scenario(None, answer=lambda r: page(r, "<a href=/leaf1><a href=/leaf2>"), children=2),
    "/404": Scenario("HTTP 404 Not Found", 404, lambda r: page(r, "gone", 404)),
    "/500": Scenario("HTTP 500", 500, lambda r: page(r, "broken", 500)),
    "/dns": Scenario("DNSLookupError: no address for host h.test", None, raising(CannotResolveHostError())),
    "/refused": Scenario("ConnectionRefusedError", None, raising(DownloadConnectionRefusedError())),
    "/timeout": Scenario("TimeoutError", None, raising(DownloadTimeoutError("took longer"))),
    "/too-large": Scenario("DownloadFailedError: too large", None, raising(DownloadFailedError("too large"))),
    "/odd-error": Scenario("RuntimeError: odd", None, raising(RuntimeError("odd"))),
    "/handler-cancelled": Scenario("CancelledError", None, raising(asyncio.CancelledError())),
    "/ignored-on-request": Scenario("not wanted", None, on_request=raising(IgnoreRequest("not wanted"))),
    "/ignored-on-response": Scenario("not wanted", None, on_response=raising(IgnoreRequest("not wanted"))),
    "/middleware-fails": Scenario("ValueError: mw", None, on_request=raising(ValueError("mw"))),
    "/middleware-fails-late": Scenario("ValueError: mw", None, on_response=raising(ValueError("mw"))),
    "/middleware-cancelled": Scenario("CancelledError", None, on_request=raising(asyncio.CancelledError())),
    "/middleware-cancelled-late": Scenario("CancelledError", None, on_response=cancelled_later),
    "/redirect": Scenario(None, answer=redirect("/redirected")),
    "/redirect-to-seen": Scenario(None, answer=redirect("/ok")),
    "/redirect-to-itself": Scenario("TooManyRedirects", None, redirect("/redirect-to-itself")),
    "/redirect-elsewhere": Scenario("HTTP 302", 302, redirect("ftp://h.test/")),
    "/redirect-to-no-url": Scenario("HTTP 302 Found, not followed: ", 302, redirect("javascript:x")),
    "/redirect-with-password": Scenario("HTTP 302 Found, not followed: ", 302, redirect("http://u:p@h.test/")),
    "/redirect-to-bad-port": Scenario("HTTP 302 Found, not followed: ", 302, redirect("http://h.test:x/")),
    "/callback-raises": Scenario("ValueError in the spider: cb", callback=raising(ValueError("cb"))),
    "/callback-cancelled": Scenario("CancelledError", callback=raising(asyncio.CancelledError())),
    "/callback-cancelled-later": Scenario("CancelledError", callback=cancelled_later),
    "/callback-hangs": Scenario("SITE_CALLBACK_TIMEOUT_SECONDS", callback=never),
    "/callback-is-slow": Scenario(None, callback=asynchronous),
    "/callback-says-nothing": Scenario(None, callback=lambda *_: None),
    "/callback-yields-junk": Scenario(None, callback=lambda _s, _r, output: [*output, 17]),
    "/generator-fails": Scenario("ValueError in the spider: half way", generator=generator_fails, children=1),
    "/generator-cancelled": Scenario("CancelledError", generator=generator_is_cancelled, children=1),
    "/errback-raises": Scenario(
        "eb (RuntimeError: no)", None, raising(RuntimeError("no")), errback=raising(ValueError("eb"))
    ),
    "/errback-cancelled": Scenario(
        "CancelledError", None, raising(RuntimeError()), errback=raising(asyncio.CancelledError())
    ),
    "/errback-says-nothing": Scenario(
        "RuntimeError: no", None, raising(RuntimeError("no")), errback=lambda *_: None
    ),
    "/errback-yields": Scenario(
        "RuntimeError: no", None, raising(RuntimeError("no")), errback=errback_asks_once_more, children=1
    ),
    "/item-dropped": Scenario("the item was dropped: no", on_item=raising(DropItem("no"))),
    "/pipeline-raises": Scenario("ValueError in an item pipeline", on_item=raising(ValueError("p"))),
    "/pipeline-cancelled": Scenario("CancelledError", on_item=raising(asyncio.CancelledError())),
    "/yielded-twice": Scenario(None, callback=yields_twice, children=1),
    "/retry-from-callback": Scenario(None, callback=retries_itself),
    "/copied-meta": Scenario(None, callback=copies_meta, children=1),
    "/malformed-link": Scenario(
        None, answer=lambda r: page(r, "<a href='http://[bad/'><a href=/leaf3>"), children=1
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=["the short way", "Scrapy's own way"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "the short way":
            patch.setattr(SafeDownloader, "goes_short_way", LONG_WAY, raising=False)
        yield


@pytest.fixture(scope="module")
def crawled(way: None, tmp_path_factory: pytest.TempPathFactory) -> Crawled:
    engine.ANSWERS.update({path: s.answer for path, s in SCENARIOS.items() if s.answer is not None})
    seeds = [{"url": f"http://h.test{path}", "meta": {"url_id": path}} for path in SCENARIOS]
    return crawl(
        tmp_path_factory.mktemp("endings"),
        seeds,
        ScenarioSpider,
        SITE_CALLBACK_TIMEOUT_SECONDS=0.5,
        REDIRECT_MAX_TIMES=4,
        DOWNLOADER_MIDDLEWARES={**project.DOWNLOADER_MIDDLEWARES, f"{__name__}.Middleware": 10},
        ITEM_PIPELINES={f"{__name__}.EarlierPipeline": 100, "site_spider.results.pipeline.ResultPipeline": 900},
    )


@pytest.mark.parametrize("path", SCENARIOS)
def test_the_seed_has_a_document_that_says_how_it_ended(path: str, crawled: Crawled) -> None:
    """A result on success; else a failure result with the reason, and all that is known of the page that was received.

    Links that came from an errback, or before a callback failed, have documents of their own.
    """
    scenario, document = SCENARIOS[path], crawled.documents[path]
    if scenario.description is None:
        assert document["description"] is None
    else:
        assert scenario.description in document["description"]
    assert document["status"] == scenario.status
    known = ["spider", "fetched_at", "url", "host"]
    known += ["final_url", "headers", "body", "content_type"] if scenario.status else []
    assert [name for name in known if document[name] is None] == []
    children = [d for d in crawled.documents.values() if d.get("seed_url_id") == path]
    assert [(child["parent_url_id"], child["depth"]) for child in children] == [(path, 1)] * scenario.children


def test_afterwards_nothing_is_in_flight_and_everything_is_committed(crawled: Crawled) -> None:
    assert crawled.seeds["in_flight"] == 0
    assert crawled.lag == 0
    assert crawled.dead_letters == []
    failures = sum(scenario.description is not None for scenario in SCENARIOS.values())
    assert crawled.seeds["completed_with_failure"] == failures
    assert crawled.seeds["completed_with_result"] == len(SCENARIOS) - failures


# --- Ends that take a crawl of their own: closed, dropped, outlived, hanging, spilled


def by_itself(_crawler: Any) -> bool:
    """The crawl is not told to stop."""
    return False


class ClosingSpider(SeedSpider):
    async def parse(self, response: Response) -> Any:  # type: ignore[override]
        raise CloseSpider("enough")


def test_a_seed_whose_callback_closes_the_spider_is_complete_and_the_rest_is_not_lost(tmp_path: Path) -> None:
    """CloseSpider emits no error signal; what was queued stays uncommitted for the next start."""
    seeds = [{"url": f"http://h.test/{number}", "meta": {"url_id": str(number)}} for number in range(20)]
    first = crawl(tmp_path, seeds, ClosingSpider, until=by_itself, CONCURRENT_REQUESTS=1)
    assert first.stats["finish_reason"] == "enough"
    done = set(first.documents)
    assert 0 < len(done) < 20
    said = "CloseSpider in the spider: enough"
    assert {(d["body"], d["description"]) for d in first.documents.values()} == {("<p>page", said)}
    second = crawl(tmp_path, [])
    assert second.lag == 0
    assert set(second.documents) == {str(number) for number in range(20)}
    assert second.seeds["consumed"] == 20 - len(done)


class ScheduledFilter:
    """Drops requests at request_scheduled, as an off-site filter does, past the scheduler."""

    @classmethod
    def from_crawler(cls, crawler: Any) -> Any:
        made = cls()
        crawler.signals.connect(made.scheduled, signal=signals.request_scheduled)
        return made

    def scheduled(self, request: Request) -> None:
        if request.url.endswith(("/dropped", "/retried")):
            raise IgnoreRequest


def test_a_link_dropped_when_it_is_scheduled_does_not_hold_its_seed(tmp_path: Path) -> None:
    """It never reaches the scheduler, so nothing waits for it."""
    engine.ANSWERS["/with-dropped-link"] = lambda r: page(r, "<a href=/dropped>")
    found = crawl(
        tmp_path,
        [{"url": "http://h.test/with-dropped-link", "meta": {"url_id": "x"}}],
        EXTENSIONS={"site_spider.service.service.SeedService": 10, f"{__name__}.ScheduledFilter": 20},
    )
    assert set(found.documents) == {"x"}
    assert found.lag == 0


class Panic(BaseException):
    """As some libraries raise: it is no Exception."""


STRAY = {"CancelledError": asyncio.CancelledError, "Panic": Panic}


class Stray:
    """A part that raises what it should not, for the pages that are named so."""

    def look(self, url: str) -> None:
        if error := STRAY.get(url.rpartition("/")[2]):
            raise error


class InputMiddleware(Stray):
    def process_spider_input(self, response: Response) -> None:
        self.look(response.url)


class OutputMiddleware(Stray):
    """One at the end of what the callback gives."""

    async def process_spider_output(self, response: Response, result: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for output in result:
            yield output
        self.look(response.url)


class LateMiddleware(Stray):
    def process_response(self, request: Request, response: Response) -> Response:
        self.look(response.url)
        return response


class PanickingHandler(engine.ScriptedHandler, Stray):
    async def download_request(self, request: Request) -> Response:
        self.look(request.url)
        return await super().download_request(request)


class ItemsPipeline(Stray):
    def process_item(self, item: Any) -> Any:
        if not isinstance(item, Result):
            self.look(item["url"])
        return item


class ItemsSpider(SeedSpider):
    """Gives more items than are under way at a time."""

    async def parse(self, response: Response) -> Any:  # type: ignore[override]
        for number in range(20):
            yield {"number": number, "url": response.url}


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ("SPIDER_MIDDLEWARES", InputMiddleware),
        ("SPIDER_MIDDLEWARES", OutputMiddleware),
        ("DOWNLOADER_MIDDLEWARES", LateMiddleware),
        ("DOWNLOAD_HANDLERS", PanickingHandler),
        ("ITEM_PIPELINES", ItemsPipeline),
    ],
)
def test_a_part_that_raises_no_exception_ends_its_page_alone(tmp_path: Path, setting: str, part: type[Stray]) -> None:
    """Scrapy waits for ever for some of them; others would end the crawl."""
    name = f"{__name__}.{part.__name__}"
    parts = {"http": name} if part is PanickingHandler else {**getattr(project, setting), name: 10}
    seeds = [{"url": f"http://h.test/{path}", "meta": {"url_id": path}} for path in (*STRAY, "sound")]
    spider = ItemsSpider if part is ItemsPipeline else SeedSpider
    found = crawl(tmp_path, seeds, spider, timeout_seconds=60, **{setting: parts})
    assert (found.lag, found.exit_code) == (0, 0)
    assert all(path in found.documents[path]["description"] for path in STRAY)
    assert found.documents["sound"]["description"] is None


class OutlivingSpider(SeedSpider):
    """Starts a task that goes on after the callback, with a hold on the seed."""

    async def parse(self, response: Response) -> Any:  # type: ignore[override]
        assert response.request is not None
        self.hold = self.keep_seed_open(response.request)
        self.task = asyncio.create_task(self.work())
        return await super().parse(response)

    async def work(self) -> None:
        with self.hold:
            await asyncio.sleep(0.5)
            self.crawler.stats.set_value("worked", True)


def test_a_task_that_outlives_its_callback_holds_the_seed_open(tmp_path: Path) -> None:
    found = crawl(tmp_path, [{"url": "http://h.test/held"}], OutlivingSpider)
    assert found.stats["worked"]
    assert found.lag == 0


class Loud:
    """No list; says so at length."""

    def __iter__(self) -> Iterator[Any]:
        raise ValueError("x" * 1_000_000)


class OddLinkSpider(SeedSpider):
    """Follows a link that has no canonical form, and three that cannot be queued."""

    async def parse(self, response: Response) -> Any:  # type: ignore[override]
        output = await super().parse(response)
        unqueueable = Request("http://h.test/unqueueable")
        unqueueable.method = None  # type: ignore[assignment]
        urls = {"unweighable": None, "loud": Loud()}
        unweighable = [Request(f"http://h.test/{name}", meta={"redirect_urls": odd}) for name, odd in urls.items()]
        return [*output, Request("http://ö..x/"), unqueueable, *unweighable]


def test_a_link_that_cannot_be_queued_or_named_has_a_failure_result(tmp_path: Path) -> None:
    """Its seed completes all the same. A sink would refuse a failure that is larger than a page."""
    engine.ANSWERS["/odd-links"] = page
    found = crawl(
        tmp_path, [{"url": "http://h.test/odd-links", "meta": {"url_id": "seed"}}], OddLinkSpider, RETRY_TIMES=0
    )
    assert found.lag == 0
    children = {d["url"]: d for d in found.documents.values() if d.get("seed_url_id") == "seed"}
    assert len(children) == 4
    for name in ("unqueueable", "unweighable", "loud"):
        said = children[f"http://h.test/{name}"]["description"]
        assert "the request could not be queued: " in said
        assert len(said) < 2_000
    assert "ValueError('x" in said


def test_waiting_for_a_moment_that_has_come_is_no_error_under_uvloop(tmp_path: Path) -> None:
    """uvloop gives another kind of handle for it; retries make such moments, and batches that are due."""
    engine.ANSWERS.update({f"/late/{n}": lambda r: page(r, "broken", 503) for n in range(20)})
    seeds = [{"url": f"http://h.test/late/{n}", "meta": {"url_id": str(n)}} for n in range(20)]
    moments = {"SITE_RETRY_PAUSE_SECONDS": 0.0001, "SITE_SINK_FLUSH_SECONDS": 0.0001}
    found = crawl(tmp_path, seeds, run=asyncio.run, **moments)
    assert len(found.documents) == 20
    assert found.stats["finish_reason"] == "shutdown"
