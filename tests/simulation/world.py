"""The world of one run: its plan, its processes, and how they start, stop and die."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import logging
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from math import inf
from operator import attrgetter
from typing import Any
from weakref import WeakSet

from tests.simulation.group import Group
from tests.simulation.log import Broker, SimConsumer, SimSeedLog
from tests.simulation.sites import OTHER_SINK, ROBOTS, SCOPE, SINKS, SOURCES, Sites, Web
from tests.simulation.truth import Truth
from tests.simulation.virtual import PROCESS, Machine, until

from scrapy import Request
from scrapy.crawler import AsyncCrawlerRunner
from scrapy.exceptions import IgnoreRequest
from scrapy.settings import Settings

from site_spider.contracts.seed_log import Partition, Position
from site_spider.seed.topics import CrawlTopics, partition_of
from site_spider.settings import ITEM_PIPELINES
from site_spider.service.wiring import Parts
from site_spider.service.service import SeedService
from site_spider.spiders.crawl_spider import SeedSpider, to_topic
from site_spider.tasks.declaration import Task

OTHER, OTHER_SLOT = "parse_other", 200  # a callback; the first of the other group
STOP_SECONDS = 200.0
LAST_SECONDS = 20.0  # for threads that wait for a server, or for who has put back half of what was parked
_CHOICES: dict[str, list[Any]] = {
    "CONCURRENT_REQUESTS": [4, 16, 64],
    "CONCURRENT_REQUESTS_PER_DOMAIN": [1, 2, 8],
    "SITE_SINK_FLUSH_SECONDS": [0.0, 0.2, 1.0],
    "SITE_REVOKE_GRACE_SECONDS": [0, 0.5, 3],
    "SITE_LINKS_TO": ["memory", "memory", "kafka"],
    "SITE_MAX_SEEDS_IN_FLIGHT": [10, 10, 100, 20_000],
    "SITE_DUPEFILTER": ["memory", f"{Web.__module__}.SimDone"],
    "SITE_TREE_MAX_PAGES": [3, 500],
    "SITE_SEED_MAX_OPEN_SECONDS": [3, 600],
    "SITE_SITEMAPS": ["seed", "robots"],
    "SITE_GONE": ["mark", "delete"],
    "SITE_GONE_AFTER": [1, 3],
    "SITE_MAX_SPAN_OFFSETS": [5, 50_000],
    SCOPE: ["task", "task", "group"],
    "SITE_FRONTIER_MAX_REQUESTS": [4, 100_000],
    "SITE_FRONTIER_MAX_BYTES": [100_000, 256_000_000],
}
_ROLLING = {"SITE_DUPEFILTER": f"{Web.__module__}.SimRolling", "SITE_ROLLING_COUNT": 5}
EXTRAS: dict[str, list[dict[str, Any]]] = {  # what few numbers have, each with one of these settings
    "lists": [{"SITE_SOURCES_DIR": SOURCES}],  # that grow, and end where they are known
    "idle": [{"SITE_IDLE_CLOSE_SECONDS": seconds} for seconds in (2, 8, 30)],
    "doubles": [{"SITE_FILTER_SEEDS": True}],  # many seeds of a page
    "forgets": [
        {"SITE_DUPEFILTER": f"{Web.__module__}.SimBloom", "SITE_BLOOM_CAPACITY": 5, "SITE_BLOOM_ERROR_RATE": 1e-9},
        _ROLLING,
        _ROLLING | {"SITE_ROLLING_HITS": 2},
        _ROLLING | {"SITE_ROLLING_SECONDS": 3},
    ],
    "more": [
        {"SITE_SPILL_KEY": "0123456789abcdef"},
        {"SITE_HOST_MAX_REQUESTS": 1},
        {"SITE_CANCELLED_RESULTS": True},
        {"SITE_SINK_BATCH_BYTES": 500, "SITE_SINK_BACKLOG_BYTES": 2_000},
        {"SITE_MAX_WAIT_SECONDS": 1},
        {"SITE_RETRY_TIMES_BY_REASON": {"503": 5, "429": 5, "TimeoutError": 5, "DownloadFailedError": 5}},
        {"ROBOTSTXT_OBEY": True},
        {"SITE_KEEP_ROBOTS": True, "SITE_SITEMAPS": "robots"},
        {"SITE_STOP_GRACE_SECONDS": 3},
        {"SITE_DUPEFILTER": f"{Web.__module__}.SimDone", "SITE_DUPEFILTER_WAIT_SECONDS": 1},
        {"SITE_BODIES_MAX_BYTES": 900_000},  # and pages of which it holds one at a time
    ],
    "robots": [{"ROBOTSTXT_OBEY": True, "SITE_ROBOTS_WAIT_SECONDS": 600, "SITE_ROBOTS_MAX_AGE_SECONDS": 20}],
    "recrawls": [{"SITE_RECRAWL_MIN_SECONDS": 1, "SITE_RECRAWL_FIRST_SECONDS": 2, "SITE_RECRAWL_ERROR_SECONDS": 3}],
}
RARE: dict[str, list[dict[str, Any]]] = {  # of which a third of the numbers has one
    "anew": [{}],  # tasks that have ended go on, or are deleted first
    "callbacks": [{}],  # pages of a second one, which seeds may name
    "files": [{"ITEM_PIPELINES": ITEM_PIPELINES | {f"{__name__}.Files": 300}}],  # past the frontier
    "gone": [{"SITE_GONE_AFTER": count, "SITE_GONE": mode} for count in (2, 3) for mode in ("mark", "delete")],
    "traps": [{}],
    "full hosts": [{}],  # budgets of hosts
    "maps": [{"SITE_KEEP_ROBOTS": True, "SITE_SITEMAPS": "robots"}],  # that robots.txt name
    "limits": [{}],  # tasks have rates, and expire
    "groups": [{}],  # two over the same topics, with stores of their own
}


HOLDS = (  # parts, while something is under way
    "completion.ledger.in_flight", "completion._alive", "completion._begun", "completion.repeats.under_way", "room",
    "room.load.bytes", "room.load.spilling", "room.load.requests", "bodies.bytes", "results._dead_letters.under_way",
    "tasks.parking._unproved", "dupefilter.seen._seeds", "dupefilter.seen._met_for", "dupefilter.seen._joined",
    "dupefilter.seen._then", "commits._held.size_bytes", "commits._held._trees", "commits._firsts", "commits._running",
)  # fmt: skip
WITHOUT = {"maps": ["robots"], "anew": ["recrawls"], "gone": ["recrawls"], "groups": ["idle", "lists"]}


class Plan:
    """What a number decides about a run, before anything happens."""

    partitions = 4

    def __init__(self, number: int) -> None:
        self.number = number
        rng = random.Random(f"{number}:plan")
        self.settings = {name: rng.choice(values) for name, values in _CHOICES.items()}
        self.settings["SITE_HOST_OWNERSHIP"] = rng.random() < 0.3
        self.settings["SITE_SEED_TOPICS"] = rng.choice(["", "", "urgent:8,seeds:4"])
        self.is_exactly_once = rng.random() < 0.35
        self.pages = rng.choice([20, 60, 120])
        self.tree = rng.choice([1, 4, 10])  # pages of each seed, its own included
        self.crawlers = rng.choice([1, 2, 2, 3, 4])
        self.sinks = 0 if self.is_exactly_once else rng.choice([1, 1, 2, 3])
        self.task_ids = [f"task{number}" for number in range(rng.choice([0, 1, 2, 2]))]
        self.hosts = rng.choice([1, 2, 6, 12])
        self.has_far_links = rng.random() < 0.3
        self.settings["SITE_LINK_SCOPE"] = "any" if self.has_far_links else "host"
        self.sends_links = rng.random() < 0.3  # to any tier
        self.merges = rng.random() < 0.3
        self.is_static = rng.random() < 0.7
        self.has_items = rng.random() < 0.3
        if self.merges:
            self.has_items = self.sends_links = False  # a callback of one's own merges nothing
            self.settings |= {"SITE_TEXT": "plain", "SITE_CANONICAL": "merge", SCOPE: "task"}
        self.settings["SITE_FILTER_SEEDS"] = rng.random() < 0.3
        self.settings["DOWNLOAD_DELAY"] = rng.choice([0, 0, 0.5])
        self.network_seconds = rng.choice([0.01, 0.01, 0.2])  # for each way, at most
        rng = random.Random(f"{number}:extras")
        self.extras = {name: rng.choice(choices) for name, choices in EXTRAS.items() if rng.random() < 0.12}
        if (rng := random.Random(f"{number}:rare 74398")).random() < 0.33:
            name = rng.choice([*RARE])
            for other in WITHOUT.get(name, ()):
                self.extras.pop(other, None)
            self.extras[name] = rng.choice(RARE[name])
            if name == "groups":
                self.task_ids, self.is_exactly_once, self.sinks = [], False, self.sinks or 1
            if name in ("anew", "full hosts", "limits", "traps"):
                self.task_ids, self.crawlers = self.task_ids or ["task0"], rng.choice([1, self.crawlers])
        for settings in self.extras.values():
            self.settings |= settings
        self.has_items |= not self.merges and not {"callbacks", "files"}.isdisjoint(self.extras)
        self.has_items &= {"lists", "recrawls"}.isdisjoint(self.extras)
        self.bad_answers = 4 if "SITE_RETRY_TIMES_BY_REASON" in self.settings else 1
        self.pause_seconds = max(self.settings["DOWNLOAD_DELAY"] / 2, 1.0 if "robots" in self.extras else 0.0)

    def other_callback(self, url: str) -> str | None:
        is_other = self.has_items and "callbacks" in self.extras and len(url) % 3 != 1 and not url.endswith(ROBOTS)
        return OTHER if is_other else None


class OwnSpider(SeedSpider):
    """An item of each page, and what any crawl has of it; links go to any topic, as the plan says."""

    seed_callbacks = ("parse", OTHER)

    async def parse(self, response: Any, **more: Any) -> Any:
        world = PROCESS.get().world
        if world.plan.has_items and response.url in world.sites.pages:
            yield {"body": response.text, **more}
        found = await super().parse(response)
        for output in map(self._as_planned, found):
            if world.plan.sends_links and isinstance(output, Request) and len(output.url) % 3 == 0:
                yield to_topic(output, world.rng("topics").choice(world.topics.tiers))
            else:
                yield output

    def _as_planned(self, output: Any) -> Any:
        is_other = isinstance(output, Request) and PROCESS.get().world.plan.other_callback(output.url)
        return output.replace(callback=self.parse_other) if is_other else output

    def parse_other(self, response: Any) -> Any:
        return self.parse(response, callback=OTHER)


class Files:
    """A pipeline that asks for a file of each item by itself."""

    async def process_item(self, item: Any) -> Any:
        if not (isinstance(item, dict) and "body" in item):
            return item  # a result, or an entry of a list
        process = PROCESS.get()
        host = f"h{len(item['body']) % process.world.plan.hosts}.test"
        try:
            answer = await process.crawler.engine.download_async(Request(f"http://{host}/file"))
        except IgnoreRequest:  # its robots.txt could not be had
            return {**item, "file": "none"}
        return {**item, "file": answer.text}


class Process:
    """One crawler; `number` tells the lives of one slot apart."""

    def __init__(self, world: World, slot: int, number: int) -> None:
        self.world, self.slot = world, slot
        self.name = f"p{number}"
        self.is_other = OTHER_SLOT <= slot < 900  # of the other group
        self.member_name = f"slot{slot}" if world.plan.is_static else ""
        self.is_dead = self.is_frozen = self.is_late = self.is_stopping = self.is_taken = False
        self.clock_error = self.lost_at = 0.0
        self.began_at = self.busy_at = Machine.now()
        self.kept: list[Any] = []  # callbacks, while it stands still
        self.hears_of_thread: Callable[[Any], bool] = lambda _failure: False  # that died
        self.consumers: list[SimConsumer] = []
        self.downloads: Counter[str] = Counter()  # under way, by host
        self.asked_at: dict[str, float] = {}  # each host, for a page
        self.keyed_at: dict[str, float] = {}  # likewise, of what has the key of the host
        self.days: set[str] = set()  # of a calendar, that it was answered
        self.leaving: Counter[str] = Counter()  # messages that are about to, by topic
        self.crawler: Any = None
        self.task: asyncio.Task[None] | None = None
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()  # all that it has begun

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        context = contextvars.Context()
        context.run(PROCESS.set, self)
        return Machine.running().create_task(work, context=context)

    async def crawl(self) -> None:
        plan, settings = self.world.plan, self.world.settings.copy()
        if self.is_other:
            other = {"SITE_CONSUMER_GROUP": OTHER_SINK, "SITE_SINKS": f"{_SITES}.OtherSink"}
            settings.setdict(other, priority="cmdline")
        runner = AsyncCrawlerRunner(settings)
        self.crawler = runner.create_crawler(OwnSpider if plan.has_items or plan.sends_links else SeedSpider)
        await runner.crawl(self.crawler)

    @property
    def has_ended(self) -> bool:
        return self.is_dead or (self.task is not None and self.task.done())

    @property
    def parts(self) -> Parts | None:
        """While its service is open."""
        service = None if self.is_dead or self.crawler is None else SeedService.of(self.crawler)
        return service.parts if service is not None and service.is_open else None

    @property
    def exit_code(self) -> int:
        return int(getattr(self.crawler.spider, "exit_code", 0))

    def owns(self, partition: Partition) -> bool:
        """As far as it knows."""
        return any(partition in consumer.owned for consumer in self.consumers)

    @property
    def is_alone_with_its_own(self) -> bool:
        """Whether no other has the partition of its hosts; what waits just when that leaves may begin."""
        plan, tiers = self.world.plan, self.world.topics.tiers
        is_plain = len(tiers) == 1 and len(self.world.broker.topic(tiers[0])) <= plan.partitions
        return is_plain and Machine.now() - self.lost_at >= 1.0 and all(one.is_member for one in self.consumers)

    def may_ask(self, host: str) -> bool:
        """Whether it has the partition of a host, where that counts."""
        plan, topic = self.world.plan, self.world.topics.tiers[0]
        if self.parts is None or not (plan.settings["SITE_HOST_OWNERSHIP"] and self.is_alone_with_its_own):
            return True
        partition = Partition(topic, partition_of(host.encode(), plan.partitions))
        return self.parts.completion.ledger.epoch(partition) is not None

    def left(self) -> dict[str, int]:
        if (parts := self.parts) is None:
            return {}
        held = {name: attrgetter(name)(parts) for name in HOLDS if parts.config.exactly_once or "commits" not in name}
        counted = {name: what if isinstance(what, int) else len(what) for name, what in held.items()}
        backlog = sum(delivery.backlog_bytes for delivery in parts.sinks)
        return counted | {"downloads": sum(self.downloads.values()), "backlog": backlog}

    @property
    def has_work(self) -> bool:
        """Something that keeps it from ending by itself."""
        if (parts := self.parts) is None or parts.stop.has_begun:
            return False
        seeds = parts.completion.ledger.in_flight or len(parts.room)
        return seeds > 0 or any(each.has_more for each in self.consumers)

    def goes_on(self) -> list[str]:
        """What of it does so in the event loop, while none of its downloads does: those may be given up."""
        names = (getattr(one.get_coro(), "__qualname__", "?") for one in self.tasks if not one.done())
        return [] if self.is_dead or any(self.downloads.values()) else sorted(names)

    def unbalanced(self) -> str:
        ledger = None if self.parts is None else self.parts.completion.ledger
        if ledger is None or ledger.consumed == (ended := sum(ledger.outcomes.values())) + ledger.in_flight:
            return ""
        return f"{ledger.consumed} consumed, {ended} ended, {ledger.in_flight} in flight"


class World:
    """One run's; generators of its own for each part, so that leaving a trouble out changes nothing else."""

    def __init__(self, plan: Plan, *, keeps_trace: bool = False) -> None:
        self.plan = plan
        self._rngs: dict[str, random.Random] = {}
        self.lines: list[str] | None = [] if keeps_trace else None
        self._digest = hashlib.blake2b(digest_size=8)
        self.violations: list[tuple[str, str]] = []
        self.settings = _settings(plan)
        self.topics = CrawlTopics.of(self.settings)
        self.task_ids = plan.task_ids
        self.tells_ends = not plan.is_exactly_once
        self.sites = Sites(plan, self.rng("sites"))
        names = ["kafka"] if plan.is_exactly_once else [sink.name for sink in SINKS[: plan.sinks]]
        self.sinks: dict[str, Counter[str]] = {name: Counter() for name in names}  # what is wrong with each
        self.fetched = self.deaths = 0
        self.have_clocks_jumped = self.is_produced = self.has_moved = False  # a partition to another process
        self.marks: dict[bool, set[bytes]] = defaultdict(set)  # of the dupefilter's store, of both groups
        self.away_since: dict[str, float] = {}  # servers: `broker`, `marks`
        self.lead_on: set[str] = set()  # tasks of which a page with links was answered
        self.sent: dict[str, dict[str, Any]] = {}  # seeds of no task, by URL
        self.half_done: set[str] = set()  # tasks of which an order has failed
        self.settled_at = inf  # when the last order was given
        self.answers: Counter[str] = Counter()  # good ones, by URL
        self.begun: Counter[str | None] = Counter()  # pages, by task
        self.budgets: dict[str | None, float] = {}  # of these, if a task has one from its beginning: the largest
        self.declared: dict[str | None, Task] = {}
        self.most_on_host: dict[str | None, float] = {}  # pages, by task
        self.linked: dict[tuple[str | None, str], set[str]] = defaultdict(set)  # pages begun, by task and host
        self.paces: dict[str | None, list[float]] = defaultdict(list)  # when requests began, by task
        self.looks_up = True  # no look-up of stored pages was given up
        self.owned_at = 0.0  # when each partition had an owner last, or a process came or went
        self.truth = Truth(self)
        self.broker = Broker(self.rng("network"), self, plan.partitions)
        self.processes: list[Process] = []
        self.operators: list[Any] = []

    def rng(self, name: str) -> random.Random:
        if name not in self._rngs:
            self._rngs[name] = random.Random(f"{self.plan.number}:{name}")
        return self._rngs[name]

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def trace(self, *what: Any) -> None:
        line = f"{Machine.now():.6f} {' '.join(map(str, what))}"
        self._digest.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    def violation(self, kind: str, what: str) -> None:
        self.trace("VIOLATION", kind, what)
        self.violations.append((kind, what))

    @property
    def group(self) -> Group:
        return self.broker.group("site_spider")

    @property
    def owners(self) -> Counter[Partition]:
        """How many living processes have each partition, as they know themselves."""
        open_ones = [one.parts for one in self.alive if not one.is_other]
        return Counter(at for parts in open_ones if parts is not None for at in parts.completion.ledger.partitions())

    def lag(self) -> int:
        names = ["site_spider", *([OTHER_SINK] if "groups" in self.plan.extras else [])]
        return sum(
            len(part) - self.broker.group(name).committed.get(Partition(topic, number), Position(0)).offset
            for name in names
            for topic in self.topics.tiers
            for number, part in enumerate(self.broker.topic(topic))
        )

    # --- processes --------------------------------------------------------------------------------

    @property
    def alive(self) -> list[Process]:
        return [process for process in self.processes if not process.is_dead]

    @property
    def is_disturbed(self) -> bool:
        """Whether something keeps members from their group just now."""
        is_held_up = any(one.is_frozen or one.is_late for one in self.alive)
        shares = self.broker.refused, self.broker.unanswered, self.broker.slow, not self.broker.takes_messages
        return not self.alive or is_held_up or any((*shares, *self.away_since, *map(len, self.sinks.values())))

    def start(self, slot: int) -> Process:
        """The process that has the slot already, if there is one: two of a name fence each other."""
        for process in self.alive:
            if process.slot == slot and not process.has_ended:
                return process
        process = Process(self, slot, len(self.processes) + 1)
        self.processes.append(process)
        self.owned_at = Machine.now()
        self.trace("start", process.name, slot)
        process.task = process.run(process.crawl())
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
        self.owned_at = Machine.now()
        for consumer in process.consumers:
            consumer.group.lost_sight(consumer)
            if process.is_dead:
                consumer.forget()

    async def stop(self, process: Process) -> None:
        if process.has_ended:
            return
        self.trace("stop", process.name)
        process.is_stopping = True
        await until(lambda: process.parts is not None or process.has_ended, inf, 0.1)
        if not process.has_ended:
            process.run(process.crawler.stop_async())
        if not await until(lambda: process.has_ended, STOP_SECONDS, 0.1):
            self.violation("a stop does not end", process.name)
        if not await until(lambda: not process.goes_on(), LAST_SECONDS, 1.0):
            self.violation("a task is left in the loop", f"{process.name}: {process.goes_on()[:3]}")
        self.ended(process)

    def ended(self, process: Process) -> None:
        """A process that is no more, and was not killed; perhaps it did not leave its group in time."""
        if not process.is_dead:
            if process.exit_code not in (0, 69):
                self.violation("exit code", f"{process.name} ended with {process.exit_code}")
            process.is_dead = True
            self.go_silent(process)


