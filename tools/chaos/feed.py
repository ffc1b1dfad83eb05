"""The seeds of a run and their tasks: all produced at its start, or all along in a soak; what tasks are told.

Each task begins in the control log before its first seed and ends after its last one, as `scrapy seed
--task-id` does. Every second task is closed by that, the others by `scrapy task close`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from site_spider.contracts.seed_log import Producer
from site_spider.errors import TopicMissing
from site_spider.page.url import url_id
from site_spider.seed.topics import CrawlTopics
from site_spider.tasks.closing import TaskProducer
from tools.chaos.pages import paths_of
from tools.deployment.deployment import ROOT, Deployment
from tools.deployment.processes import logged
from tools.site.exchange import host_name
from tools.site.pages import number

HOSTS = 60


class Page(NamedTuple):
    """One page that must be stored."""

    seed: int
    is_root: bool
    url: str
    task: str

    @property
    def key(self) -> str:
        return root_id(self.seed) if self.is_root else self.key_of_link

    @property
    def key_of_link(self) -> str:
        """The url_id that it has as a link."""
        return url_id(self.url, self.task)


def root_id(seed: int) -> str:
    return f"seed-{seed:06d}"


class Workload:
    """All seeds of a run. A task has seeds that follow one another, so that tasks end all along."""

    SEEDS_OF_A_TASK = 300  # in a soak, whose seeds have no end

    def __init__(self, options: Namespace, port: int, topics: Sequence[str]) -> None:
        self.options = options
        self._port = port
        self._topics = topics

    def task_of(self, seed: int) -> str:
        options = self.options
        if not options.tasks:
            return "chaos"
        place = seed // self.SEEDS_OF_A_TASK if options.soak else seed * options.tasks // options.seeds
        return f"chaos-{place:03d}"

    def pages_of(self, seed: int) -> Iterator[Page]:
        """A seed's own page, then those that it leads to."""
        for place, path in enumerate(paths_of(seed, self.options.tree)):
            url = f"http://{self._host(seed)}:{self._port}{path}"
            yield Page(seed, place == 0, url, self.task_of(seed))

    def message(self, seed: int) -> tuple[str, bytes, bytes]:
        """Topic, key and value. All seeds of a host go to one topic."""
        host, page = self._host(seed), next(self.pages_of(seed))
        topic = self._topics[number(f"topic {host}") % len(self._topics)]
        meta = {"url_id": root_id(seed), "task_id": page.task}
        return topic, host.encode(), json.dumps({"url": page.url, "meta": meta}).encode()

    def _host(self, seed: int) -> str:
        """Spread, so that no partition holds one stretch of the seeds."""
        return host_name(number(f"host {seed}") % HOSTS)


@dataclass
class ChaosTask:
    """One task; threads share it, and each only adds."""

    name: str
    seeds: list[int] = field(default_factory=list)
    is_complete: bool = False  # all its seeds are produced
    is_closed: bool = False  # or somebody was asked to close it
    is_paused: bool = False
    was_paused: bool = False
    is_cancelled: bool = False  # or somebody was asked to cancel it
    is_ended: bool = False  # its end was told


