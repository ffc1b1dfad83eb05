"""The parts that find and tell the end of tasks, opened, driven and closed together."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import count
from typing import Any

from site_spider import runtime
from site_spider.bounded_dict import BoundedDict
from site_spider.contracts.seed_log import Message, MessagePlace, Partition, Position, Producer, SeedLog
from site_spider.engine.background import Background
from site_spider.errors import SeedError, SiteSpiderError
from site_spider.ledger.completion import Completion, Job, SeedListener
from site_spider.ledger.ledger import Entry
from site_spider.ledger.metadata import decode
from site_spider.seed.seed import Seed, first_place
from site_spider.tasks import webhook
from site_spider.tasks.board import Board
from site_spider.tasks.control import Control
from site_spider.tasks.control_log import close_for_all, make_control_log
from site_spider.tasks.desk import forget_tasks
from site_spider.tasks.ending import (
    SPILLED,
    Attempts,
    Counting,
    Counts,
    EndTold,
    TakenBack,
    TaskEnding,
    Uncounted,
    WebhookAttempt,
    prefix_of,
)
from site_spider.tasks.follower import TaskTopics, read_board
from site_spider.tasks.page_counts import CountedPage, CountedSeed, PageFact, PageLog
from site_spider.tasks.record import Task
from site_spider.tasks.tasks import Teller

# --- notices ---------------------------------------------------------------------------------------------
# Sends webhooks of events, again and again until one is taken, and keeps each attempt in the control log.
#
# The record in the topic of events is the truth; a webhook is a copy of it. The process that has the first
# partition of the seed topic sends: twelve attempts, the pauses grow from a minute to 32 hours. `task_id`
# and `generation` name an event, so a receiver that gets one twice knows it.


logger = logging.getLogger(__name__)

_LOOK_SECONDS = 2.0
_MOST_AT_ONCE = 2


class Notices:
    """On the event loop's thread only."""

    def __init__(
        self,
        board: Board,
        control: Control,
        secret: bytes,
        may_reach: webhook.MayReach,
        has_first: Callable[[], bool],
        background: Background,
    ) -> None:
        self._board = board
        self._control = control
        self._secret = secret
        self._may_reach = may_reach
        self._has_first = has_first  # the first partition of the seed topic
        self._background = background
        self._busy: set[str] = set()
        self._look_at = 0.0

    def look(self) -> None:
        """To be called now and then."""
        now = runtime.time()
        if now < self._look_at or not self._has_first():
            return
        self._look_at = now + _LOOK_SECONDS
        for task in self._board:
            ending = self._control.get(task.task_id) if task.webhook else None
            if ending is None or task.task_id in self._busy or len(self._busy) >= _MOST_AT_ONCE:
                continue
            if (ended := due(ending, now)) is not None:
                self._busy.add(task.task_id)
                assert task.webhook is not None
                self._background.start(self._send(task.task_id, task.webhook, ending, ended), "webhook")

    async def _send(self, task_id: str, url: str, ending: TaskEnding, ended: EndTold) -> None:
        with self._control.guarded(task_id):
            await self._try(task_id, url, ending, ended)

    async def _try(self, task_id: str, url: str, ending: TaskEnding, ended: EndTold) -> None:
        sent = webhook.notice(ended.event, self._secret, int(runtime.time()))
        attempt = await asyncio.to_thread(webhook.post, url, sent, self._may_reach)
        if attempt.error:
            logger.warning("The webhook of task %s was not taken: %s", task_id, attempt.error)
        attempts = (*attempts_of(ending, ended.generation), attempt)
        fact = Attempts(ended.generation, attempts[-webhook.MOST_ATTEMPTS :])
        self._control.write(task_id, fact, lambda _: self._when_settled(task_id))

    def _when_settled(self, task_id: str) -> None:
        self._control.when_read(lambda: self._busy.discard(task_id))


def attempts_of(ending: TaskEnding, generation: int) -> tuple[WebhookAttempt, ...]:
    """Those that were made for an event."""
    made = ending.attempts
    return made.made if made is not None and made.generation == generation else ()


def is_settled(ending: TaskEnding) -> bool:
    """Whether the webhook of the last end was taken, or is not tried any more."""
    made = () if ending.ended is None else attempts_of(ending, ending.ended.generation)
    return len(made) >= webhook.MOST_ATTEMPTS or any(not attempt.error for attempt in made)