_LOG, _SITES = f"{SimSeedLog.__module__}.SimSeedLog", Web.__module__
_SETTINGS = {
    "TWISTED_REACTOR_ENABLED": False,
    "DOWNLOAD_HANDLERS": dict.fromkeys(("http", "https"), f"{_SITES}.Web"),
    "LOG_ENABLED": False,
    "SITE_SEED_LOG_CLASSES": {"local": _LOG, "kafka": _LOG},
    "SITE_SINK_CLASSES": {"kafka": f"{_SITES}.LogSink"},
    "SITE_READER_CLASSES": dict.fromkeys(("kafka", f"{_SITES}.SimSink"), f"{_SITES}.SimResults"),
    "SITE_KAFKA_BROKERS": "simulated:9092",
    "SITE_STATS_TO": "kafka",
    "SITE_FRONTIER_SOCKET": False,
    "DEPTH_LIMIT": 0,
    "RETRY_TIMES": 2,
    "SITE_RETRY_PAUSE_SECONDS": 0.5,
    "SITE_CALLBACK_TIMEOUT_SECONDS": 0.5e9,  # the watchdog measures real time
}
_EXACTLY_ONCE = {"SITE_KAFKA_EXACTLY_ONCE": True, "SITE_SINKS": "kafka"}


def _settings(plan: Plan) -> Settings:
    settings = Settings()
    settings.setmodule("site_spider.settings", priority="project")
    stores = {"SITE_SINKS": ",".join(f"{_SITES}.{one.__name__}" for one in SINKS[: plan.sinks])}
    chosen = _SETTINGS | plan.settings | (_EXACTLY_ONCE if plan.is_exactly_once else stores)
    settings.setdict(chosen, priority="cmdline")
    return settings


class Listener(logging.Handler):
    """What the product logs: an ERROR is a violation."""

    # who cannot start ends with an exit code, which is checked: what it waited for is away, or it stood still
    EXPECTED = ("A dead letter could not be written", "Cannot start: ")

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        process = PROCESS.get()
        if process is not None and process.is_dead:
            return
        said = record.getMessage()[:300]
        self._world.trace("log", record.levelname, said)
        self._world.looks_up &= "are not looked up" not in said
        if record.levelno >= logging.ERROR and not any(text in said for text in self.EXPECTED):
            error = record.exc_info[1] if record.exc_info else None
            self._world.violation("an error in the log", f"{said} {error!r}")
