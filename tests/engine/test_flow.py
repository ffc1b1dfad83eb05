"""The short way through the engine, beside Scrapy's own: who listens hears the same."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response
from scrapy.utils.reactor import CallLaterOnce
from twisted.internet.defer import succeed

from site_spider.engine import background
from site_spider.engine.background import Turns
from site_spider.engine.callback_guard import SafeDownloader
from site_spider.engine.flow import Drain, EngineFlow, on_drain, schedule_without_timer
from site_spider.spiders.crawl_spider import SeedSpider
from tests.engine.test_endings import LONG_WAY
from tests.in_process import engine
from tests.in_process.engine import crawl, page

HEARD = (
    *("request_scheduled", "request_reached_downloader", "response_downloaded", "request_left_downloader"),
    *("response_received", "item_scraped", "item_dropped", "spider_error", "request_dropped"),
)
WAYS = ("the short way", "Scrapy's own way")


class ListeningSpider(SeedSpider):
    """Notes every signal, with what it is about."""

    noted: list[str]

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.noted = []
        cls.last = spider
        spider.notes = [spider._note_for(name) for name in HEARD]
        for name, note in zip(HEARD, spider.notes, strict=True):
            crawler.signals.connect(note, signal=getattr(signals, name))
        return spider

    def _note_for(self, name: str) -> Any:
        def note(**about: Any) -> None:
            subject = about.get("request") or about.get("response")
            self.noted.append(f"{name} {getattr(subject, 'url', type(subject).__name__)}")

        return note


class WaitingSpider(ListeningSpider):
    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.wait, signal=signals.item_scraped)
        return spider

    async def wait(self, item: Any) -> None:
        await asyncio.sleep(0.01)
        self.noted.append("waited")


class Refusing:
    """A downloader middleware: asynchronous, with answers of its own and a refusal."""

    async def process_request(self, request: Request) -> Any:
        await asyncio.sleep(0)
        if request.url.endswith("/refused"):
            raise IgnoreRequest("no")
        return page(request, "own") if request.url.endswith("/own") else None

    def process_response(self, request: Request, response: Response) -> Any:
        return request.replace(url="http://h.test/replaced") if response.url.endswith("/again") else response

    def process_exception(self, request: Request, exception: Exception) -> Any:
        return page(request, "mended") if request.url.endswith("/mended") else None


class SlowPipeline:
    async def process_item(self, item: Any) -> Any:
        await asyncio.sleep(0.01)
        return item


class Renaming:
    """A spider middleware that can only be run asynchronously, and drops what it does not want."""

    async def process_spider_output(self, response: Response, result: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for output in result:
            if not (isinstance(output, Request) and output.url.endswith("/unwanted")):
                yield output


class Mending:
    """A spider middleware with something to say to errors."""

    def process_spider_exception(self, response: Response, exception: Exception) -> Any:
        return [{"url_id": "mended"}]


@pytest.fixture(autouse=True)
def site() -> None:
    engine.ANSWERS["/tree"] = lambda r: page(r, "<a href=/leaf><a href=/unwanted><a href=/leaf>")
    engine.ANSWERS["/gone"] = lambda r: page(r, "gone", 404)
    engine.ANSWERS["/moved"] = lambda r: page(r, "", 302, Location="/leaf2")
    engine.ANSWERS["/mended"] = failing
    engine.ANSWERS["/broken"] = failing


def failing(request: Request) -> Response:
    raise RuntimeError("it fails")


PATHS = ("/tree", "/gone", "/moved", "/mended", "/broken", "/refused", "/own", "/again")
CASES: dict[str, tuple[type[ListeningSpider], dict[str, Any]]] = {
    "plain": (ListeningSpider, {}),
    "a listener that waits": (WaitingSpider, {}),
    "downloader middlewares": (ListeningSpider, {"DOWNLOADER_MIDDLEWARES": {f"{__name__}.Refusing": 610}}),
    "an asynchronous pipeline": (ListeningSpider, {"ITEM_PIPELINES": {f"{__name__}.SlowPipeline": 1}}),
    "an asynchronous spider middleware": (ListeningSpider, {"SPIDER_MIDDLEWARES": {f"{__name__}.Renaming": 5}}),
    "a mending spider middleware": (ListeningSpider, {"SPIDER_MIDDLEWARES": {f"{__name__}.Mending": 5}}),
    "refused by a spider middleware": (ListeningSpider, {"HTTPERROR_ALLOW_ALL": False}),
}
STATISTICS = ("downloader/", "scheduler/", "item_", "response_", "retry/", "httperror/", "dupefilter/")


@pytest.mark.parametrize("case", CASES)
def test_both_ways_are_heard_and_counted_alike(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spider, settings = CASES[case]
    found = {}
    for way in WAYS:
        if way != WAYS[0]:
            monkeypatch.setattr(SafeDownloader, "goes_short_way", LONG_WAY, raising=False)
        seeds = [{"url": f"http://h.test{path}", "meta": {"url_id": path}} for path in PATHS]
        merged = {name: {**getattr_of(name), **value} if isinstance(value, dict) else value
                  for name, value in settings.items()}  # fmt: skip
        crawled = crawl(tmp_path / way, seeds, spider, RETRY_ENABLED=False, **merged)
        notes: dict[str, list[str]] = {}
        for note in spider.last.noted:
            name, _, subject = note.partition(" ")
            notes.setdefault(subject, []).append(name)
        documents = {
            key: (d["status"], d["body"], d["description"], d["final_url"]) for key, d in crawled.documents.items()
        }
        counted = {k: v for k, v in crawled.stats.items() if k.startswith(STATISTICS) and "time" not in k}
        found[way] = (notes, documents, counted, crawled.lag)
    for short, long in zip(found[WAYS[0]], found[WAYS[1]], strict=True):
        assert short == long
    assert found[WAYS[0]][3] == 0


def getattr_of(name: str) -> dict[str, Any]:
    from site_spider import settings as project

    return getattr(project, name)


class ClosedSpider(SeedSpider):
    async def parse(self, response: Response) -> Any:  # type: ignore[override]
        raise GeneratorExit


class ClosedPlainSpider(SeedSpider):
    def parse(self, response: Response) -> Any:
        raise GeneratorExit


class ClosedItemsSpider(SeedSpider):
    def parse(self, response: Response) -> Any:
        yield {"name": "an item"}
        raise GeneratorExit


@pytest.mark.parametrize("spider", [ClosedSpider, ClosedPlainSpider, ClosedItemsSpider])
def test_a_callback_that_raises_what_closes_a_generator_ends_only_its_page(
    tmp_path: Path, spider: type[SeedSpider]
) -> None:
    engine.ANSWERS["/closed"] = page
    found = crawl(tmp_path, [{"url": "http://h.test/closed"}], spider)
    (document,) = found.documents.values()
    assert (found.lag, found.exit_code) == (0, 0)
    assert str(document["description"]).startswith("CallbackBroken in the spider: GeneratorExit")


def test_pages_do_not_pile_up_before_the_spider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads are faster than the reading of pages: they wait for it, not pages in memory."""
    monkeypatch.setattr(Turns, "is_free", lambda _turns: False)  # one page a turn
    monkeypatch.setattr(background, "_MOST_WOKEN", 1)
    most = 0

    async def answer(handler: Any, request: Request) -> Response:
        nonlocal most
        most = max(most, len(handler.crawler.engine.scraper.slot.active))
        await asyncio.sleep(0.002)
        return page(request)

    monkeypatch.setattr(engine.ScriptedHandler, "download_request", answer)
    crawl(tmp_path, [{"url": f"http://host{number % 50}.test/{number}"} for number in range(300)])
    assert 1 < most <= 16 + 64  # with those that CONCURRENT_REQUESTS had begun