def due(ending: TaskEnding, now: float) -> EndTold | None:
    """The end whose webhook is to be tried at a Unix time."""
    ended = ending.ended
    if ended is None or ending.noticed < ended.generation:
        return None
    made = attempts_of(ending, ended.generation)
    if is_settled(ending):
        return None
    if made and now < made[-1].at_ms / 1000 + webhook.pause_seconds(len(made)):
        return None
    return ended


# --- tracker ---------------------------------------------------------------------------------------------
# Counts the seeds of tasks, and says how far each task is complete and committed in each partition.
#
# Each seed of a task has one hold of the tracker. When it is the last one, the seed's pages go to the page
# log (tasks.page_log), then the seed is counted in the control log (tasks.counting), and then released. A
# seed of a task that the log does not name is released when the log was read up to its present end, and is
# not counted.
#
# A tally names highs of all messages of its task that this process knows of: those that it has sent, and
# those that have come here as links. For a process may die behind the message of a link. Its seed repeats,
# and drops the link if the message has come to the same process meanwhile.


_MOST_LEFT = 20_000  # seeds whose partition went away while they were under way
_MOST_UNCOUNTED = 20_000  # tasks that nobody has named yet

Share = tuple[str, Partition]  # one task in one partition


class Tracked:
    """A seed of a task, and its pages so far."""

    __slots__ = ("_first", "_pages", "_prefix", "began", "first_ms", "task_id")

    def __init__(self, task_id: str, prefix: str, first: str) -> None:
        self.task_id = task_id
        self._prefix = prefix  # of the names of its counts
        self._first = first  # where its producer's message is, if it has moved
        self.began = False
        self.first_ms = int(runtime.time() * 1000)
        self._pages: dict[str, PageFact] = {}

    def add(self, page: PageFact) -> None:
        """One more document; of one page the last one counts."""
        self._pages[page.url_id] = page

    def pages(self) -> list[CountedPage]:
        """All of them."""
        return [page.counted() for page in self._pages.values()]

    def seed(self, outcome: str) -> CountedSeed | None:
        """How one that has moved has ended."""
        if not self._first or outcome == SPILLED:
            return None
        return CountedSeed.at(self._first, outcome)

    def counts(self, outcome: str) -> Counts:
        """With how the seed has ended."""
        pages = self._pages.values()
        answered, size_bytes = sum(page.is_answered for page in pages), sum(page.size_bytes for page in pages)
        now_ms = int(runtime.time() * 1000)
        return Counts({self._prefix + outcome: 1}, self.first_ms, now_ms, answered, size_bytes)


