"""One crawl that is ready to begin: servers, topics, the site, the seeds, and how far it is."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # not in its stubs

from site_spider.errors import LogUnavailable
from tools.chaos.acts import SEED_TOPIC
from tools.chaos.crew import Crew, Death
from tools.chaos.feed import HOSTS, AlongFeed, Feed, Page, Workload
from tools.chaos.pages import ChaosSite
from tools.chaos.plan import Options
from tools.chaos.tasks import ChaosTask, EndWatch, TaskCommands
from tools.deployment.deployment import Deployment
from tools.deployment.relay import Relay
from tools.deployment.servers import Server, brokers, redirected, start_all

FEW_PARTITIONS, MANY_PARTITIONS = 4, 8


class Stage:
    """What acts see and change. All that it opens ends with `stack`."""

    def __init__(self, options: Options, stack: ExitStack, tell: Callable[[str], None]) -> None:
        self.options = options
        self.tell = tell
        self.began = time.monotonic()
        self.away: dict[str, float] = {}  # what is away, and since when
        self.outages: list[tuple[str, float, float]] = []
        self.deaths: list[Death] = []
        self.due: list[tuple[float, int, Callable[[], bool]]] = []  # when what happens later
        self._numbers = itertools.count()
        self.servers: dict[str, list[Server]] = {}
        if not options.embedded:
            self._start_servers(stack)
        self.site = stack.enter_context(ChaosSite(options.folder / "record.jsonl", HOSTS))
        self.deployment = Deployment(options.folder, self._settings())
        stack.callback(self.deployment.close)
        self.ways: dict[str, Relay] = {}
        stack.callback(lambda: [way.close() for way in self.ways.values()])
        settings = self.deployment.settings
        by_relays = redirected(settings, self.ways) if options.counts["proxies"] else {}
        self.admin: Any = None
        if not options.embedded:
            addresses = settings["SITE_KAFKA_BROKERS"]
            self.admin = AdminClient({"bootstrap.servers": addresses, "log_level": 0})  # outages are no news
        self.topics = self._make_topics()
        self.crew = Crew(self.deployment, options.concurrency, by_relays, yields_items=options.items)
        stack.callback(self.crew.end)
        self.workload = Workload(options, self.site.port, self.topics)
        self.tasks: dict[str, ChaosTask] = {}
        later = options.counts["added_partitions"]
        self.feed = Feed(self.workload, self.deployment, self.tasks if options.tasks else None, later)
        stack.callback(self.feed.close)
        self.commands = TaskCommands(self.deployment)
        stack.callback(self.commands.stop)
        self.ends = EndWatch(self.deployment, self.tasks, lambda: self.lives("kafka"))
        stack.callback(self.ends.close)
        self.watched: list[TaskCommands | EndWatch | AlongFeed] = (
            [self.commands, self.ends] if options.tasks else []
        )
        self.feed.next_portion()
        if options.soak:
            along = AlongFeed(
                self.feed,
                60 * options.soak,
                lambda: self._done() // options.tree,
                lambda task: self.commands.ask("close", task),
            )
            stack.callback(along.stop)
            stack.callback(lambda: self.feed.pauses.release() if SEED_TOPIC in self.away else None)
            self.watched.append(along)

    # --- what acts do -------------------------------------------------------------------------

    def later(self, seconds: float, action: Callable[[], bool]) -> None:
        """Call it then, and again and again until it is true."""
        heapq.heappush(self.due, (time.monotonic() + seconds, next(self._numbers), action))

    def say(self, text: str) -> None:
        """A line of progress, with how far the crawl is."""
        self.tell(f"{self.share():4.0%}: {text}")

    def begins(self, name: str) -> None:
        """From now on it is away."""
        self.away[name] = time.time()

    def ends_now(self, name: str) -> None:
        """It is there again."""
        self.outages.append((name, self.away.pop(name), time.time()))

    def lives(self, name: str) -> bool:
        """Whether all servers of that kind live."""
        return not any(server.title in self.away for server in self.servers.get(name, ()))

    def look(self) -> None:
        """Note servers that are there again, and what else goes on by itself."""
        for server in itertools.chain(*self.servers.values()):
            if server.has_started():
                self.ends_now(server.title)
        for each in self.watched:
            each.look()

    # --- how far it is ------------------------------------------------------------------------

    def share(self) -> float:
        """How much is done, from 0 to 1: of the pages, or of the time of a soak."""
        if self.options.soak:
            return min(1.0, (time.monotonic() - self.began) / (60 * self.options.soak))
        deleted = len(self.feed.deleted)  # as many were produced besides
        return (self._done() - deleted) / (self.options.seeds * self.options.tree)

    def progress(self) -> str:
        """The same in words."""
        minutes = f"minute {(time.monotonic() - self.began) / 60:.1f}, " if self.options.soak else ""
        ended = sum(task.is_ended for task in list(self.tasks.values()))
        tasks = f", {ended} of {len(self.tasks)} tasks have ended" if self.tasks else ""
        return f"{minutes}{len(self.site.asked)} of {self._total()} pages{tasks}"

    def is_fetched(self) -> bool:
        """Whether all pages were."""
        return self._done() >= self._total()

    def lag(self) -> int | None:
        """What the group has not done; None when the log does not say."""
        try:
            return self.deployment.lag(*self.topics)
        except LogUnavailable:
            return None

    def wanted(self) -> list[Page]:
        """All pages that must be stored."""
        return [page for seed in range(self.feed.count) for page in self.workload.pages_of(seed)]

    def _total(self) -> int:
        """Pages of all seeds that there will be, or that there are in a soak."""
        seeds = self.feed.count if self.options.soak else self.options.seeds + len(self.feed.deleted)
        return seeds * self.options.tree

    def _done(self) -> int:
        """Pages that were fetched, and those of cancelled tasks and deleted seeds, which may never be."""
        cancelled = (list(task.seeds) for task in list(self.tasks.values()) if task.is_cancelled)
        given_up = itertools.chain(self.feed.deleted, *cancelled)
        return len(self.site.asked) + sum(self.options.tree - self.site.of_seed[seed] for seed in given_up)

    # --- servers and topics -------------------------------------------------------------------

    def _start_servers(self, stack: ExitStack) -> None:
        options, folder = self.options, self.options.folder
        self.servers["kafka"] = brokers(folder, options.brokers)
        if options.sink in ("elasticsearch", "hbase"):
            self.servers[options.sink] = [Server(options.sink, folder / f"servers-{options.sink}")]
        everyone = [*itertools.chain(*self.servers.values())]
        for server in everyone:
            stack.callback(server.end)
        start_all(everyone)

    def _settings(self) -> dict[str, str]:
        settings = {"SITE_SINKS": self.options.sink}
        for group in self.servers.values():
            known = [server.variables() for server in group]
            settings |= {name: ",".join(each[name] for each in known) for name in known[0]}
        if self.options.exactly_once:
            settings["SITE_KAFKA_EXACTLY_ONCE"] = "true"
        if self.options.counts["cancels"]:
            settings["SITE_CANCELLED_RESULTS"] = "true"  # so that each seed can be looked for
        return settings | self.options.settings

    def _make_topics(self) -> tuple[str, ...]:
        """The topics of seeds."""
        options, deployment = self.options, self.deployment
        topics = (deployment.topic, f"{deployment.topic}-bulk")[: 1 + options.topics]
        more: dict[str, str] = {}
        if options.sink == "kafka":
            more["SITE_RESULTS_TOPIC"] = f"{deployment.topic}.results"
            more["SITE_ITEMS_TOPIC"] = f"{deployment.topic}.items"
        if not options.embedded:
            count = FEW_PARTITIONS if options.processes <= FEW_PARTITIONS else MANY_PARTITIONS
            wanted = [NewTopic(topic, count, options.brokers) for topic in (*topics, *more.values())]
            for made in self.admin.create_topics(wanted).values():
                made.result()
        if options.topics:
            more["SITE_SEED_TOPICS"] = f"{topics[0]}:4,{topics[1]}:1"
        deployment.settings |= more
        deployment.scrapy_settings.update(more, priority="cmdline")
        return topics


@contextmanager
def prepared(options: Options, tell: Callable[[str], None]) -> Iterator[Stage]:
    """With the seeds of the beginning produced."""
    with ExitStack() as stack:
        yield Stage(options, stack, tell)
