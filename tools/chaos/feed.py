"""The seeds of a run, and their way onto the topics: all at its start, some later on, or all along in a soak.

Each task begins in the control log before its first seed and ends after its last one, as `scrapy seed
--task-id` does. Every second task is closed by that, the others by `scrapy task close`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from site_spider.contracts.seed_log import MessagePlace, Partition, Producer
from site_spider.page.url import url_id
from site_spider.tasks.control_log import TaskProducer
from site_spider.tasks.follower import TaskTopics
from tools.chaos.pages import paths_of
from tools.chaos.plan import Options
from tools.chaos.tasks import ChaosTask
from tools.deployment.deployment import Deployment
from tools.site.exchange import host_name
from tools.site.pages import number

HOSTS = 60
ITEMS_OF_A_PAGE = 2
SEEDS_OF_A_TASK = 300  # in a soak, whose seeds have no end
BATCH = 50  # seeds, in a soak
AHEAD = 1000  # seeds that a soak keeps waiting
LOOK_SECONDS = 0.2
FLUSH_SECONDS = 60.0


class Page(NamedTuple):
    """One page that must be stored."""

    seed: int
    is_root: bool
    url: str
    task: str

    @property
    def key(self) -> str:
        """The url_id of its document."""
        return root_id(self.seed) if self.is_root else self.key_of_link

    @property
    def key_of_link(self) -> str:
        """The url_id that it has as a link."""
        return url_id(self.url, self.task)


def root_id(seed: int) -> str:
    """The url_id that a seed asks for."""
    return f"seed-{seed:06d}"


def item_text(url: str, place: int) -> str:
    """What an item says; its place on the page counts from 1."""
    return f"{url} {place}"


class Workload:
    """All seeds of a run. A task has seeds that follow one another, so that tasks end all along."""

    def __init__(self, options: Options, port: int, topics: Sequence[str]) -> None:
        self.options = options
        self._port = port
        self._topics = topics

    def task_of(self, seed: int) -> str:
        """Its task_id."""
        options = self.options
        if not options.tasks:
            return "chaos"
        place = seed // SEEDS_OF_A_TASK if options.soak else seed * options.tasks // options.seeds
        return f"chaos-{place:03d}"

    def pages_of(self, seed: int) -> Iterator[Page]:
        """A seed's own page, then those that it leads to."""
        host = self._host(seed)
        for place, path in enumerate(paths_of(seed, self.options.tree)):
            yield Page(seed, place == 0, f"http://{host}:{self._port}{path}", self.task_of(seed))

    def message(self, seed: int) -> tuple[str, bytes, bytes]:
        """Topic, key and value. All seeds of a host go to one topic."""
        host = self._host(seed)
        topic = self._topics[number(f"topic {host}") % len(self._topics)]
        value = b'{"url": "%b", "meta": {"url_id": "%b", "task_id": "%b"}}' % (
            next(self.pages_of(seed)).url.encode(),
            root_id(seed).encode(),
            self.task_of(seed).encode(),
        )
        return topic, host.encode(), value

    def _host(self, seed: int) -> str:
        """Spread, so that no partition holds one stretch of the seeds."""
        return host_name(number(f"host {seed}") % HOSTS)