class ManyLinksSpider(SeedSpider):
    """All at once, or one by one."""

    at_once = True

    def parse(self, response: Response) -> Any:
        found = (Request(f"http://h.test/{number}", self.nothing) for number in range(40))
        return list(found) if self.at_once else found

    def nothing(self, response: Response) -> None:
        pass


@pytest.mark.parametrize("at_once", [True, False])
def test_what_a_callback_gives_is_taken_in_as_many_turns_as_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    monkeypatch.setattr(Turns, "has_time", lambda _turns: False)
    monkeypatch.setattr(ManyLinksSpider, "at_once", at_once)
    waited: list[str] = []
    time = Turns.time

    async def noted(turns: Turns) -> None:
        waited.append(sys._getframe(1).f_code.co_name)
        await time(turns)

    monkeypatch.setattr(Turns, "time", noted)
    crawl(tmp_path, [{"url": "http://h.test/first"}], ManyLinksSpider)
    assert waited.count("_take_all" if at_once else "_in_turns") >= 40


@pytest.mark.parametrize("ends", ["engine", "scraper"])
def test_an_answer_that_comes_when_the_engine_has_ended_is_given_up(
    caplog: pytest.LogCaptureFixture, ends: str
) -> None:
    """Its seed is repeated by the next owner, and nothing is logged as wrong."""
    request, ended, broken_off = Request("http://h.test/"), list[Request](), list[Request]()
    slot = SimpleNamespace(remove_request=ended.append, nextcall=SimpleNamespace(schedule=lambda: None))
    scraper = SimpleNamespace(slot=SimpleNamespace(closing=None))
    of_flow = SimpleNamespace(_slot=slot, spider=None, downloader=SimpleNamespace(active={request}), scraper=scraper)

    async def answer(_request: Request) -> Response:
        if ends == "engine":
            of_flow._slot = None
        else:
            scraper.slot.closing = succeed(None)
        return Response(request.url, request=request)

    flow = object.__new__(EngineFlow)
    told = {"_engine": of_flow, "_came_back": lambda _request: None, "_broken_off": broken_off.append}
    for name, value in {**told, "_requested": answer, "_after": [], "_tell_received": lambda *_: None}.items():
        setattr(flow, name, value)
    asyncio.run(flow._run(request))
    assert caplog.text == ""
    assert broken_off == ended == [request]
    assert not of_flow.downloader.active


