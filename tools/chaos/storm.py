"""One crawl and the storm over it: servers, topics, site, seeds and crawlers; then events to the end."""

from __future__ import annotations

import heapq
import itertools
import os
import random
import signal
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # not in its stubs

from site_spider.errors import LogUnavailable
from tools.chaos.acts import ACTS
from tools.chaos.feed import HOSTS, ChaosTask, Feed, Page, TaskCommands, Workload, told_ends
from tools.chaos.pages import ChaosSite
from tools.chaos.plan import STUCK_SECONDS, Event
from tools.deployment.deployment import Deployment, Run
from tools.deployment.processes import LEASH, Process, children
from tools.deployment.relay import Relay
from tools.deployment.servers import Server, brokers, redirected, start_all

FEW_PARTITIONS, MANY_PARTITIONS = 4, 8
# Seconds since the epoch and the process stand first in a line, for tools.chaos to read.
LOG_FORMAT = "%(created).3f %(process)d %(asctime)s [%(name)s] %(levelname)s: %(message)s"
STOP_SECONDS = 60  # twice the default of SITE_STOP_GRACE_SECONDS
EXIT_UNAVAILABLE = 69
ITEM_SPIDER = ("-s", "chaos", "-s", "SPIDER_MODULES=tools.chaos.pages")  # of the script, and of Scrapy


class ChaosRun(Run):
    def __init__(
        self, name: str, size: int, deployment: Deployment, arguments: list[str], ways: Mapping[str, str]
    ) -> None:
        log, environment = deployment.folder / f"{name}.log", deployment.environment(**ways)
        super().__init__(log, environment, ["-n", str(size), *arguments], leash=LEASH)
        self.name = name
        self.size = size  # processes
        self.crawlers: list[Process] = []  # every one it ever had, in order
        self.is_told_to_stop = False
        self.gave_up = False  # a server was away when it began, and it said so

    def look(self) -> None:
        if self.process.poll() is None:
            for child in children(self.process.pid):
                if child not in self.crawlers and child.is_crawler():
                    self.crawlers.append(child)

    def terminate(self) -> None:
        self.is_told_to_stop = True
        super().terminate()

    def end(self) -> None:
        """At once, and its crawlers with it."""
        self.look()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for crawler in self.crawlers:
            crawler.send(signal.SIGKILL)


class Crew:
    """All runs of one chaos; `ways` are settings by which the crawlers reach the servers."""

    def __init__(self, deployment: Deployment, options: Namespace, ways: Mapping[str, str]) -> None:
        self.runs: list[ChaosRun] = []
        self._deployment = deployment
        self._ways = ways
        spider = ITEM_SPIDER if options.items else ()
        log_format = ("--", "-s", f"LOG_FORMAT={LOG_FORMAT}")
        self._arguments = ["-c", str(options.concurrency), *spider[:2], *log_format, *spider[2:]]

    def start(self, size: int) -> ChaosRun:
        name = f"run-{len(self.runs) + 1}"
        self.runs.append(ChaosRun(name, size, self._deployment, self._arguments, self._ways))
        return self.runs[-1]

    def look(self) -> list[ChaosRun]:
        """Note new crawlers; as a service manager, replace runs that gave up because a server was away."""
        for run in self.runs:
            run.look()
        ended = [run for run in self.runs if not (run.is_told_to_stop or run.gave_up)]
        ended = [run for run in ended if run.process.poll() == EXIT_UNAVAILABLE]
        for run in ended:
            run.gave_up = True
            self.start(run.size)
        return ended

    def working(self) -> list[ChaosRun]:
        """The runs that are to go on."""
        return [run for run in self.runs if not run.is_told_to_stop and run.process.poll() is None]

    def crawlers(self) -> list[tuple[ChaosRun, Process]]:
        """The living crawlers of those runs."""
        return [(run, crawler) for run in self.working() for crawler in run.crawlers if crawler.lives()]

    def stop(self) -> list[str]:
        """Stop all gracefully; what is wrong with their ends, a line each."""
        for run in self.working():
            run.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        while any(run.process.poll() is None for run in self.runs) and time.monotonic() < deadline:
            time.sleep(0.1)
        ends = [(run, run.process.poll()) for run in self.runs if not run.gave_up]
        return [
            f"{run.name} ended with {code}, not with 0"
            for run, code in ends
            if code != 0 and (run.crawlers or code != -signal.SIGTERM)  # it came before the script had begun
        ]


