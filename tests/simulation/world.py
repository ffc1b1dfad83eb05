"""The world of one run: web sites, sinks, processes, and the truth that each commit is compared with."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import json
import logging
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.log import Broker, SimConsumer, SimSeedLog
from tests.simulation.virtual import NETWORK, PROCESS, Machine, VirtualLoop, sleep

from scrapy import Request
from scrapy.core.downloader.handlers.base import BaseDownloadHandler
from scrapy.crawler import AsyncCrawlerRunner
from scrapy.exceptions import DownloadFailedError, DownloadTimeoutError
from scrapy.http import HtmlResponse, Response
from scrapy.settings import Settings

from site_spider.contracts.seed_log import Message, Partition, Position
from site_spider.contracts.sink import ACKNOWLEDGED, Answer, Record, Verdict
from site_spider.errors import SinkUnavailable
from site_spider.ledger import metadata
from site_spider.seed.line import seed_message
from site_spider.service.service import SeedService
from site_spider.spiders.crawl_spider import SeedSpider

TOPIC, GROUP = "seeds", "site_spider"
DEAD_LETTERS = f"{TOPIC}.dead-letters"
STOP_SECONDS = 200.0
MOST_DEATHS = 5  # a seed that saw so many may be a dead letter (decision 0008)


@dataclass(frozen=True)
class Plan:
    """What a number decides about a run, before anything happens."""

    number: int
    pages: int = 60
    tree: int = 1  # pages of each seed, its own included
    crawlers: int = 2
    hosts: int = 12
    partitions: int = 4
    sinks: int = 1
    is_static: bool = True
    settings: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, number: int) -> Plan:
        rng = random.Random(f"{number}:plan")
        tree = rng.choice([1, 1, 4, 10])
        settings = {
            "CONCURRENT_REQUESTS": rng.choice([4, 16, 64]),
            "CONCURRENT_REQUESTS_PER_DOMAIN": rng.choice([1, 2, 8]),
            "SITE_SINK_FLUSH_SECONDS": rng.choice([0.0, 0.2, 1.0]),
            "SITE_REVOKE_GRACE_SECONDS": rng.choice([0, 0.5, 3]),
            "SITE_LINKS_TO": rng.choice(["memory", "kafka"]),
            "SITE_MAX_SEEDS_IN_FLIGHT": rng.choice([10, 100, 20_000]),
            "SITE_TREE_MAX_PAGES": rng.choice([3, 500]),
        }
        return cls(
            number=number,
            pages=rng.choice([20, 60, 120]),
            tree=tree,
            crawlers=rng.choice([1, 2, 2, 3, 4]),
            sinks=rng.choice([1, 1, 2, 3]),
            is_static=rng.random() < 0.7,
            settings=tuple(settings.items()),
        )


@dataclass
class Page:
    """What a site has at a URL."""

    url: str
    links: list[str]
    parent: str | None
    status: int = 200
    trouble: str = ""
    bad_answers: int = 0  # before it answers well
    target: str = ""  # of a redirect


class Process:
    """One crawler; `number` tells the lives of one slot apart."""

    clock_error = 0.0

    def __init__(self, world: World, slot: int, number: int) -> None:
        self.world, self.slot = world, slot
        self.name = f"p{number}"
        self.member_name = f"slot{slot}" if world.plan.is_static else ""
        self.is_dead = self.is_frozen = self.is_late = self.is_stopping = self.is_taken = False
        self.kept: list[Any] = []
        self.consumers: list[SimConsumer] = []
        self.downloads: Counter[str] = Counter()  # under way, by host
        self.crawler: Any = None
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        context = contextvars.Context()
        context.run(PROCESS.set, self)
        self.task = Machine.running().create_task(self._crawl(), context=context)

    async def _crawl(self) -> None:
        runner = AsyncCrawlerRunner(self.world.settings.copy())
        self.crawler = runner.create_crawler(SeedSpider)
        await runner.crawl(self.crawler)

    @property
    def has_ended(self) -> bool:
        return self.is_dead or (self.task is not None and self.task.done())

    @property
    def is_open(self) -> bool:
        if self.is_dead or self.crawler is None or self.crawler.engine is None:
            return False
        service = SeedService.of(self.crawler)
        return service is not None and service.is_open

    @property
    def exit_code(self) -> int:
        return int(getattr(self.crawler.spider, "exit_code", 0))

    def left(self) -> dict[str, int]:
        """What a process that has nothing to do still holds."""
        parts = SeedService.of(self.crawler).parts  # type: ignore[union-attr]
        return {
            "seeds in flight": parts.watched.ledger.in_flight,
            "requests that wait": len(parts.room),
            "downloads": sum(self.downloads.values()),
        }


class Web(BaseDownloadHandler):
    """All sites."""

    async def download_request(self, request: Request) -> Response:
        process: Process = PROCESS.get()
        world, host = process.world, request.url.split("/")[2]
        process.downloads[host] += 1
        limit = dict(world.plan.settings)["CONCURRENT_REQUESTS_PER_DOMAIN"]
        if process.downloads[host] > limit:
            world.violation(
                "politeness", f"{process.downloads[host]} requests to {host} at once, not {limit}"
            )
        try:
            return await self._answer(world, request)
        finally:
            process.downloads[host] -= 1

    async def _answer(self, world: World, request: Request) -> Response:
        url, rng = request.url, world.rng("web")
        page = world.pages.get(url)
        world.fetched += 1
        world.trace("fetch", PROCESS.get().name, url)
        await asyncio.sleep(rng.uniform(0.5, 8) if rng.random() < 0.02 else rng.uniform(0.02, 0.3))
        if page is None:
            return HtmlResponse(url, status=404, body=b"none")
        if page.bad_answers > 0:
            page.bad_answers -= 1
            match page.trouble:
                case "hangs":
                    await asyncio.sleep(30.0)
                    raise DownloadTimeoutError(f"Getting {url} took longer than 30 seconds.")
                case "closes":
                    raise DownloadFailedError("the server closed the connection")
                case "busy":
                    return HtmlResponse(url, status=503, headers={"Retry-After": "2"}, body=b"busy")
                case "many":
                    return HtmlResponse(url, status=429, body=b"slow down")
        if page.target:
            return HtmlResponse(url, status=302, headers={"Location": page.target}, body=b"")
        body = "".join(f'<a href="{link}">x</a>' for link in page.links)
        headers = {"Content-Type": "text/html; charset=utf-8"}
        return HtmlResponse(url, status=page.status, headers=headers, body=body.encode())


class SimSink:
    """A store of results; what has left its process is written even if that dies."""

    name = "first"
    world: World  # set for each run

    def __init__(self) -> None:
        self._context = contextvars.copy_context()

    @classmethod
    def from_settings(cls, _settings: Any) -> SimSink:
        return cls()

    async def open(self) -> None:
        await asyncio.sleep(0.005)
        if self.name in self.world.sinks_away:
            raise SinkUnavailable("the sink is away")

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        loop, rng = Machine.running(), self.world.rng(self.name)
        ended: asyncio.Future[Sequence[Verdict]] = loop.create_future()

        def arrive(answer: Sequence[Verdict] | Exception) -> None:
            if ended.done():
                return
            if isinstance(answer, Exception):
                ended.set_exception(answer)
            else:
                ended.set_result(answer)

        def apply() -> None:
            is_odd = self.name in self.world.sinks_odd
            if self.name in self.world.sinks_away:
                if rng.random() > 0.2:  # else nobody ever answers
                    answer(SinkUnavailable("refused"), 0.01)
                return
            verdicts = [self._written(record, rng if is_odd else None) for record in records]
            if is_odd and rng.random() < 0.2:
                answer(SinkUnavailable("reset by peer"), 0.01)  # written, and nobody hears of it
            else:
                answer(verdicts, rng.uniform(0, 3) if is_odd else rng.uniform(0.001, 0.02))

        def answer(what: Sequence[Verdict] | Exception, seconds: float) -> None:
            loop.call_later(seconds, arrive, what, context=self._context)

        loop.call_later(rng.uniform(0.001, 0.02), apply, context=NETWORK)
        return await ended

    def _written(self, record: Record, rng: random.Random | None) -> Verdict:
        if rng is not None and rng.random() < 0.1:
            return Verdict(Answer.RETRY, "overloaded")
        if record.document.get("url") in self.world.refused:
            return Verdict(Answer.REJECTED, "refused by the sink")
        self.world.stored(self.name, record)
        return ACKNOWLEDGED

    async def close(self) -> None:
        pass


class SecondSink(SimSink):
    name = "second"


class ThirdSink(SimSink):
    name = "third"


SINKS = (SimSink, SecondSink, ThirdSink)


class NoStatistics:
    """Takes statistics, and forgets them."""

    name = "nothing"

    @classmethod
    def for_statistics(cls, _settings: Any) -> NoStatistics:
        return cls()

    async def open(self) -> None:
        pass

    async def write(self, records: Sequence[Any]) -> Sequence[Verdict]:
        return [ACKNOWLEDGED] * len(records)

    async def close(self) -> None:
        pass


@dataclass
class Truth:
    """What is known to have happened."""

    stored: dict[str, set[str]] = field(default_factory=dict)  # url -> names of sinks
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    dead_letters: dict[tuple[str, int, int], str] = field(default_factory=dict)
    no_seeds: set[tuple[str, int, int]] = field(default_factory=set)
    places: dict[str, list[tuple[Partition, int]]] = field(default_factory=dict)  # messages that name a URL
    covered: dict[Partition, set[int]] = field(default_factory=dict)  # offsets that commits say are complete


class World:
    """One run's; generators of its own for each part, so that leaving a trouble out changes nothing else."""

    def __init__(self, plan: Plan, *, keeps_trace: bool = False) -> None:
        self.plan = plan
        self._rngs: dict[str, random.Random] = {}
        self.lines: list[str] | None = [] if keeps_trace else None
        self._digest = hashlib.blake2b(digest_size=8)
        self.violations: list[tuple[str, str]] = []
        self.is_over = False
        self.pages: dict[str, Page] = {}
        self.seeds: list[str] = []
        self.refused: set[str] = set()  # by the sinks
        self.sinks_away: set[str] = set()
        self.sinks_odd: set[str] = set()
        self.sink_names = [sink.name for sink in SINKS[: plan.sinks]]
        self.fetched = 0
        self.events = 0
        self.deaths = 0
        self.owned_at = 0.0  # when each partition had an owner, or a rebalance was under way, last
        self.truth = Truth()
        self.broker = Broker(self.rng("network"), self, plan.partitions)
        self.processes: list[Process] = []
        self.settings = _settings(plan)
        self._make_sites()

    def rng(self, name: str) -> random.Random:
        if name not in self._rngs:
            self._rngs[name] = random.Random(f"{self.plan.number}:{name}")
        return self._rngs[name]

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def trace(self, *what: Any) -> None:
        self.events += 1
        line = f"{Machine.now():.6f} {' '.join(map(str, what))}"
        self._digest.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    def violation(self, kind: str, what: str) -> None:
        if not self.is_over:
            self.trace("VIOLATION", kind, what)
            self.violations.append((kind, what))

    # --- the sites ------------------------------------------------------------------------------

    def _make_sites(self) -> None:
        rng, plan = self.rng("sites"), self.plan
        for number in range(max(1, plan.pages // plan.tree)):
            host = f"h{rng.randrange(plan.hosts)}.test"
            urls = [f"http://{host}/{number}/{index}" for index in range(plan.tree)]
            links = {url: urls[2 * index + 1 : 2 * index + 3] for index, url in enumerate(urls)}
            parents = {link: url for url in urls for link in links[url]}
            for url in urls:
                if url != urls[0] and url not in getattr(self.pages.get(parents[url]), "links", ()):
                    continue  # its parent has no links
                self.pages[url] = page = Page(url, links[url], parents.get(url))
                self._trouble(page, rng)
            self.seeds.append(urls[0])
        if plan.tree == 1:
            good = [url for url in self.seeds if not self.pages[url].trouble]
            self.refused = set(rng.sample(good, min(2, len(good))))

    def _trouble(self, page: Page, rng: random.Random) -> None:
        if rng.random() > 0.15:
            return
        page.trouble = rng.choice(["hangs", "closes", "busy", "many", "gone", "moved", "moved away"])
        page.bad_answers = 1
        if page.trouble == "gone":
            page.status, page.links = 404, []
        elif page.trouble == "moved":
            page.target = f"{page.url}/moved"
        elif page.trouble == "moved away":
            path = page.url.split("/", 3)[3]
            page.target = f"http://h{rng.randrange(self.plan.hosts)}.test/{path}/moved"
        if page.target:  # links lead on where it went; a page elsewhere has none, which are out of scope
            links = page.links if page.trouble == "moved" else []
            self.pages[page.target] = Page(page.target, links, page.parent)
            page.links = links

    def messages(self) -> list[tuple[bytes | None, bytes]]:
        """What producers send, some of it no seeds."""
        rng = self.rng("messages")
        made: list[tuple[bytes | None, bytes]] = []
        for number, url in enumerate(self.seeds):
            meta = {"url_id": f"id{number}"} if rng.random() < 0.2 else {}
            made.append(seed_message(json.dumps({"url": url, "meta": meta})))
        for bad in (b"{no seed", b'{"url": "nothing"}'):
            made.insert(rng.randrange(len(made) + 1), (b"x", bad))
        return made

    # --- the truth ------------------------------------------------------------------------------

    def appended(self, message: Message) -> None:
        topic, number = message.partition
        if topic.endswith(".stats"):
            return
        where = (topic, number, message.offset)
        self.trace("append", *where)
        if topic == TOPIC:
            url = self._url_of(message)
            if url is None:
                self.truth.no_seeds.add(where)
            else:
                self.truth.places.setdefault(url, []).append((message.partition, message.offset))
        elif topic == DEAD_LETTERS:
            headers = dict(message.headers)
            place = (int(headers["origin_partition"]), int(headers["origin_offset"]))
            self.truth.dead_letters[headers["origin_topic"].decode(), *place] = headers["error"].decode()

    def _url_of(self, message: Message) -> str | None:
        try:
            url = str(json.loads(message.value or b"")["url"])
        except ValueError:
            return None
        source = url if url in self.pages else None
        return next((one.url for one in self.pages.values() if one.target == url), source)

    def stored(self, sink: str, record: Record) -> None:
        url = str(record.document.get("url"))
        self.trace("store", sink, url, record.document.get("status"))
        self.truth.stored.setdefault(url, set()).add(sink)
        self.truth.documents[url] = dict(record.document)

    def assigned(self, consumer: SimConsumer, positions: dict[Partition, Position | None]) -> None:
        told = [(one.number, at.offset if at else None) for one, at in positions.items()]
        self.trace("assigned", consumer.process.name, told)

    def committing(
        self, consumer: SimConsumer, partition: Partition, position: Position, before: Position | None
    ) -> None:
        """The strongest check: what a commit says is complete is compared with what is stored now."""
        self.trace("commit", consumer.process.name, partition.number, position.offset)
        if before is not None and position.offset < before.offset:
            self.violation("a commit went back", f"{partition} {before.offset} to {position.offset}")
        said = set(range(position.offset))
        for first, beyond in metadata.decode(position.offset, position.metadata).complete:
            said.update(range(first, beyond))
        known = self.truth.covered.setdefault(partition, set())
        part = self.broker.topics[partition.topic][partition.number]
        for offset in sorted(said - known):
            if offset >= len(part):
                self.violation("a commit beyond the end", f"{partition} {offset}")
            elif missing := self._missing(part[offset]):
                self.violation("a commit beyond an incomplete seed", f"{partition} {offset}: {missing}")
            known.add(offset)

    def _missing(self, message: Message) -> str:
        """What of a message's tree is neither stored nor expected from another message."""
        where = (*message.partition, message.offset)
        if where in self.truth.dead_letters:
            return ""
        root = self._url_of(message)
        if where in self.truth.no_seeds or root is None:
            return "no seed, and no dead letter"
        waiting = [root]
        while waiting:
            url = waiting.pop()
            if not self._is_stored(url):
                if url in self.refused or self._is_expected(url, message):
                    continue
                return f"{url} is stored in {sorted(self.truth.stored.get(url, ()))}"
            waiting += [link for link in self.pages[url].links if not self._is_expected(link, message)]
        return ""

    def _is_stored(self, url: str) -> bool:
        return self.truth.stored.get(url, set()) >= set(self.sink_names)

    def _is_expected(self, url: str, besides: Message) -> bool:
        """Whether another message, not complete yet, has this page in its tree."""
        page: str | None = url
        while page is not None:
            for partition, offset in self.truth.places.get(page, ()):
                is_other = (partition, offset) != (besides.partition, besides.offset)
                if is_other and offset not in self.truth.covered.get(partition, ()):
                    return True
            page = self.pages[page].parent
        return False

    def lag(self) -> int:
        committed = self.broker.group(GROUP).committed
        return sum(
            len(part) - (committed[one].offset if one in committed else 0)
            for number, part in enumerate(self.broker.topic(TOPIC))
            for one in [Partition(TOPIC, number)]
        )

    # --- processes ------------------------------------------------------------------------------

    @property
    def alive(self) -> list[Process]:
        return [process for process in self.processes if not process.is_dead]

    def start(self, slot: int) -> Process:
        process = Process(self, slot, len(self.processes) + 1)
        self.processes.append(process)
        self.trace("start", process.name, slot)
        process.start()
        return process

    def kill(self, process: Process) -> None:
        """As kill -9: nothing of it is closed."""
        if process.is_dead:
            return
        self.trace("kill", process.name)
        loop = Machine.running()
        process.is_dead = True
        loop.buried += [process, list(loop.threads), process.kept, asyncio.all_tasks(loop)]
        self.go_silent(process)

    def go_silent(self, process: Process) -> None:
        for consumer in process.consumers:
            consumer.group.lost_sight(consumer)
            if process.is_dead:
                consumer.forget()

    async def stop(self, process: Process) -> None:
        """SIGTERM, and its end."""
        self.trace("stop", process.name)
        process.is_stopping = True
        while not process.is_open and not process.has_ended:
            await asyncio.sleep(0.1)
        if not process.has_ended:
            context = contextvars.Context()
            context.run(PROCESS.set, process)
            Machine.running().create_task(process.crawler.stop_async(), context=context)
        deadline = Machine.now() + STOP_SECONDS
        while not process.has_ended:
            if Machine.now() > deadline:
                self.violation("a stop does not end", process.name)
                break
            await asyncio.sleep(0.1)
        self.ended(process)

    def ended(self, process: Process) -> None:
        """A process that is no more, and was not killed."""
        if not process.is_dead:
            code = process.exit_code
            if code not in (0, 69):
                self.violation("exit code", f"{process.name} ended with {code}")
            process.is_dead = True
            for consumer in process.consumers:
                consumer.forget()
                if consumer.number in consumer.group.members and not process.is_stopping:
                    consumer.group.lost_sight(consumer)


def produce(world: World) -> None:
    """On a thread of a process of its own."""
    producer = SimSeedLog().producer()
    rng = world.rng("producer")
    for number, (key, value) in enumerate(world.messages()):
        producer.send(TOPIC, key, value)
        if number % 20 == 19:
            sleep(rng.uniform(0, 0.5))
    producer.flush(1_000.0)


_BASE = Settings()
_BASE.setmodule("site_spider.settings", priority="project")
_BASE.setdict(
    {
        "TWISTED_REACTOR_ENABLED": False,
        "DOWNLOAD_HANDLERS": dict.fromkeys(("http", "https"), f"{__name__}.Web"),
        "LOG_ENABLED": False,
        "SITE_KAFKA_BROKERS": "",
        "SITE_SEED_LOG_CLASSES": {"local": f"{SimSeedLog.__module__}.SimSeedLog"},
        "SITE_STATS_TO": f"{__name__}.NoStatistics",
        "SITE_FRONTIER_SOCKET": False,
        "RETRY_TIMES": 2,
        "SITE_RETRY_PAUSE_SECONDS": 0.5,
        "SITE_CALLBACK_TIMEOUT_SECONDS": 0.5e9,  # the watchdog measures real time
    },
    priority="cmdline",
)


def _settings(plan: Plan) -> Settings:
    settings = _BASE.copy()
    sinks = ",".join(f"{sink.__module__}.{sink.__name__}" for sink in SINKS[: plan.sinks])
    settings.setdict({"SITE_SINKS": sinks, **dict(plan.settings)}, priority="cmdline")
    return settings


class Listener(logging.Handler):
    """What the product logs: an ERROR is a violation."""

    EXPECTED = ("A dead letter could not be written", "Cannot start: the")

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        process = PROCESS.get()
        if self._world.is_over or (process is not None and process.is_dead):
            return
        said = record.getMessage()[:300]
        self._world.trace("log", record.levelname, said)
        if record.levelno >= logging.ERROR and not any(text in said for text in self.EXPECTED):
            error = record.exc_info[1] if record.exc_info else None
            self._world.violation("an error in the log", f"{said} {error!r}")


def loop_of(world: World) -> VirtualLoop:
    """The loop of a run; it is the current one from now on."""
    rng = world.rng("workers")
    loop = Machine.loop = VirtualLoop(lambda: rng.uniform(0.0, 0.003))
    asyncio.set_event_loop(loop)
    return loop
