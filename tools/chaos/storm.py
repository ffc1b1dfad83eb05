"""One crawl and the storm over it: servers, topics, site and seeds; then events happen until all is done."""

from __future__ import annotations

import heapq
import itertools
import random
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # not in its stubs

from site_spider.errors import LogUnavailable
from tools.chaos.acts import ACTS
from tools.chaos.crew import Crew, Death
from tools.chaos.feed import HOSTS, ChaosTask, EndWatch, Feed, Page, TaskCommands, Workload
from tools.chaos.pages import ChaosSite
from tools.chaos.plan import Event
from tools.deployment.deployment import Deployment
from tools.deployment.relay import Relay
from tools.deployment.servers import Server, brokers, redirected, start_all

FEW_PARTITIONS, MANY_PARTITIONS = 4, 8


class Stage:
    """What acts see and change, with the first seeds produced. All that it opens ends with `stack`."""

    def __init__(self, options: Namespace, stack: ExitStack, tell: Callable[[str], None]) -> None:
        self.options = options
        self.tell = tell
        self.began = time.monotonic()
        self.away: dict[str, float] = {}  # what is away, and since when
        self.outages: list[tuple[str, float, float]] = []
        self.deaths: list[Death] = []
        self.due: list[tuple[float, int, Callable[[], None]]] = []  # when what happens later
        self._numbers = itertools.count()
        self.servers: dict[str, list[Server]] = {}
        if not options.embedded:
            self._start_servers(stack)
        self.site = stack.enter_context(ChaosSite(options.folder / "record.jsonl", HOSTS))
        self.deployment = Deployment(options.folder, self._settings())
        stack.callback(self.deployment.close)
        self.ways: dict[str, Relay] = {}
        stack.callback(lambda: [way.close() for way in self.ways.values()])
        by_relays = redirected(self.deployment.settings, self.ways) if options.counts["proxies"] else {}
        self.topics = self._make_topics()
        self.crew = Crew(self.deployment, options.concurrency, by_relays, yields_items=options.items)
        stack.callback(self.crew.end)
        self.tasks: dict[str, ChaosTask] = {}
        self.workload = Workload(options, self.site.port, self.topics)
        self.feed = Feed(self.workload, self.deployment, self.tasks if options.tasks else None)
        self.commands = TaskCommands(self.deployment)
        self.ends = EndWatch(self.deployment, self.tasks, lambda: self.lives("kafka"))
        everything: list[Feed | TaskCommands | EndWatch] = [self.feed, self.commands, self.ends]
        self.watched = everything if options.tasks else everything[:1]
        for each in everything:
            stack.callback(each.close)
        if options.soak:
            ask = self.commands.ask
            fetched = lambda: self._done() // options.tree  # noqa: E731
            self.feed.soak(60 * options.soak, fetched, lambda task: ask("close", task))
        else:
            self.feed.produce(range(options.seeds))
            self.feed.end()

    # --- what acts do -------------------------------------------------------------------------

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Call it then."""
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
        return self._done() / self._total()

    def progress(self) -> str:
        """The same in words."""
        minutes = f"minute {(time.monotonic() - self.began) / 60:.1f}, " if self.options.soak else ""
        ended = sum(task.is_ended for task in list(self.tasks.values()))
        tasks = f", {ended} of {len(self.tasks)} tasks have ended" if self.tasks else ""
        return f"{minutes}{len(self.site.asked)} of {self._total()} pages{tasks}"

    def is_fetched(self) -> bool:
        """Whether all pages were."""
        return self._done() >= self._total()

    def waits_for(self) -> str:
        """What is still to come besides pages, in words."""
        return ", ".join(each.waits_for for each in self.watched if each.waits_for)

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
        """Pages of all seeds that there are."""
        return self.feed.count * self.options.tree

    def _done(self) -> int:
        """Pages that were fetched, and those of cancelled tasks, which may never be."""
        cancelled = (list(task.seeds) for task in list(self.tasks.values()) if task.is_cancelled)
        given_up = itertools.chain(*cancelled)
        return len(self.site.asked) + sum(self.options.tree - self.site.of_seed[seed] for seed in given_up)

    # --- servers and topics -------------------------------------------------------------------

    def _start_servers(self, stack: ExitStack) -> None:
        options, folder = self.options, self.options.folder
        self.servers["kafka"] = brokers(folder, options.brokers)
        if options.sink == "elasticsearch":
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
            addresses = deployment.settings["SITE_KAFKA_BROKERS"]
            admin: Any = AdminClient({"bootstrap.servers": addresses, "log_level": 0})  # outages are no news
            count = FEW_PARTITIONS if options.processes <= FEW_PARTITIONS else MANY_PARTITIONS
            wanted = [NewTopic(topic, count, options.brokers) for topic in (*topics, *more.values())]
            for made in admin.create_topics(wanted).values():
                made.result()
        if options.topics:
            more["SITE_SEED_TOPICS"] = f"{topics[0]}:4,{topics[1]}:1"
        deployment.settings |= more
        deployment.scrapy_settings.update(more, priority="cmdline")
        return topics


ROUND_SECONDS = 0.15
SAY_SECONDS = 5.0
LOOK_AT_LAG_SECONDS = 1.0
QUIET_SECONDS = 5.0  # without a page; then the crawl may be at its end
STUCK_SECONDS = 120.0  # without a page, a change of the lag, or an outage
EARLY_SECONDS = 300.0  # the caches of crawlers are filled then


class Storm:
    """Events that are to come, and what has come of them. Nothing here waits."""

    def __init__(self, stage: Stage, events: Sequence[Event]) -> None:
        self.counts: Counter[str] = Counter()  # of events, by act
        self.wrong: list[str] = []
        self.gave_up = 0  # runs that found a server away at their start
        self.rebalances = 0
        self.seconds = self.tail_seconds = 0.0  # in all, and from the last new page to the end
        self.early_mb: list[int] = []  # memory of crawlers, of runs that are long enough
        self.last_mb: list[int] = []
        self.left = list(events)  # events that have not come
        self._stage = stage
        self._fetched = 0
        self._began = self._grew_at = self._moved_at = self._said_at = self._asked_at = time.monotonic()
        self._lag: int | None = None
        self._waits_for = ""
        self._rng = random.Random(f"rebalances {stage.options.random_seed}")
        self._rebalance_at = self._began + stage.options.rebalance_every

    def run(self) -> None:
        """Return when the group has no lag and nothing is left to happen, or it is stuck."""
        stage, deadline = self._stage, time.monotonic() + self._stage.options.timeout
        stage.crew.start_all(stage.options.processes)
        while not self._is_done() and not self._gives_up(deadline):
            for run in stage.crew.look():
                self.gave_up += 1
                stage.tell(f"{run.name} gave up because a server is away; another one takes its place")
            stage.look()
            self._progress()
            self._let_happen()
            time.sleep(ROUND_SECONDS)
        now = time.monotonic()
        self.seconds, self.tail_seconds = now - self._began, now - self._grew_at
        self.last_mb = self._memory()

    def _memory(self) -> list[int]:
        return [crawler.resident_bytes() // 1_000_000 for _, crawler in self._stage.crew.crawlers()]

    def _progress(self) -> None:
        stage, now = self._stage, time.monotonic()
        fetched, waits_for = len(stage.site.read_on()), stage.waits_for()
        if fetched > self._fetched:
            self._grew_at = now
        if fetched > self._fetched or waits_for != self._waits_for or stage.away:
            self._moved_at = now
        self._fetched, self._waits_for = fetched, waits_for
        if not self.early_mb and now - self._began >= EARLY_SECONDS:
            self.early_mb = self._memory()
        if now - self._said_at >= SAY_SECONDS:
            self._said_at = now
            is_fresh = self._lag is not None and now - self._asked_at < SAY_SECONDS
            lag = f", lag {self._lag}" if is_fresh else ""
            stage.tell(f"{stage.progress()}, {len(stage.crew.crawlers())} crawlers{lag}")

    def _is_done(self) -> bool:
        """No lag; in two looks, the second one after everything else has settled."""
        stage, now = self._stage, time.monotonic()
        quiet = self._fetched > 0 and now - self._moved_at > QUIET_SECONDS
        ended = quiet or stage.is_fetched()
        if not ended or stage.due or stage.away or now - self._asked_at < LOOK_AT_LAG_SECONDS:
            return False
        self._asked_at, before = now, self._lag
        self._lag = stage.lag()
        if self._lag != before:
            self._moved_at = now
        return before == 0 and self._lag == 0 and not stage.waits_for()

    def _gives_up(self, deadline: float) -> bool:
        now = time.monotonic()
        waits = f", waiting for {self._waits_for}" if self._waits_for else ""
        if now - self._moved_at > STUCK_SECONDS:
            self.wrong.append(f"stuck for {STUCK_SECONDS:.0f} s, lag {self._lag}{waits}")
        elif now > deadline:
            self.wrong.append(f"not done in time, lag {self._stage.lag()}{waits}")
        else:
            return False
        return True

    def _let_happen(self) -> None:
        stage, share = self._stage, self._stage.share()
        while self.left and self.left[0].share <= share:
            event = self.left.pop(0)
            stage.later(event.delay_seconds, lambda event=event: self._happens(event))  # type: ignore[misc]
        while stage.due and stage.due[0][0] <= time.monotonic():
            heapq.heappop(stage.due)[2]()
        if stage.options.rebalance_every and time.monotonic() >= self._rebalance_at:
            self._rebalance()

    def _happens(self, event: Event) -> None:
        """Or it is tried again."""
        if (told := ACTS[event.name].happen(self._stage, event)) is None:
            self._stage.later(ROUND_SECONDS, lambda: self._happens(event))
        else:
            self.counts[event.name] += 1
            self._stage.say(told)

    def _rebalance(self) -> None:
        """A member joins, the next time another one leaves, and so on: never fewer than at the beginning."""
        crew = self._stage.crew
        if self.rebalances % 2 == 0:
            told = f"{crew.start(1).name} joins"
        elif alone := [run for run in crew.working() if run.size == 1]:
            run = self._rng.choice(alone)
            run.terminate()
            told = f"{run.name} leaves (SIGTERM)"
        else:
            return  # again in the next round
        self.rebalances += 1
        self._rebalance_at = max(self._rebalance_at + self._stage.options.rebalance_every, time.monotonic())
        self._stage.say(f"rebalance {self.rebalances}: {told}")
