"""Prints the files and functions of site_spider that a seed passes from its offset to its commit.

    python -m tools.measure.way [--functions] [WAY ...]
    python -m tools.measure.way --calls [PAGES]

The ways are `plain` (a page without links), `link` (one link), `retry` (one answer of 503), `pause` (its task
is paused, so the seed is parked) and `resume` (it comes back and is crawled). The crawl runs in this process,
on the embedded log and sink, with the test site; three seeds go each way, one after the other, and what
all of them pass counts, so that timers do not. Of the ways behind `plain` only what they add is printed.

`--calls` counts calls of Python functions a page instead (a coroutine that goes on is one), in all threads of
a crawl of PAGES small pages of 8 hosts, from seed to commit, on Kafka where SITE_KAFKA_BROKERS is set. What
it calls in the same time without a seed is taken off, so that the figure does not depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import threading
from collections import Counter as Sums
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import repeat, zip_longest
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

import orjson
import uvloop
from scrapy.crawler import AsyncCrawlerRunner
from scrapy.settings import Settings

import site_spider
from site_spider import runtime
from site_spider.contracts.seed_log import SeedLog
from site_spider.seed.topics import CrawlTopics
from site_spider.service import config as parts
from site_spider.service import service
from site_spider.service.wiring import Parts
from site_spider.spiders.crawl_spider import SeedSpider
from site_spider.tasks.declaration import declared
from site_spider.tasks.follower import Follower
from site_spider.tasks.orders import TaskDesk
from tools.site.handle import Site

WAYS = ("plain", "link", "retry", "pause", "resume")
PACKAGE = f"{Path(site_spider.__file__).parent}/"
LIBRARIES = f"{Path(uvloop.__file__).parents[1]}/"
ROUNDS = 3
PAGES, HOSTS, PARTITIONS, WARM_PAGES, MOST_NAMED = 2_000, 8, 16, 100, 30  # of --calls
SETTLE_SECONDS = 1.0  # until a crawl knows of a pause
IDLE_SECONDS, MANY = 5.0, 20  # calls of an idle thread, which tell its timers
Passed = set[tuple[str, str]]  # files and functions
Calls = Sums[tuple[str, str]]  # of these
COMMIT = Parts.commit.__code__  # which the ticker calls, too


class Counter:
    """Notes the functions that all threads call while `is_on`."""

    def __init__(self) -> None:
        self.is_on = False
        self._codes: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        if self.is_on and event == "call" and frame.f_code not in self._codes and not _is_look(frame):
            self._codes.add(frame.f_code)

    def taken(self) -> Passed:
        """What was called since the last time, without comprehensions and the heads of modules."""
        codes, self._codes = self._codes, set()
        return {
            (code.co_filename.removeprefix(PACKAGE), code.co_qualname)
            for code in codes
            if code.co_filename.startswith(PACKAGE) and (code.co_name[0] != "<" or code.co_name == "<lambda>")
        }


def _is_look(frame: FrameType | None) -> bool:
    """Whether the ticker of the service called it to look around, or a follower of tasks: without any seed."""
    while frame is not None:
        if frame.f_code is COMMIT:
            return False
        if frame.f_code in (service.tick.__code__, Follower._run.__code__):
            return True
        frame = frame.f_back
    return False


@contextmanager
def counting() -> Iterator[Counter]:
    """All threads that begin within it, and this one."""
    counter, before = Counter(), sys.getprofile()
    threading.setprofile(counter)
    sys.setprofile(counter)
    try:
        yield counter
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # type: ignore[arg-type]


@contextmanager
def profiling() -> Iterator[Callable[[], list[Calls]]]:
    """Counts the calls of each thread that begins within it; the function tells those until now."""
    made: list[dict[CodeType, int]] = []

    def begin(*_: object) -> None:
        called: dict[CodeType, int] = defaultdict(int)
        made.append(called)

        def count(frame: FrameType, event: str, _argument: Any) -> None:
            if event == "call":
                called[frame.f_code] += 1

        sys.setprofile(count)  # in the place of this function

    threading.setprofile(begin)
    try:
        yield lambda: [_calls(dict(called)) for called in list(made)]
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]


def _calls(called: dict[CodeType, int]) -> Calls:
    found: Calls = Sums()
    for code, number in called.items():
        found[code.co_filename, code.co_qualname] += number
    return found


def _without_timers(busy: Calls, idle: Calls) -> Calls:
    """What a thread also calls without pages, it calls by time; the least frequent says how much that is."""
    often = [name for name, count in idle.items() if count >= MANY]
    times = min((busy[name] / idle[name] for name in often), default=0.0)
    return busy - Sums({name: round(count * times) for name, count in idle.items()})


PATHS = {"link": "/crossing/1/1/{}", "retry": "/flaky/503/1/{}"}  # of the test site
PATH = "/status/200/{}"


class Crawl:
    """One crawl that goes on, and the ways of its seeds."""

    def __init__(
        self, log: SeedLog, settings: Settings, site: Site, counter: Counter, crawling: asyncio.Future[Any]
    ) -> None:
        self._log, self._counter, self._site, self._crawling = log, counter, site, crawling
        self._settings = settings
        self._tasks = CrawlTopics.beside(settings)

    async def way(self, name: str, number: int) -> Passed:
        """From before the seed is produced to the commit behind it."""
        task = f"t{number}" if name in ("pause", "resume") else ""
        if name == "pause":
            await asyncio.to_thread(self._in_state, task, "paused")
            await asyncio.sleep(SETTLE_SECONDS)
        self._counter.taken()
        self._counter.is_on = True
        if name == "resume":
            await asyncio.to_thread(self._unseen, lambda: self._put_back(task))
        else:
            url = self._site.url(PATHS.get(name, PATH).format(f"{name}-{number}"))
            await asyncio.to_thread(self._unseen, lambda: self._produce(url, task))
        await self._idle()
        self._counter.is_on = False
        return self._counter.taken()

    async def _idle(self) -> None:
        await asyncio.sleep(0.1)
        while await asyncio.to_thread(self._unseen, lambda: _lag(self._log, self._settings)):
            _goes_on(self._crawling)
            await asyncio.sleep(0.02)

    def _unseen(self, act: Callable[[], Any]) -> Any:
        """What this program itself calls is no way of a seed."""
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type] # nor what the thread of a producer does
        try:
            return act()
        finally:
            threading.setprofile(self._counter)
            sys.setprofile(self._counter)

    def _produce(self, url: str, task: str) -> None:
        producer = self._log.producer()
        value = orjson.dumps({"url": url, "meta": {"task_id": task} if task else {}})
        producer.send(self._settings["SITE_SEED_TOPIC"], b"127.0.1.1", value).result(30)
        producer.close()

    def _in_state(self, task: str, state: str) -> None:
        TaskDesk(self._log, self._tasks).write(
            declared(task, {}, datetime.now(UTC)).model_copy(update={"state": state})
        )

    def _put_back(self, task: str) -> None:
        self._in_state(task, "running")
        TaskDesk(self._log, self._tasks).put_back(task)


def _settings(folder: Path, **own: Any) -> Settings:
    settings = Settings()
    settings.setmodule("site_spider.settings", priority="project")
    servers = dict.fromkeys(("SITE_KAFKA_BROKERS", "SITE_ELASTICSEARCH_HOSTS", "SITE_REDIS_URL"), "")
    usual: dict[str, Any] = {"TWISTED_REACTOR_ENABLED": False, "LOG_ENABLED": False, "SITE_ALLOW_PRIVATE_HOSTS": True}
    usual |= {"SITE_DATA_DIR": str(folder), "SITE_STATS_INTERVAL_SECONDS": 3_600}  # statistics are on no seed's way
    settings.setdict({**usual, **servers, **own}, priority="cmdline")
    return settings


def _lag(log: SeedLog, settings: Settings) -> int:
    found = log.progress(settings["SITE_SEED_TOPIC"], settings["SITE_CONSUMER_GROUP"])
    return sum(one.end - (one.committed.offset if one.committed else one.start) for one in found)


def _goes_on(crawling: asyncio.Future[Any] | Future[Any]) -> None:
    """Raises the error of a crawl that has ended too soon."""
    if crawling.done():
        crawling.result()
        raise RuntimeError("the crawl has ended before its seeds were committed")


async def passed(folder: Path, site: Site) -> dict[str, Passed]:
    with counting() as counter:
        settings = _settings(folder, SITE_RETRY_PAUSE_SECONDS=0.1)
        log = parts.seed_log(settings)
        runner = AsyncCrawlerRunner(settings)
        crawler = runner.create_crawler(SeedSpider)
        crawling = runner.crawl(crawler)
        crawl = Crawl(log, settings, site, counter, crawling)
        try:
            await crawl.way("first", 0)  # what is made once is no part of the way
            ways = {name: [await crawl.way(name, number) for number in range(ROUNDS)] for name in WAYS}
            return {name: set.intersection(*rounds) for name, rounds in ways.items()}
        finally:
            await crawler.stop_async()
            await crawling
            log.close()


async def called(folder: Path, site: Site, pages: int) -> Calls:
    """The calls of a crawl of so many pages, which has a thread of its own."""
    name = f"way.{runtime.token_hex(4)}"
    brokers = os.environ.get("SITE_KAFKA_BROKERS", "")
    own = {"SITE_KAFKA_BROKERS": brokers, "SITE_SINKS": "kafka" if brokers else "local"}
    topics = {"SITE_SEED_TOPIC": name, "SITE_CONSUMER_GROUP": name, "SITE_RESULTS_TOPIC": f"{name}.results"}
    settings = _settings(folder, CONCURRENT_REQUESTS=32, DEPTH_LIMIT=0, **own, **topics)
    log, ends = parts.seed_log(settings), threading.Event()
    for topic in (name, f"{name}.results") if brokers else ():
        log.make_topic(topic, PARTITIONS, compacted=False)

    async def crawl() -> None:
        runner = AsyncCrawlerRunner(settings)
        crawler = runner.create_crawler(SeedSpider)
        crawling = runner.crawl(crawler)
        while not (ends.is_set() or crawling.done()):
            await asyncio.sleep(0.1)
        await crawler.stop_async()
        await crawling

    producer = log.producer()

    def produce(count: int) -> None:
        for number in range(count):
            url = site.url(PATH.format(f"{count}-{number}"), number % HOSTS)
            seed = {"url": url, "meta": {"NotExtract": True}}
            producer.send(name, b"%d" % (number % HOSTS), orjson.dumps(seed))
        producer.flush(30)

    async def committed() -> None:
        while _lag(log, settings):
            _goes_on(crawling)
            await asyncio.sleep(0.1)

    produce(WARM_PAGES)  # its thread begins here, and is none of the crawl
    # turns of the event loop never end: how many pages are read in one is a question of the machine
    frozen = patch.object(runtime, "perf_counter", repeat(0.0).__next__)
    with profiling() as taken, frozen, ThreadPoolExecutor(1) as thread:
        crawling = thread.submit(lambda: uvloop.run(crawl()))
        try:
            await committed()
            before = taken()
            produce(pages)
            await committed()
            after = taken()
            await asyncio.sleep(IDLE_SECONDS)
            threads = zip_longest(before, after, taken(), fillvalue=Sums[tuple[str, str]]())
            found = (_without_timers(then - first, now - then) for first, then, now in threads)
            return sum(found, start=Sums())
        finally:
            ends.set()
            await asyncio.to_thread(wait, [crawling])
            producer.close()
            log.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.measure.way", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"of {', '.join(WAYS)} (all)")
    parser.add_argument("--functions", action="store_true", help="names them too")
    parser.add_argument("--calls", nargs="?", type=int, const=PAGES, metavar="PAGES", help=f"({PAGES})")
    options = parser.parse_args()
    if unknown := set(options.ways) - set(WAYS):
        parser.error(f"{' '.join(unknown)} is none of {', '.join(WAYS)}")
    with tempfile.TemporaryDirectory() as name, Site(Path(name) / "record.jsonl", HOSTS) as site:
        folder = Path(name)
        if options.calls:
            calls = asyncio.run(called(folder, site, options.calls))
            print("\n".join(counted(calls, options.calls, options.functions)))
            return
        found = asyncio.run(passed(folder, site))
    for name in options.ways or WAYS:
        print("\n".join(described(name, found, names_all=options.functions)))


def described(name: str, found: dict[str, Passed], *, names_all: bool) -> Iterator[str]:
    plain: Passed = set() if name == "plain" else found["plain"]
    new, known = found[name] - plain, {file for file, _ in plain}
    files = sorted({file for file, _ in new})
    more = f" beyond plain, {len(set(files) - known)} new files" if plain else ""
    yield f"{name}: {len(files)} files, {len(new)} functions{more}"
    for file in files:
        functions = sorted(function for where, function in new if where == file)
        yield f"  {len(functions):4} {file}{'' if file in known or not plain else ' (new)'}"
        yield from (f"         {function}" for function in functions if names_all)


def counted(calls: Calls, pages: int, names_all: bool) -> Iterator[str]:
    """Calls a page: all, by owner, by folder and of the functions that are called most."""
    named: Sums[str] = Sums()
    for (file, _), number in calls.items():
        for whole, short in ((PACKAGE, "site_spider/"), (LIBRARIES, "")):
            if file.startswith(whole):
                named["/".join(f"{short}{file.removeprefix(whole)}".split("/")[:2])] += number
                break
        else:
            named["Python"] += number
    ours = sum(number for name, number in named.items() if name.startswith("site_spider/"))
    yield f"{calls.total() / pages:.0f} calls a page: {ours / pages:.0f} ours, by folder"
    yield "  " + ", ".join(f"{name} {number / pages:.1f}" for name, number in named.most_common(MOST_NAMED))
    for (file, function), number in calls.most_common(None if names_all else MOST_NAMED):
        yield f"  {number / pages:6.2f} {'/'.join(file.split('/')[-2:])} {function}"


if __name__ == "__main__":
    main()