class Stage:
    """What acts see and change, with the first seeds produced. All that it opens ends with `stack`."""

    def __init__(self, options: Namespace, stack: ExitStack, tell: Callable[[str], None]) -> None:
        self.options = options
        self.tell = tell
        self.began = time.monotonic()
        self.away: dict[str, float] = {}  # what is away, and since when
        self.outages: list[tuple[str, float]] = []  # and for how long
        self.deaths: list[tuple[str, float]] = []  # of a crawler of which run, and when
        self.due: list[tuple[float, int, Callable[[], None]]] = []  # when what happens later
        self._numbers = itertools.count()
        self._look_at = 0.0  # for ends of tasks
        self.servers = {} if options.embedded else self._start_servers(stack)
        self.site = stack.enter_context(ChaosSite(options.folder / "record.jsonl", HOSTS))
        self.deployment = Deployment(options.folder, self._settings())
        stack.callback(self.deployment.close)
        self.ways: dict[str, Relay] = {}
        stack.callback(lambda: [way.close() for way in self.ways.values()])
        by_relays = redirected(self.deployment.settings, self.ways) if options.counts["proxies"] else {}
        self.topics = self._make_topics()
        self.crew = Crew(self.deployment, options, by_relays)
        stack.callback(lambda: [run.end() for run in self.crew.runs])
        self.tasks: dict[str, ChaosTask] = {}
        self.workload = Workload(options, self.site.port, self.topics)
        self.feed = Feed(self.workload, self.deployment, self.tasks if options.tasks else None)
        stack.callback(self.feed.close)
        self.commands = TaskCommands(self.deployment)
        stack.callback(self.commands.close)
        if options.soak:
            fetched = lambda: self._done() // options.tree  # noqa: E731
            self.feed.soak(60 * options.soak, fetched, lambda task: self.commands.ask("close", task))
        else:
            self.feed.produce(range(options.seeds))
            self.feed.end()

    # --- what acts do -------------------------------------------------------------------------

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.due, (time.monotonic() + seconds, next(self._numbers), action))

    def say(self, text: str) -> None:
        """A line of progress, with how far the crawl is."""
        self.tell(f"{self.share():4.0%}: {text}")

    def is_back(self, name: str) -> None:
        self.outages.append((name, time.time() - self.away.pop(name)))

    def lives(self, name: str) -> bool:
        return not any(server.title in self.away for server in self.servers.get(name, ()))

    def look(self) -> None:
        """Note servers that are there again, and ends of tasks unless Kafka is away: that question blocks."""
        for server in itertools.chain(*self.servers.values()):
            if server.has_started():
                self.is_back(server.title)
        if self.tasks and self.lives("kafka") and time.monotonic() > self._look_at:
            with suppress(LogUnavailable):
                for end in told_ends(self.deployment):
                    if task := self.tasks.get(end.event["task_id"]):
                        task.is_ended = True
            self._look_at = time.monotonic() + LOOK_AT_ENDS_SECONDS

    # --- how far it is ------------------------------------------------------------------------

    def share(self) -> float:
        """How much is done, from 0 to 1: of the pages, or of the time of a soak."""
        if self.options.soak:
            return min(1.0, (time.monotonic() - self.began) / (60 * self.options.soak))
        return self._done() / self._total()

    def progress(self) -> str:
        minutes = f"minute {(time.monotonic() - self.began) / 60:.1f}, " if self.options.soak else ""
        ended = sum(task.is_ended for task in list(self.tasks.values()))
        tasks = f", {ended} of {len(self.tasks)} tasks have ended" if self.tasks else ""
        return f"{minutes}{len(self.site.asked)} of {self._total()} pages{tasks}"

    def is_fetched(self) -> bool:
        return self._done() >= self._total()

    def waits_for(self) -> str:
        """What is still to come besides pages, in words."""
        tasks = [task for task in list(self.tasks.values()) if task.is_closed or task.is_cancelled]
        due = [task.name for task in tasks if not task.is_ended]
        ends = f"{len(due)} ends of tasks such as {due[0]}" if due else ""
        return ", ".join(filter(None, (self.feed.waits_for, self.commands.waits_for, ends)))

    def lag(self) -> int | None:
        """What the group has not done; None when the log does not say."""
        try:
            return self.deployment.lag(*self.topics)
        except LogUnavailable:
            return None

    def wanted(self) -> list[Page]:
        return [page for seed in range(self.feed.count) for page in self.workload.pages_of(seed)]

    def _total(self) -> int:
        return self.feed.count * self.options.tree

    def _done(self) -> int:
        """Pages that were fetched, and those of cancelled tasks, which may never be."""
        cancelled = (list(task.seeds) for task in list(self.tasks.values()) if task.is_cancelled)
        given_up = itertools.chain(*cancelled)
        return len(self.site.asked) + sum(self.options.tree - self.site.of_seed[seed] for seed in given_up)

    # --- servers and topics -------------------------------------------------------------------

    def _start_servers(self, stack: ExitStack) -> dict[str, list[Server]]:
        options, folder = self.options, self.options.folder
        servers = {"kafka": brokers(folder, options.brokers)}
        if options.sink == "elasticsearch":
            servers[options.sink] = [Server(options.sink, folder / f"servers-{options.sink}")]
        everyone = [*itertools.chain(*servers.values())]
        for server in everyone:
            stack.callback(server.end)
        start_all(everyone)
        return servers

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
LOOK_AT_ENDS_SECONDS = 1.0
QUIET_SECONDS = 5.0  # without a page; then the crawl may be at its end
STILL_SECONDS = 120.0  # without a page, a change of the lag, or an outage
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
        stage, count = self._stage, self._stage.options.processes
        together = count // 2 if count >= 4 else 1  # one run of two or more where there are many
        for size in [together, *[1] * (count - together)]:
            stage.crew.start(size)
        while not self._is_done() and not self._gives_up():
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

    def _gives_up(self) -> bool:
        now = time.monotonic()
        waits = f", waiting for {self._waits_for}" if self._waits_for else ""
        if now - self._moved_at > STILL_SECONDS:
            self.wrong.append(f"stuck for {STILL_SECONDS:.0f} s, lag {self._lag}{waits}")
        elif now > self._began + STUCK_SECONDS + 60 * self._stage.options.soak:
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