class Feed:
    """One producer of all seeds, most of them now, the last tenth in `later` portions. Blocks."""

    def __init__(
        self, workload: Workload, deployment: Deployment, tasks: dict[str, ChaosTask] | None, later: int = 0
    ) -> None:
        self.count = 0  # seeds that are durable
        self.places: dict[int, MessagePlace] = {}
        self.deleted: frozenset[int] = frozenset()  # their topic was, before the group had committed them
        self.pauses = threading.Lock()  # while it is held a soak produces nothing
        self._begins: dict[str, int] = {}  # topics that were created again, and their first seed
        self._workload = workload
        self._topics = TaskTopics.read(deployment.scrapy_settings)
        self._log = deployment.log
        self._tasks = tasks
        self._producer: Producer = deployment.log.producer()
        self._going: dict[str, TaskProducer] = {}
        self._seeds = workload.options.seeds
        held = max(later, self._seeds // 10) if later else 0
        self._ends = (
            []
            if workload.options.soak
            else [self._seeds - held * (later - turn) // max(1, later) for turn in range(later + 1)]
        )

    def next_portion(self) -> None:
        """Produce the next one."""
        if self._ends:
            end = self._ends.pop(0)
            self.produce(range(self.count, end))
            goes_on = {self._workload.task_of(end)} if end < self._seeds else set()
            self.end(self._going.keys() - goes_on)

    def again(self, count: int) -> None:
        """Produce so many seeds more than was planned; a soak does anyway."""
        if not self._workload.options.soak:
            self.produce(range(self.count, self.count + count))
        self._ends = [end + count for end in self._ends]

    def produce(self, seeds: Iterable[int]) -> None:
        """These are durable when it returns; they go on where the last ones ended."""
        sent = []
        for seed in seeds:
            name = self._workload.task_of(seed)
            if self._tasks is not None and name not in self._going:
                self._tasks.setdefault(name, ChaosTask(name))
                self._going[name] = TaskProducer(self._log, self._producer, self._topics, name)
                self._going[name].begin()
            sent.append((seed, name, self._producer.send(*self._workload.message(seed))))
        for seed, name, future in sent:
            place = future.result(FLUSH_SECONDS * 5)
            self.places[seed] = place
            self.count += 1
            if self._tasks is not None:
                self._going[name].sent(place)
                self._tasks[name].seeds.append(seed)

    def delete(self, topic: str, committed: Mapping[Partition, int]) -> int:
        """A topic is about to be deleted, and with it what lies behind these offsets; how many seeds."""
        first, self._begins[topic] = self._begins.get(topic, 0), self.count
        places = ((seed, self.places[seed]) for seed in range(first, self.count))
        gone = frozenset(
            seed
            for seed, place in places
            if place.partition.topic == topic and place.offset >= committed.get(place.partition, 0)
        )
        self.deleted |= gone
        return len(gone)

    def end(self, names: Iterable[str] | None = None) -> list[ChaosTask]:
        """No more seeds of these tasks come, or of all; returns those that are still to be closed."""
        if self._tasks is None:
            return []
        tasks = [self._tasks[name] for name in sorted(self._going if names is None else names)]
        for task in tasks:
            task.is_closed = list(self._tasks).index(task.name) % 2 == 0
            self._going.pop(task.name).end(closes=task.is_closed)
            task.is_complete = True
        return [task for task in tasks if not task.is_closed]

    def close(self) -> None:
        """Release the producer."""
        self._producer.close()


class AlongFeed:
    """Feeds a soak from a thread of its own, which an outage of Kafka holds up."""

    def __init__(
        self, feed: Feed, seconds: float, fetched: Callable[[], int], close: Callable[[ChaosTask], None]
    ) -> None:
        self._feed = feed
        self._fetched = fetched  # seeds of which something was fetched, about
        self._close = close
        self._until = time.monotonic() + seconds
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="feed")
        self._thread.start()

    @property
    def waits_for(self) -> str:
        """What is still to come, in words."""
        return "more seeds" if self._thread.is_alive() else ""

    def look(self) -> None:
        """Raises RuntimeError when it has failed."""
        if self._error is not None:
            raise RuntimeError("seeds could not be produced") from self._error

    def stop(self) -> None:
        """End, at the latest when what is under way is durable or has failed."""
        self._stop.set()
        self._thread.join(FLUSH_SECONDS)

    def _run(self) -> None:
        try:
            while time.monotonic() < self._until and not self._stop.is_set():
                if self._feed.count - self._fetched() < AHEAD:
                    with self._feed.pauses:
                        self._feed.produce(range(self._feed.count, self._feed.count + BATCH))
                        if self._feed.count % SEEDS_OF_A_TASK == 0:
                            self._end()
                self._stop.wait(LOOK_SECONDS)
            self._end()
        except BaseException as error:  # noqa: BLE001 - told by the storm's thread
            self._error = error

    def _end(self) -> None:
        for task in self._feed.end():
            self._close(task)