class Tracker(SeedListener):
    """On the event loop's thread only."""

    def __init__(
        self, completion: Completion, control: Control, pages: PageLog, is_declared: Callable[[str], bool]
    ) -> None:
        self._completion = completion
        self._is_declared = is_declared  # then its seeds are counted, before the log names it
        self._ledger = completion.ledger
        self._control = control
        self._pages = pages
        self._tracked: dict[Entry, Tracked] = {}
        self._entries: dict[tuple[Partition, int], Entry] = {}  # those that wait to be counted
        self._left: BoundedDict[tuple[Partition, int], Tracked] = BoundedDict(_MOST_LEFT)
        self._countings: dict[Share, Counting] = {}
        self._epochs: dict[Partition, int | None] = {}
        self._ready: set[Share] = set()  # something waits to be counted
        self._unsure: list[Entry] = []
        self._uncounted: BoundedDict[str, int] = BoundedDict(_MOST_UNCOUNTED)  # seeds, by task
        self._numbers = count()  # of keys in the log

    # --- SeedListener -----------------------------------------------------------------------------

    def arrived(self, entry: Entry, message: Message, seed: Seed | SeedError) -> None:
        """As in SeedListener."""
        if isinstance(seed, SeedError) or seed.task_id is None:
            return
        prefix, place = prefix_of(seed, message.headers), MessagePlace(entry.partition, entry.offset)
        first = "".join(
            at.decode(errors="replace") for _, at in first_place(message.headers) if not seed.is_link
        )
        self._tracked[entry] = Tracked(seed.task_id, prefix, first)
        if prefix:
            self._control.put(seed.task_id, place)
        self._counting((seed.task_id, entry.partition)).arrived(entry.offset)
        self._completion.hold_to_close(entry)

    def began(self, job: Job) -> None:
        """As in SeedListener."""
        if (tracked := self._tracked.get(job.entry)) is not None:
            tracked.began = True

    def written(self, job: Job, document: Mapping[str, Any]) -> None:
        """As in SeedListener."""
        entry = job.entry
        tracked = self._tracked.get(entry)
        if tracked is None and not entry.live:
            tracked = self._left.get((entry.partition, entry.offset))
        if tracked is not None:
            tracked.add(PageFact.of(job, document))

    def last_hold(self, entry: Entry) -> None:
        """As in SeedListener: all is done but for the counting."""
        if (tracked := self._tracked.get(entry)) is None or not entry.live:
            return
        if not self._is_known(tracked.task_id):
            self._unsure.append(entry)
            if len(self._unsure) == 1:
                self._control.when_read(self._decide)
        else:
            self._done(entry, tracked)

    def ended(self, entry: Entry) -> None:
        """As in SeedListener."""
        self._tracked.pop(entry, None)

    def fenced(self, entry: Entry) -> None:
        """As in SeedListener. What goes on is counted for the repeat that it completes."""
        if (tracked := self._tracked.pop(entry, None)) is not None:
            self._left[entry.partition, entry.offset] = tracked
            self._entries.pop((entry.partition, entry.offset), None)
            self._completion.release(entry)

    def committed(self, positions: Mapping[Partition, Position | None]) -> None:
        """As in SeedListener."""
        known = {partition: _Committed(position) for partition, position in positions.items() if position}
        for (task_id, partition), counting in list(self._countings.items()):
            if partition in known:
                counting.committed(known[partition].has)
                if counting.is_empty and (task_id, partition) not in self._ready:
                    del self._countings[task_id, partition]

    # --- the control log --------------------------------------------------------------------------

    def look(self) -> None:
        """Write what has changed; to be called often."""
        self._forget_lost()
        self._tell_deleted_anew()
        self._pages.look()
        for share in list(self._ready):
            with self._control.guarded(share[0]):
                self._count(share)
        for task_id in list(self._control.endings.unfinished):
            with self._control.guarded(task_id):
                self._tell_uncounted(task_id)
                self._tell_passed(task_id)

    @property
    def is_counting(self) -> bool:
        """Whether a seed waits to be counted."""
        return bool(self._ready or self._unsure or self._pages.is_writing)

    def _decide(self) -> None:
        """The log is read: which of them belong to a task that it names."""
        unsure, self._unsure = self._unsure, []
        for entry in unsure:
            tracked = self._tracked.get(entry)
            if tracked is None or not entry.live:
                continue
            if self._is_known(tracked.task_id):
                self._done(entry, tracked)
            else:
                self._counting((tracked.task_id, entry.partition)).skipped(entry.offset)
                self._uncounted[tracked.task_id] = self._uncounted.get(tracked.task_id, 0) + 1
                self._completion.release(entry)

    def _is_known(self, task_id: str) -> bool:
        return self._control.get(task_id) is not None or self._is_declared(task_id)

    def _done(self, entry: Entry, tracked: Tracked) -> None:
        if not tracked.began:  # what an earlier epoch did of it completes it
            tracked = self._left.get((entry.partition, entry.offset), tracked)
        counted, seed = partial(self._pages_written, entry, tracked), tracked.seed(_outcome(entry))
        self._pages.add(tracked.task_id, tracked.pages(), counted, seed)

    def _pages_written(self, entry: Entry, tracked: Tracked) -> None:
        if entry not in self._tracked or not entry.live:
            return  # its partition has left meanwhile
        share = tracked.task_id, entry.partition
        self._entries[entry.partition, entry.offset] = entry
        self._counting(share).done(entry.offset, tracked.counts(_outcome(entry)))
        self._ready.add(share)

    def _count(self, share: Share) -> None:
        task_id, partition = share
        ending = self._control.get(task_id) or TaskEnding()
        if (counting := self._countings.get(share)) is None:
            self._ready.discard(share)
            return
        if self._control.endings.is_aside(task_id):
            self._ready.discard(share)
            self._release(partition, counting.skip_all())
            return
        counted, tally = counting.read(ending), ending.tallies.get(partition)
        left = tally.left.intersection(counted) if tally is not None else ()
        self._release(partition, (offset for offset in counted if offset not in left))
        self._write_left(share, left)
        self._control.take_back(task_id, (TakenBack(name, partition) for name in counting.stale(ending)))
        if not counting.is_waiting:
            self._ready.discard(share)
        self._write(share, ending, counting, tells_passed=False)

    def _release(self, partition: Partition, offsets: Iterable[int]) -> None:
        for offset in offsets:
            if (entry := self._entries.pop((partition, offset), None)) is not None:
                self._completion.release(entry)

    def _write_left(self, share: Share, offsets: Iterable[int]) -> None:
        """They are counted as spilled; their outcome is that of the message as which they went on."""
        task_id, partition = share
        for offset in offsets:
            if (entry := self._entries.pop((partition, offset), None)) is not None:
                seed = CountedSeed.at(f"{partition.topic}/{partition.number}/{offset}")
                self._pages.add(task_id, (), partial(self._left_written, entry), seed)

    def _left_written(self, entry: Entry) -> None:
        if entry in self._tracked and entry.live:
            self._completion.release(entry)

    def _tell_uncounted(self, task_id: str) -> None:
        """Before `passed`: the end waits for that, and comes behind this in the log."""
        found, ending = self._uncounted.pop(task_id, None), self._control.get(task_id)
        if found is not None and ending is not None and not ending.lacks_some:
            self._control.write(task_id, Uncounted(found), lambda _is_durable: None)

    def _tell_passed(self, task_id: str) -> None:
        ending = self._control.get(task_id)
        if ending is None or ending.is_told:
            return
        for partition, high in ending.highs.items():
            if ending.passed(partition) < high and self._ledger.epoch(partition) is not None:
                counting = self._counting((task_id, partition))
                if counting.passed(self._ledger.next_offset(partition) or 0) >= high:
                    self._write((task_id, partition), ending, counting, tells_passed=True)

    def _write(self, share: Share, ending: TaskEnding, counting: Counting, *, tells_passed: bool) -> None:
        task_id, partition = share
        position = self._ledger.next_offset(partition) or 0
        known = self._control.known(task_id)
        tally = counting.next_tally(ending, position, known, tells_passed=tells_passed)
        if tally is not None:
            self._ready.add(share)
            self._control.write(task_id, tally, lambda is_durable: None if is_durable else counting.failed())

    def _counting(self, share: Share) -> Counting:
        epoch = self._ledger.epoch(share[1])
        if self._epochs.get(share[1]) != epoch:
            self._forget_lost()
            self._epochs[share[1]] = epoch
        if (counting := self._countings.get(share)) is None:
            name = f"{self._control.writer}.{epoch}"
            counting = self._countings[share] = Counting(share[1], name, self._numbers)
        return counting

    def _tell_deleted_anew(self) -> None:
        """Records of these tasks are gone: no tally that was on its way comes back."""
        if deleted := self._control.endings.deleted:
            for (task_id, _), counting in self._countings.items():
                if task_id in deleted:
                    counting.failed()
            deleted.clear()

    def _forget_lost(self) -> None:
        """Partitions that have left, or have left and come back: their seeds were fenced."""
        lost = {part for part, epoch in self._epochs.items() if self._ledger.epoch(part) != epoch}
        if not lost:
            return
        for part in lost:
            del self._epochs[part]
        self._countings = {share: of for share, of in self._countings.items() if share[1] not in lost}
        self._ready = {share for share in self._ready if share[1] not in lost}