async def test_the_next_call_of_the_engine_needs_no_timer() -> None:
    calls: list[float] = []
    loop = asyncio.get_running_loop()
    next_call = CallLaterOnce(lambda: calls.append(loop.time()))
    schedule_without_timer(next_call)
    next_call.schedule()
    next_call.schedule()
    await asyncio.sleep(0)
    assert len(calls) == 1
    next_call.schedule()
    next_call.cancel()
    next_call.cancel()
    await asyncio.sleep(0)
    assert len(calls) == 1
    began = loop.time()
    later = CallLaterOnce(lambda: calls.append(loop.time()))
    schedule_without_timer(later)
    later.schedule(0.01)
    while len(calls) < 2:
        await asyncio.sleep(0.001)
    assert calls[1] >= began + 0.009


async def test_the_drain_is_told_why_the_engine_closes() -> None:
    """A stop that a download outlasts tells extensions this reason."""
    told: list[str] = []

    async def ended() -> None:
        told.append("ended")

    async def close_spider_async(*, reason: str) -> None:
        await engine._slot.close()
        told.append(f"closed: {reason}")

    async def drain(wait: Drain, reason: str) -> None:
        told.append(f"draining: {reason}")
        await wait()

    engine: Any = SimpleNamespace(_slot=SimpleNamespace(close=ended), close_spider_async=close_spider_async)
    on_drain(engine, drain)
    await engine.close_spider_async(reason="banned")
    assert told == ["draining: banned", "ended", "closed: banned"]
