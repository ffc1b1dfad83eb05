"""Produces the seeds of a run: all at its start, some later on, or all along while a soak lasts.

Each task begins in the control log before its first seed and ends after its last one, as `scrapy seed
--task-id` does. Every second task is closed by that, the others by `scrapy task close`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

from site_spider.contracts.seed_log import MessagePlace, Partition, Producer
from site_spider.tasks.control_log import TaskProducer
from site_spider.tasks.follower import TaskTopics
from tools.chaos.roster import ChaosTask, Roster
from tools.chaos.workload import SEEDS_OF_A_TASK, Workload
from tools.deployment.deployment import Deployment

BATCH = 50  # seeds, in a soak
AHEAD = 1000  # seeds that a soak keeps waiting
LOOK_SECONDS = 0.2
FLUSH_SECONDS = 60.0


class Feed:
    """One producer of all seeds. Blocks."""

    def __init__(self, workload: Workload, deployment: Deployment, roster: Roster | None) -> None:
        self.count = 0  # seeds that are durable
        self.places: dict[int, MessagePlace] = {}
        self.deleted: frozenset[int] = (
            frozenset()
        )  # seeds whose topic was deleted before the group had committed them
        self.pauses = threading.Lock()  # while it is held a soak produces nothing
        self._begins: dict[str, int] = {}  # topics that were created again, and their first seed
        self._workload = workload
        self._topics = TaskTopics.read(deployment.scrapy_settings)
        self._log = deployment.log
        self._roster = roster
        self._producer: Producer = deployment.log.producer()
        self._going: dict[str, TaskProducer] = {}

    def produce(self, seeds: Iterable[int]) -> None:
        """These are durable when it returns; they go on where the last ones ended."""
        sent = []
        for seed in seeds:
            name = self._workload.task_of(seed)
            self._begin(name)
            sent.append((seed, name, self._producer.send(*self._workload.message(seed))))
        for seed, name, future in sent:
            place = future.result(FLUSH_SECONDS * 5)
            self.places[seed] = place
            self.count += 1
            if self._roster is not None:
                self._going[name].sent(place)
                self._roster.task(name).seeds.append(seed)

    def delete(self, topic: str, committed: Mapping[Partition, int]) -> int:
        """A topic is about to be deleted, and with it what lies behind these offsets; how many seeds."""
        first, self._begins[topic] = self._begins.get(topic, 0), self.count
        places = ((seed, self.places[seed]) for seed in range(first, self.count))
        gone = frozenset(
            seed
            for seed, place in places
            if place.partition.topic == topic and place.offset >= committed.get(place.partition, 0)
        )
        self.deleted = self.deleted | gone
        return len(gone)

    def end(self, names: Iterable[str]) -> list[ChaosTask]:
        """No more seeds of these tasks come; returns those that are still to be closed."""
        if self._roster is None:
            return []
        tasks = [self._roster.task(name) for name in names]
        for task in tasks:
            task.is_closed = self._roster.all().index(task) % 2 == 0
            self._going.pop(task.name).end(closes=task.is_closed)
            task.is_complete = True
        return [task for task in tasks if not task.is_closed]

    def going(self) -> list[str]:
        """The tasks of which more seeds may come."""
        return list(self._going)

    def close(self) -> None:
        """Release the producer."""
        self._producer.close()

    def _begin(self, name: str) -> None:
        if self._roster is None or name in self._going:
            return
        self._roster.task(name)
        self._going[name] = TaskProducer(self._log, self._producer, self._topics, name)
        self._going[name].begin()


class Portions:
    """Feeds a run of so many seeds: most of them now, the last tenth in portions."""

    def __init__(self, feed: Feed, workload: Workload, seeds: int, later: int) -> None:
        self._feed = feed
        self._workload = workload
        self._seeds = seeds
        held = max(later, seeds // 10) if later else 0
        self._ends = [seeds - held * (later - number) // max(1, later) for number in range(later + 1)]

    def next(self) -> None:
        """Produce the next one. Blocks."""
        if self._ends:
            end = self._ends.pop(0)
            self._feed.produce(range(self._feed.count, end))
            goes_on = {self._workload.task_of(end)} if end < self._seeds else set()
            self._feed.end(name for name in self._feed.going() if name not in goes_on)

    def again(self, count: int) -> None:
        """Produce so many seeds more than was planned. Blocks."""
        self._feed.produce(range(self._feed.count, self._feed.count + count))
        self._ends = [end + count for end in self._ends]


class AlongFeed:
    """Feeds a soak from a thread of its own, which an outage of Kafka holds up. As in storm.Watched."""

    is_away = False

    def __init__(
        self,
        feed: Feed,
        seconds: float,
        fetched: Callable[[], int],
        close: Callable[[ChaosTask], None],
    ) -> None:
        self._feed = feed
        self._fetched = fetched  # seeds of which something was fetched, about
        self._close = close
        self._until = time.monotonic() + seconds
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="feed")

    @property
    def waits_for(self) -> str:
        """As in Watched."""
        return "more seeds" if self._thread.is_alive() else ""

    def look(self) -> None:
        """As in Watched."""
        if self._error is not None:
            raise RuntimeError("seeds could not be produced") from self._error

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, at the latest when what is under way is durable or has failed."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(FLUSH_SECONDS)

    def _run(self) -> None:
        try:
            while time.monotonic() < self._until and not self._stop.is_set():
                if self._feed.count - self._fetched() < AHEAD:
                    with self._feed.pauses:
                        self._batch()
                self._stop.wait(LOOK_SECONDS)
            self._end(self._feed.going())
        except BaseException as error:  # noqa: BLE001 - told by the storm's thread
            self._error = error

    def _batch(self) -> None:
        begin = self._feed.count
        self._feed.produce(range(begin, begin + BATCH))
        if self._feed.count % SEEDS_OF_A_TASK == 0:
            self._end(self._feed.going())

    def _end(self, names: Iterable[str]) -> None:
        for task in self._feed.end(names):
            self._close(task)