def _outcome(entry: Entry) -> str:
    return "result" if entry.outcome is None else entry.outcome.value


class _Committed:
    """Which offsets a position says are complete."""

    def __init__(self, position: Position) -> None:
        self._watermark = position.offset
        runs = decode(*position).complete
        self._starts = [start for start, _ in runs]
        self._ends = [end for _, end in runs]

    def has(self, offset: int) -> bool:
        if offset < self._watermark:
            return True
        number = bisect_right(self._starts, offset) - 1
        return number >= 0 and offset < self._ends[number]


_OVER_SECONDS = 1.0  # between looks for tasks that were cancelled, or have expired
_MOST_KEPT = 50_000  # tasks that are declared: half of what the board takes
_MOST_FORGOTTEN = 5_000


class TaskEnds:
    """On the event loop's thread; `close` blocks. Off where results and offsets are one transaction."""

    def __init__(
        self,
        control: Control,
        tracker: Tracker,
        teller: Teller,
        over: OverTasks,
        notices: Notices,
        *,
        is_on: bool,
    ) -> None:
        self._control = control
        self._tracker = tracker
        self._teller = teller
        self._over = over
        self._notices = notices
        self._is_on = is_on

    def open(self) -> None:
        """Make the control log where tasks are declared: it may have one partition only. Blocks."""
        if self._is_on:
            self._over.make_log()

    def is_counted(self, task_id: str) -> bool:
        """Whether the seeds of a task are counted although the control log does not name it yet."""
        return self._over.is_declared(task_id)

    def start(self) -> None:
        """Follow the control log from now on."""
        if self._is_on:
            self._control.start()
        else:
            logger.info("The end of tasks is not told with SITE_KAFKA_EXACTLY_ONCE")

    def look(self) -> None:
        """Write what has changed; to be called often."""
        if self._is_on:
            self._tracker.look()
            self._teller.look()
            self._over.look()
            self._notices.look()

    def is_counting(self) -> bool:
        """Whether seeds that are done wait to be counted."""
        return self._is_on and self._tracker.is_counting

    def close(self) -> None:
        """Follow it no more."""
        if self._is_on:
            self._teller.close()
            self._control.stop()


