"""Keeps the model of the fleet: sockets of this host, the topic of snapshots, progress of the group.

A source that is away is said on every page and asked again; what was known stays. While nobody looks at
the console, it asks rarely.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from site_spider import runtime
from site_spider.console.history import Heard, History
from site_spider.console.model.fleet import MOST_PROCESSES, Fleet
from site_spider.console.model.reading import OddSnapshot, state_of
from site_spider.console.neighbours import Neighbours
from site_spider.console.pages.view import LogView, View
from site_spider.console.task_watch import TaskWatch
from site_spider.contracts.seed_log import SeedLog, Topics, each_topic
from site_spider.errors import SiteSpiderError, TopicMissing
from site_spider.observe.progress import of_partition, of_topics
from site_spider.seed.tiers import TOPIC
from site_spider.tasks.follower import TaskTopics

logger = logging.getLogger(__name__)

_IDLE_SECONDS = 10.0
_WATCHED_SECONDS = 2.0
_ATTENTION_SECONDS = 30.0  # after a look at a page
_FEW_HOSTS = 20
_SLICE = 100  # states taken before others have the event loop
_LEFT_OUT_SECONDS = 60.0  # for which it is said that processes are left out
_REFUSED, _LEFT_OUT, _BAD_RECORDS = "refused records", "left out", "records of tasks"
_THIS_HOST, _TOPIC, _PROGRESS = "state of this host", "history", "progress"
_TASKS = "list of tasks"


class FleetWatch:
    """One consumer group. On the event loop, but for the seed log's calls, which have threads."""

    def __init__(
        self,
        log: SeedLog,
        group: str,
        topics: Topics,
        statistics_topic: str,
        interval_seconds: float,
        tasks: TaskTopics | None = None,
    ) -> None:
        """`tasks` are by default those that are named after the first of `topics`."""
        self.fleet = Fleet()
        self._log = log
        self.group = group
        self.topics = each_topic(topics)
        self._history = History(log, statistics_topic, interval_seconds)
        self._interval_seconds = interval_seconds
        self.tasks = TaskWatch(log, tasks or TaskTopics.read({TOPIC: self.topics[0]}))
        self.neighbours = Neighbours(log)
        self._names: dict[Path, str] = {}
        self._log_view: LogView | None = None
        self._troubles: dict[str, str] = {}
        self._others: tuple[str, ...] = ()
        self._looked_at = 0.0
        self._hosts = _FEW_HOSTS
        self._woken = asyncio.Event()
        self._one_look_at_tasks = asyncio.Lock()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for name, look, watched in (
                (_THIS_HOST, self.look_at_this_host, _WATCHED_SECONDS),
                (_TOPIC, self._look_at_topic, _IDLE_SECONDS),
                (_PROGRESS, self._look_at_progress, 2 * _WATCHED_SECONDS),
                (_TASKS, self.look_at_tasks, 2 * _WATCHED_SECONDS),
            ):
                tasks.create_task(self._repeat(name, look, watched))

    def attend(self, hosts: int = _FEW_HOSTS) -> None:
        """Somebody looks: ask more often, and for so many hosts."""
        if not self._is_watched:
            self._hosts = _FEW_HOSTS
            self._woken.set()
        self._hosts = max(self._hosts, hosts)
        self._looked_at = runtime.monotonic()

    def view(self) -> View:
        """What is known now."""
        return View(
            fleet=self.fleet,
            now=runtime.time(),
            group=self.group,
            topic=",".join(self.topics),
            address=self._log.address,
            log=self._log_view,
            tasks=self.tasks.facts,
            troubles=tuple(self._troubles.values()),
            others=self._others,
        )

    async def look_once(self) -> None:
        """All sources, once."""
        await self._guarded(_TOPIC, self._look_at_topic)
        await self._guarded(_THIS_HOST, self.look_at_this_host)
        await self._guarded(_PROGRESS, self._look_at_progress)
        await self._guarded(_TASKS, self.look_at_tasks)

    async def close(self) -> None:
        """Release what was opened."""
        await asyncio.to_thread(self.tasks.close)

    @property
    def _is_watched(self) -> bool:
        return runtime.monotonic() - self._looked_at < _ATTENTION_SECONDS

    async def _repeat(self, name: str, look: Callable[[], Awaitable[None]], watched_seconds: float) -> None:
        while True:
            await self._guarded(name, look)
            pause = watched_seconds if self._is_watched else _IDLE_SECONDS
            try:
                async with asyncio.timeout(pause):  # wait_for may swallow a cancellation
                    await self._woken.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(0)  # all that wait are woken
            self._woken.clear()

    async def _guarded(self, name: str, look: Callable[[], Awaitable[None]]) -> None:
        try:
            await look()
        except TopicMissing as error:
            self._troubles[name] = f"There is no {name} yet: {error}"
        except SiteSpiderError as error:
            self._troubles[name] = f"The {name} shown may be old: {error}"
        except Exception:
            logger.exception("The console could not look at the %s", name)
            self._troubles[name] = f"The console could not look at the {name}; its log says why."
        else:
            self._troubles.pop(name, None)

    # --- this host -----------------------------------------------------------------------------------

    async def look_at_this_host(self) -> None:
        """Ask all processes of this host."""
        answers = await self.neighbours.ask_all(b"%d" % self._hosts)
        now = runtime.time()
        others = answers.others
        for path, document in answers.snapshots.items():
            try:
                state = state_of(document, self._interval_seconds)
            except OddSnapshot:
                continue
            if state.group == self.group:
                self._names[path] = state.name
                self.fleet.take(state, now, is_near=True)
            else:
                others.append(f"{state.name} ({state.group})")
        self._others = tuple(others)
        await self._note_ended(now)

    async def _note_ended(self, now: float) -> None:
        """A process that ends removes its socket; one that is killed leaves it."""
        gone = await asyncio.to_thread(lambda: [path for path in self._names if not path.exists()])
        for path in gone:
            self.fleet.end(self._names.pop(path), now)

    # --- the group -----------------------------------------------------------------------------------

    async def _look_at_topic(self) -> None:
        heard = await asyncio.to_thread(self._history.look, runtime.time(), tuple(self.fleet.seen))
        self._say_left_out()
        for number, each in enumerate(heard):
            self._take(each)
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)

    def _say_left_out(self) -> None:
        """What cannot be believed, and what is too much."""
        if self._history.has_left_out:
            self.fleet.leave_out(runtime.time())
        if self._history.refused:
            self._troubles[_REFUSED] = self._history.said
        left_out_at = self.fleet.left_out_at
        if left_out_at is not None and runtime.time() - left_out_at < _LEFT_OUT_SECONDS:
            self._troubles[_LEFT_OUT] = (
                f"More processes tell of themselves on the topic of statistics than are shown and summed up: "
                f"{MOST_PROCESSES} at most."
            )
        else:
            self._troubles.pop(_LEFT_OUT, None)

    def _take(self, heard: Heard) -> None:
        if heard.state.group == self.group:
            self.fleet.take(heard.state, heard.at)

    async def look_at_tasks(self) -> None:
        """What is known of them, as `scrapy task list` says."""
        async with self._one_look_at_tasks:
            await asyncio.to_thread(self.tasks.look)
        if self.tasks.refused:
            self._troubles[_BAD_RECORDS] = self.tasks.said

    async def _look_at_progress(self) -> None:
        found = await asyncio.to_thread(of_topics, self._log, self.topics, self.group)
        partitions = tuple((part.partition, of_partition(part)) for part in found)
        unowned = await asyncio.to_thread(self._log.unowned, self.topics, self.group)
        self._log_view = LogView(runtime.time(), partitions, unowned)
        self.fleet.mark(runtime.time(), self._log_view.total.lag)