class Feed:
    """One producer of all seeds, which blocks; in a soak in a thread, which an outage of Kafka holds up."""

    BATCH = 50  # seeds, in a soak
    AHEAD = 1000  # seeds that a soak keeps waiting
    LOOK_SECONDS = 0.2
    FLUSH_SECONDS = 60.0

    def __init__(self, workload: Workload, deployment: Deployment, tasks: dict[str, ChaosTask] | None) -> None:
        self.count = 0  # seeds that are durable
        self._workload = workload
        self._topics = CrawlTopics.beside(deployment.scrapy_settings)
        self._log = deployment.log
        self._tasks = tasks
        self._producer: Producer = deployment.log.producer()
        self._going: dict[str, TaskProducer] = {}
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._stop = threading.Event()

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
            place = future.result(self.FLUSH_SECONDS * 5)
            self.count += 1
            if self._tasks is not None:
                self._going[name].sent(place)
                self._tasks[name].seeds.append(seed)

    def end(self) -> list[ChaosTask]:
        """No more seeds of these tasks come; returns those that are still to be closed."""
        if self._tasks is None:
            return []
        tasks = [self._tasks[name] for name in sorted(self._going)]
        for task in tasks:
            task.is_closed = list(self._tasks).index(task.name) % 2 == 0
            self._going.pop(task.name).end(closes=task.is_closed)
            task.is_complete = True
        return [task for task in tasks if not task.is_closed]

    def soak(self, seconds: float, fetched: Callable[[], int], close: Callable[[ChaosTask], None]) -> None:
        """Produce for so long; `fetched` says of how many seeds something was fetched, about."""
        until = time.monotonic() + seconds

        def run() -> None:
            try:
                while time.monotonic() < until and not self._stop.is_set():
                    if self.count - fetched() < self.AHEAD:
                        self.produce(range(self.count, self.count + self.BATCH))
                        if self.count % Workload.SEEDS_OF_A_TASK == 0:
                            end()
                    self._stop.wait(self.LOOK_SECONDS)
                end()
            except BaseException as error:  # noqa: BLE001 - told by the storm's thread
                self._error = error

        def end() -> None:
            for task in self.end():
                close(task)

        self._thread = threading.Thread(target=run, daemon=True, name="feed")
        self._thread.start()

    @property
    def waits_for(self) -> str:
        """What is still to come, in words. Raises RuntimeError when it has failed."""
        if self._error is not None:
            raise RuntimeError("seeds could not be produced") from self._error
        return "more seeds" if self._thread is not None and self._thread.is_alive() else ""

    def close(self) -> None:
        """At the latest when what is under way is durable or has failed."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(self.FLUSH_SECONDS)
        self._producer.close()


class TaskCommands:
    """Runs `scrapy task` in a thread, one command after the other, and again where it fails."""

    TRIES = 20
    PAUSE_SECONDS = 2.0
    LONGEST_SECONDS = "120"

    def __init__(self, deployment: Deployment) -> None:
        self.wrong: list[str] = []
        self.failures = 0  # of commands that were run again
        self._environment = deployment.environment()
        self._log = deployment.folder / "tasks.log"
        self._asked: deque[tuple[str, ChaosTask]] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="commands")
        self._thread.start()

    @property
    def waits_for(self) -> str:
        return f"{len(self._asked)} commands" if self._asked else ""

    def ask(self, verb: str, task: ChaosTask) -> None:
        """Run `scrapy task VERB ID` when its turn comes."""
        if verb == "close":
            task.is_closed = True
        self._asked.append((verb, task))

    def close(self) -> None:
        self._stop.set()
        if (process := self._process) is not None:
            process.terminate()
        self._thread.join()

    def _work(self) -> None:
        while not self._stop.wait(0.1):
            if self._asked:
                verb, task = self._asked[0]
                if not any(self._is_done(verb, task) for _ in range(self.TRIES)):
                    said = f"scrapy task {verb} {task.name} failed {self.TRIES} times: see {self._log}"
                    self.wrong.append(said)
                self._asked.popleft()

    def _is_done(self, verb: str, task: ChaosTask) -> bool:
        """Tell it. Neither is needed any more of a task that was cancelled, or has ended before its turn."""
        scrapy = str(Path(sys.executable).with_name("scrapy"))
        command = ["timeout", self.LONGEST_SECONDS, scrapy, "task", verb, task.name]
        self._process = logged(command, self._log, self._environment, ROOT)
        code = self._process.wait()
        told = self._log.read_text(errors="replace").rpartition("scrapy task: ")[2]
        is_void = verb in ("pause", "resume") and (task.is_cancelled or "has ended" in told)
        if code == 0 or is_void or self._stop.is_set():
            return True
        self.failures += 1
        self._stop.wait(self.PAUSE_SECONDS)
        return False


class ToldEnd(NamedTuple):
    """One record of the topic in which the ends of tasks are told."""

    when: float
    value: bytes

    @property
    def event(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.value)
        return said


def told_ends(deployment: Deployment) -> Iterator[ToldEnd]:
    """All records of that topic. Raises LogUnavailable."""
    with suppress(TopicMissing):
        for message in deployment.log.read(CrawlTopics.beside(deployment.scrapy_settings).events):
            yield ToldEnd(message.timestamp_ms / 1000, message.value or b"")