class OverTasks:
    """Closes tasks that were cancelled or have expired: nobody sends seeds of them any more.

    It also has the topic forget tasks that have ended, the first one first, when there are very many.
    """

    def __init__(
        self,
        log: SeedLog,
        producer: Producer,
        topics: TaskTopics,
        board: Board,
        control: Control,
        has_first: Callable[[], bool],
        background: Background,
    ) -> None:
        self._log = log
        self._producer = producer
        self._topics = topics
        self._board = board
        self._control = control
        self._has_first = has_first  # the first partition of the seed topic
        self._background = background
        self._look_at = 0.0
        self._closed: dict[str, Task] = {}  # as declared when they were closed here
        self._is_forgetting = False
        self._has_log = False

    def is_declared(self, task_id: str) -> bool:
        """Whether there is such a task, and the control log takes records of it."""
        return self._has_log and task_id in self._board.tasks

    def make_log(self) -> None:
        """Make the control log, if there is a task. Blocks. Raises ConfigError, LogUnavailable."""
        if not self._has_log and len(self._board):
            make_control_log(self._log, self._topics)
            self._has_log = True

    def look(self) -> None:
        """To be called now and then."""
        now = runtime.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _OVER_SECONDS
        if not self._has_log and len(self._board):
            self._background.start(self._make_log(), "control log of tasks")
        if not self._has_first():
            return
        if over := [task for task in self._board if self._is_over(task)]:
            self._closed |= {task.task_id: task for task in over}
            task_ids = [task.task_id for task in over]
            self._control.when_read(partial(self._begin, task_ids))  # another process may have closed them
        if max(len(self._board), len(self._control.endings)) > _MOST_KEPT and not self._is_forgetting:
            self._is_forgetting = True
            self._background.start(self._forget(), "forgetting tasks that have ended")

    def _is_over(self, task: Task) -> bool:
        if task.state != "cancelled" and task.expires_at is None:
            return False
        return self._closed.get(task.task_id) is not task and self._board.phase(task.task_id).is_over

    async def _make_log(self) -> None:
        try:
            await asyncio.to_thread(self.make_log)
        except SiteSpiderError as error:
            logger.warning("The control log of tasks cannot be made now, trying again: %s", error)

    def _begin(self, task_ids: list[str]) -> None:
        endings = ((task_id, self._control.get(task_id)) for task_id in task_ids)
        open_ones = [task_id for task_id, ending in endings if not (ending and ending.is_ending)]
        if open_ones:
            self._background.start(self._close(open_ones), "closing tasks")

    async def _close(self, task_ids: list[str]) -> None:
        def parked() -> set[str]:
            board = read_board(self._log, self._topics.tasks)
            return {task_id for task_id in task_ids if board.has_parked(task_id)}

        arguments = (self._log, self._producer, self._topics, task_ids, parked)
        try:
            await asyncio.to_thread(close_for_all, *arguments)
        except SiteSpiderError as error:
            logger.warning("%d tasks cannot be closed now, trying again: %s", len(task_ids), error)
            for task_id in task_ids:
                self._closed.pop(task_id, None)

    async def _forget(self) -> None:
        ended = [task_id for task_id in self._control.endings.ended() if self._may_forget(task_id)]
        too_many = max(len(self._board), len(self._control.endings)) - _MOST_KEPT
        first = ended[: too_many + _MOST_FORGOTTEN]  # and some more: it reads the topics
        try:
            if first:
                await asyncio.to_thread(forget_tasks, self._log, self._producer, self._topics, first)
        except SiteSpiderError as error:
            logger.warning("Tasks that have ended cannot be forgotten now, trying again: %s", error)
        for task_id in first:
            self._closed.pop(task_id, None)
        self._control.when_read(self._has_forgotten)

    def _may_forget(self, task_id: str) -> bool:
        task, ending = self._board.task(task_id), self._control.get(task_id)
        return task is None or task.webhook is None or ending is None or is_settled(ending)

    def _has_forgotten(self) -> None:
        self._is_forgetting = False
