"""Keeps the model of the fleet: sockets of this host, the topic of snapshots, progress of the group.

A source that is away is said on every page and asked again; what was known stays. While nobody looks at
the console, it asks rarely.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, Self

from scrapy.settings import BaseSettings

from site_spider import options, runtime
from site_spider.console.fleet import MOST_PROCESSES, WINDOW_SECONDS, Fleet, LogView, View
from site_spider.console.process_state import ProcessState, state_of
from site_spider.contracts.seed_log import LogName, Message, Partition, SeedLog, name_of
from site_spider.errors import SiteSpiderError, TopicMissing
from site_spider.observe import frontier_socket
from site_spider.observe.frontier_socket import OddSnapshot, parsed, was_killed
from site_spider.observe.progress import of_partition, of_topics
from site_spider.observe.statistics import LARGEST_STATISTICS_BYTES
from site_spider.seed.topics import CrawlTopics
from site_spider.tasks.board import Board
from site_spider.tasks.control_log import Endings
from site_spider.tasks.follower import TopicView
from site_spider.tasks.orders import Ordered, TaskDesk, TaskFacts, TaskOrders, TaskOverview
from site_spider.text import for_log

# --- Follows the topic of snapshots: an hour back at the start, then what is new -------------------------
# Whoever may write to the topic may write anything. A record that is no snapshot is counted, said once and
# skipped; of the others so many are read as a fleet of MOST_PROCESSES writes.

logger = logging.getLogger(__name__)

_GAP_SECONDS = 30.0  # of the past, one snapshot of a process in so many is read
_MOST_READ = 12_000  # in one look, beside the newest of each process


class History:
    """One thread at a time uses it."""

    def __init__(self, log: SeedLog, topic: str, interval_seconds: float) -> None:
        self._log = log
        self._topic = topic
        self._interval_seconds = interval_seconds
        self._next: dict[Partition, int] = {}
        self._looked_at = 0.0
        self.refused = 0  # records that are no snapshots
        self.said = ""  # of them
        self.has_left_out = False  # a process, in the last look

    def look(self, now: float, known: Collection[str] = ()) -> list[tuple[float, ProcessState]]:
        """What was written since the last look, in order of time; of known processes in any case.

        Each with when it was written, as far as this host can tell. Raises LogUnavailable, TopicMissing.
        """
        since = now - WINDOW_SECONDS
        messages, self._ahead = self._log.read(self._topic, self._next, int(since * 1000)), dict(self._next)
        earliest = max(since, self._looked_at)
        found = sorted(self._heard(messages, earliest, now, known), key=itemgetter(0))
        self._looked_at, self._next = now, self._ahead  # else it is read again
        return found

    def _heard(
        self, messages: Iterator[Message], earliest: float, now: float, known: Collection[str]
    ) -> Iterator[tuple[float, ProcessState]]:
        thinned = _Thinned(known)
        for at, message in thinned(self._noted(messages)):
            try:
                state = state_of(parsed(message.value or b""), self._interval_seconds, now)
            except OddSnapshot as error:
                self._refuse(message, str(error))
                continue
            yield min(max(at, earliest), now), state
        self.has_left_out = thinned.has_left_out

    def _noted(self, messages: Iterator[Message]) -> Iterator[Message]:
        for message in messages:
            self._ahead[message.partition] = message.offset + 1
            size = len(message.value or b"")
            if 0 < size <= LARGEST_STATISTICS_BYTES:
                yield message
            else:
                self._refuse(message, f"it has {size:,} bytes")

    def _refuse(self, message: Message, why: str) -> None:
        self.refused += 1
        place = f"{message.partition} offset {message.offset}"
        are = "record that is no snapshot was" if self.refused == 1 else "records that are no snapshots were"
        self.said = for_log(f"{self.refused:,} {are} skipped; the last at {place}: {why}", one_line=True)
        if self.refused == 1:
            logger.warning("%s. Only crawls should have the right to write to this topic", self.said)


@dataclass(slots=True)
class _Speaker:
    """A process of which messages are read; `held` is its newest, where that was passed over."""

    first_at: float = float("-inf")  # of one that was known before
    read_at: float = float("-inf")
    held: tuple[float, Message] | None = None


class _Thinned:
    """Keeps one message of each process in a while, and its newest; like partitions, in no order.

    Beside those that are known so many are heard that spoke first.
    """

    def __init__(self, known: Collection[str]) -> None:
        self.has_left_out = False  # a process
        self._voices: dict[bytes | None, _Speaker] = {name.encode(): _Speaker() for name in known}
        self._most = len(self._voices) + MOST_PROCESSES
        self._newest_at = float("-inf")  # when the last of the new ones spoke first
        self._read = 0

    def __call__(self, messages: Iterator[Message]) -> Iterator[tuple[float, Message]]:
        for message in messages:
            at = message.timestamp_ms / 1000
            voice = self._voice(message.key, at)
            if voice is None:
                continue
            if at >= voice.read_at + _GAP_SECONDS and self._read < _MOST_READ:
                voice.read_at, voice.held, self._read = at, None, self._read + 1
                yield at, message
            else:
                voice.held = at, message
        yield from (voice.held for voice in self._voices.values() if voice.held)

    def _voice(self, key: bytes | None, at: float) -> _Speaker | None:
        """None where there is no place for a new one."""
        if (voice := self._voices.get(key)) is not None:
            return voice
        if len(self._voices) >= self._most:
            self.has_left_out = True
            if at >= self._newest_at:
                return None
            del self._voices[max(self._voices, key=lambda name: self._voices[name].first_at)]
        voice = self._voices[key] = _Speaker(at)
        self._newest_at = max(each.first_at for each in self._voices.values())
        return voice


# --- local processes: asks them for their snapshots, on the sockets of `scrapy frontier` ----------------
# Each says which seed log it uses; those of another log are not asked again. A process of an older release
# does not say it, and counts.

_SECONDS = 5.0  # that a process may take
_NAMING_SECONDS = 1.0
_AT_ONCE = 8
_MOST_PROCESSES = 1_000
_LONGEST = 300  # characters of a name


class Answers(NamedTuple):
    """`silent` are the processes that run and do not answer, with the group that they told of; `others` those of
    other logs by name."""

    snapshots: dict[Path, dict[str, Any]]
    silent: list[tuple[int, str | None]]
    others: list[str]


class LocalProcesses:
    """Those of this user."""

    def __init__(self, log: SeedLog) -> None:
        self._log = log
        self._own = LogName("", log.address)
        self._naming: asyncio.Task[LogName] | None = None
        self._others: dict[Path, str] = {}  # processes of another log that are there, by name
        self._groups: dict[Path, str] = {}  # that processes of this log told of

    async def ask_all(self, question: bytes) -> Answers:
        """What those of this log answer: a number asks for a snapshot with so many of the largest hosts."""
        found = await asyncio.to_thread(frontier_socket.alive)
        await self._learn_own_name()
        self._others = {path: name for path, name in self._others.items() if path in found and self._own.identity}
        paths = [path for path in islice(found, _MOST_PROCESSES) if path not in self._others]
        turns, ended = asyncio.Semaphore(_AT_ONCE), set[Path]()

        async def ask(path: Path) -> dict[str, Any] | None:
            """None when there is no answer in time, or an odd one."""
            async with turns:
                with suppress(OSError, OddSnapshot):
                    try:
                        return await frontier_socket.ask(path, question, _SECONDS)
                    except frontier_socket.NOBODY:
                        ended.add(path)
            return None

        answers = dict(zip(paths, await asyncio.gather(*map(ask, paths)), strict=True))
        snapshots = {path: answer for path, answer in answers.items() if answer is not None}
        for path, answer in list(snapshots.items()):
            if not self._is_of_this_log(answer):
                del snapshots[path]
                name = f"{str(answer.get('process'))[:_LONGEST]} ({str(answer.get('group'))[:_LONGEST]})"
                self._others[path] = f"{name}, of another seed log"
        told = {path: str(answer.get("group")) for path, answer in snapshots.items()}
        self._groups = {path: group for path, group in self._groups.items() if path in found} | told
        mute = (path for path, answer in answers.items() if answer is None and path not in ended)
        silent = [(found[path], self._groups.get(path)) for path in mute]
        return Answers(snapshots, silent, list(self._others.values()))

    def _is_of_this_log(self, answer: dict[str, Any]) -> bool:
        said = answer.get("log")
        if not isinstance(said, dict):
            return True
        return LogName(str(said.get("identity")), str(said.get("address"))).is_same(self._own)

    async def _learn_own_name(self) -> None:
        """Without a wait for a log that is away: until it has answered its address stands for it."""
        if self._own.identity:
            return
        naming = self._naming = self._naming or asyncio.create_task(asyncio.to_thread(name_of, self._log))
        done, _ = await asyncio.wait([naming], timeout=_NAMING_SECONDS)
        if done:  # for all who wait
            self._naming, self._own = None, naming.result()


# --- task watch: follows what is known of tasks, and carries out what an operator orders of one ----------

VERBS = ("pause", "resume", "cancel", "close", "set")


class TaskWatch:
    """Any thread may look, and read `facts`."""

    def __init__(self, log: SeedLog, topics: CrawlTopics) -> None:
        self._log = log
        self._reading = runtime.Lock()  # a look whose task is cancelled goes on in its thread
        self._topics = topics
        self._board = Board()
        self._endings = Endings()
        self._records = TopicView(log, topics.tasks, self._noting(self._board.take), self._refuse)
        self._ends = TopicView(log, topics.control, self._noting(self._endings.take), self._refuse)
        self._news: set[str] = set()  # tasks of which something was read
        self._known: dict[str, TaskFacts] = {}
        self.facts: tuple[TaskFacts, ...] = ()  # by name
        self.refused = 0  # records that are none of tasks
        self.said = ""  # of them

    def look(self) -> None:
        """Take what was written since the last look. Raises LogUnavailable."""
        with self._reading:
            self._records.read_on()
            self._ends.read_on()
            self._endings.deleted.clear()  # nobody counts here
            overview, news, self._news = TaskOverview(self._board, self._endings), self._news, set()
            for task_id in news:
                if overview.knows(task_id):
                    self._known[task_id] = overview.of(task_id)
                else:
                    self._known.pop(task_id, None)
            if news:
                self.facts = tuple(self._known[task_id] for task_id in sorted(self._known))

    def order(self, verb: str, task_id: str, words: Sequence[str], *, is_told_of: bool) -> Ordered:
        """Blocks. `verb` is one of VERBS; `is_told_of`: processes know the task.

        Raises BadTask, ConfigError, LogUnavailable.
        """
        orders = TaskOrders(TaskDesk(self._log, self._topics), task_id, may_be_new=is_told_of)
        ordered: Ordered = orders.change(words) if verb == "set" else getattr(orders, verb)()
        return ordered

    def close(self) -> None:
        """Release the readers, when the look that is under way is over."""
        with self._reading:
            self._records.close()
            self._ends.close()

    def _noting(self, take: Callable[[Message], str]) -> Callable[[Message], str]:
        """Tasks are many, and few of them are in the news."""

        def noted(message: Message) -> str:
            self._news.add(task_id := take(message))
            return task_id

        return noted

    def _refuse(self, _counted: str) -> None:
        self.refused += 1
        self.said = f"{self.refused:,} records of task topics cannot be read and are skipped; see the log."


_IDLE_SECONDS = 10.0
_WATCHED_SECONDS = 2.0
_ATTENTION_SECONDS = 30.0  # after a look at a page
_FEW_HOSTS = 20
_SLICE = 100  # states taken before others have the event loop
_LEFT_OUT_SECONDS = 60.0  # for which it is said that processes are left out
_REFUSED, _LEFT_OUT, _BAD_RECORDS = "refused records", "left out", "records of tasks"


class FleetWatch:
    """One consumer group. On the event loop, but for the seed log's calls, which have threads."""

    def __init__(
        self, log: SeedLog, group: str, topics: CrawlTopics, seed_topics: Sequence[str], interval_seconds: float
    ) -> None:
        """`seed_topics` are those of `topics` that are shown."""
        self.fleet = Fleet()
        self._log = log
        self.group = group
        self.topics = tuple(seed_topics)
        self._history = History(log, topics.statistics, interval_seconds)
        self._interval_seconds = interval_seconds
        self.tasks = TaskWatch(log, topics)
        self.local_processes = LocalProcesses(log)
        self._names: dict[Path, str] = {}
        self._log_view: LogView | None = None
        self._troubles: dict[str, str] = {}
        self._others: tuple[str, ...] = ()
        self._looked_at = 0.0
        self._hosts = _FEW_HOSTS
        self._woken = asyncio.Event()
        self._looks = (  # each with how often it is taken while somebody watches
            ("history", self._look_at_topic, _IDLE_SECONDS),
            ("state of this host", self.look_at_this_host, _WATCHED_SECONDS),
            ("progress", self._look_at_progress, 2 * _WATCHED_SECONDS),
            ("list of tasks", self.look_at_tasks, 2 * _WATCHED_SECONDS),
        )

    @classmethod
    def read(cls, settings: BaseSettings, log: SeedLog, group: str | None, topic: str | None) -> Self:
        """As the settings say, but of a group or topic that is named. Raises ConfigError."""
        topics = CrawlTopics.beside(settings, topic)
        group = group or options.text(settings, "SITE_CONSUMER_GROUP", required=True)
        interval_seconds = options.seconds(settings, "SITE_STATS_INTERVAL_SECONDS", minimum=0.1)
        return cls(log, group, topics, topics.tiers if topic is None else (topic,), interval_seconds)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name, look, watched_seconds in self._looks:
                tasks.create_task(self._repeat(name, look, watched_seconds))

    def attend(self, hosts: int = _FEW_HOSTS) -> None:
        """Somebody looks: ask more often, and for so many hosts."""
        if not self._is_watched:
            self._hosts = _FEW_HOSTS
            self._woken.set()
        self._hosts = max(self._hosts, hosts)
        self._looked_at = runtime.monotonic()

    def view(self) -> View:
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
        await asyncio.gather(*(self._guarded(name, look) for name, look, _ in self._looks))

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
        answers = await self.local_processes.ask_all(b"%d" % self._hosts)
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
        """A process that ends removes its socket; one that is killed leaves it, perhaps to the next one."""
        gone = await asyncio.to_thread(lambda: {p: was_killed(p) for p in self._names if not p.exists()})
        for path, is_killed in gone.items():
            name = self._names.pop(path)
            if not is_killed:
                self.fleet.end(name, now)

    # --- the group -----------------------------------------------------------------------------------

    async def _look_at_topic(self) -> None:
        heard = await asyncio.to_thread(self._history.look, runtime.time(), tuple(self.fleet.seen))
        self._say_left_out()
        for number, (at, state) in enumerate(heard):
            if state.group == self.group:
                self.fleet.take(state, at)
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)

    def _say_left_out(self) -> None:
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

    async def look_at_tasks(self) -> None:
        await asyncio.to_thread(self.tasks.look)
        if self.tasks.refused:
            self._troubles[_BAD_RECORDS] = self.tasks.said

    async def _look_at_progress(self) -> None:
        self.fleet.mark(runtime.time())  # also while the log is away
        found = await asyncio.to_thread(of_topics, self._log, self.topics, self.group)
        partitions = tuple((part.partition, of_partition(part)) for part in found)
        unowned = await asyncio.to_thread(self._log.unowned, self.topics, self.group)
        self._log_view = LogView(runtime.time(), partitions, unowned)
        self.fleet.curves.gauge(self._log_view.at, {"lag": self._log_view.total.lag})
