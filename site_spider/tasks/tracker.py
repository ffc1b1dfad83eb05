"""Counts the seeds of tasks in the control log, and says how far each task is complete and committed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from typing import Any, NamedTuple

from site_spider import runtime
from site_spider.bounded import BoundedDict
from site_spider.contracts.seed_log import Message, MessagePlace, Partition, Position, Producer, SeedLog
from site_spider.engine.background import Background
from site_spider.errors import SeedError
from site_spider.ledger.completion import Completion, Job, SeedListener
from site_spider.ledger.ledger import SeedInFlight
from site_spider.ledger.metadata import DoneOffsets
from site_spider.outage import Outage
from site_spider.seed.seed import Seed, first_place
from site_spider.seed.topics import CrawlTopics
from site_spider.tasks.board import Board
from site_spider.tasks.control_log import Endings, read, written
from site_spider.tasks.declaration import bounded
from site_spider.tasks.ending import SPILLED, Counting, Counts, Fact, TakenBack, TaskEnding, Uncounted, prefix_of
from site_spider.tasks.follower import Follower, Tell, TopicView
from site_spider.tasks.page_log import CountedPage, CountedSeed, PageLog

logger = logging.getLogger(__name__)

# --- control ---------------------------------------------------------------------------------------------
# What the control log says in a crawl, and what this process writes to it.

_MOST_KNOWN = 20_000  # tasks of which messages are known
_MOST_LOOKED_AT = 1_000


class Control(Follower):
    """On the event loop's thread only.

    A task that the log does not name costs nothing but that: when something depends on it, the log is read
    up to its present end first.
    """

    def __init__(
        self,
        view: TopicView,
        tell: Tell,
        endings: Endings,
        producer: Producer,
        writer: str,
        background: Background,
        topics: Collection[str],
    ) -> None:
        """`topics` are those that seeds of tasks wait in; what goes elsewhere leaves its task."""
        super().__init__(view, tell, lambda _task_ids: None)
        self._topics = topics
        self.writer = writer  # the name of this process in the log
        self.endings = endings  # that the view fills
        self.get = endings.get
        self._topic = view.topic
        self._producer = producer
        self._background = background
        self._refused = Outage(logger, "The control log of tasks takes no records, trying again", "It takes them again")
        self._known: dict[str, dict[Partition, int]] = {}  # by task, the one that is told of last at the end

    @contextmanager
    def guarded(self, task_id: str) -> Iterator[None]:
        """Work for one task: what it raises sets the task aside, and ends nothing."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - said, with a traceback
            self.set_aside(task_id, error)

    def set_aside(self, task_id: str, error: BaseException) -> None:
        """Its seeds are crawled as those of a task that the log does not name."""
        self.endings.set_aside(task_id)
        logger.error(
            "Task %s is set aside: its seeds are not counted and its end is not told by this process: %r",
            task_id, error, exc_info=error,
        )  # fmt: skip

    def take_back(self, task_id: str, facts: Iterable[TakenBack]) -> None:
        """Take back records that others carry on. What is lost on the way is taken back by the next owner."""
        for fact in facts:
            self.write(task_id, fact, lambda _is_durable: None)

    def write(self, task_id: str, fact: Fact, done: Callable[[bool], None]) -> None:
        """Append a record; `done` hears whether it is durable. Raises BadRecord: nobody could read it."""
        record = written(task_id, fact)
        read(Message(Partition(self._topic, 0), 0, *record))

        def heard(sent: Future[MessagePlace]) -> None:
            error = sent.exception()
            if error is None:
                self._refused.is_over()
            else:
                self._refused.goes_on(error)
            done(error is None)

        self._background.when_done(self._producer.send(self._topic, *record), heard)

    def put(self, task_id: str, place: MessagePlace) -> None:
        if place.partition.topic not in self._topics:
            return
        known = self._known.pop(task_id, {})
        known[place.partition] = max(place.offset + 1, known.get(place.partition, 0))
        self._known[task_id] = known
        if len(self._known) > _MOST_KNOWN:
            self._forget_one()

    def known(self, task_id: str) -> Mapping[Partition, int]:
        """The highest position of a message of the task that this process knows of, by partition.

        What tallies have passed is left out.
        """
        if (ending := self.get(task_id)) is not None:
            self.forget(task_id, ending.tallied)
        return self._known.get(task_id, {})

    def forget(self, task_id: str, passed: Callable[[Partition], int | None]) -> None:
        """Messages of each partition up to there are complete."""
        known = self._known.get(task_id, {})
        for partition in [each for each in known if (passed(each) or 0) >= known[each]]:
            del known[partition]

    def _forget_one(self) -> None:
        """A task that the log does not name: who closes it looks for its messages. Or one that has ended."""
        for task_id in list(islice(self._known, _MOST_LOOKED_AT)):
            ending, known = self.get(task_id), self._known.pop(task_id)
            if ending is None or ending.is_told:
                return
            self._known[task_id] = known


class Group(NamedTuple):
    """What `GroupWork` needs."""

    log: SeedLog
    producer: Producer
    topics: CrawlTopics
    board: Board
    control: Control
    has_first: Callable[[], bool]
    background: Background


class GroupWork:
    """Work of the process that has the first partition of the seed topic. On the event loop's thread only.

    `look` is called now and then, as `every_seconds` says.
    """

    def __init__(self, group: Group) -> None:
        self._log, self._producer, self._topics, self._board, self._control, *_ = group
        self._has_first, self._background = group.has_first, group.background
        self._busy: set[str] = set()  # tasks of which something is on its way
        self._heard_of: set[str] = set()  # declared tasks of which there is news

    def heard(self, task_ids: Collection[str]) -> None:
        """Records of these have come; who never has the partition keeps no more than those that there are."""
        for task_id in task_ids:
            (self._heard_of.add if task_id in self._board.tasks else self._heard_of.discard)(task_id)

    @property
    def is_at_work(self) -> bool:
        """Whether something is on its way of a task that is not set aside."""
        return not all(map(self._control.endings.is_aside, self._busy))

    def _when_settled(self, task_id: str) -> None:
        """What was written is read back before the next look at the task."""
        self._control.when_read(lambda: self._busy.discard(task_id))


# --- tracker ---------------------------------------------------------------------------------------------
# Counts the seeds of tasks, and says how far each task is complete and committed in each partition.
#
# Each seed of a task has one hold of the tracker. When it is the last one, the seed's pages go to the page
# log (tasks.page_log), then the seed is counted in the control log (tasks.ending), and then released. A
# seed of a task that the log does not name is released when the log was read up to its present end, and is
# not counted.
#
# A tally names highs of all messages of its task that this process knows of: those that it has sent, and
# those that have come here as links. For a process may die behind the message of a link. Its seed repeats,
# and drops the link if the message has come to the same process meanwhile.

_MOST_LEFT = 20_000  # seeds whose partition went away while they were under way
_MOST_PAGES_LEFT = 200_000  # of these: some 50 MB
_MOST_UNCOUNTED = 20_000  # tasks that nobody has named yet
_MOST_AT_ONCE = 5_000  # partitions of tasks that are closed, in one look: some milliseconds
_MOST_COUNTED = 300  # shares, in one look: after an outage there may be thousands

Share = tuple[str, Partition]  # one task in one partition


@dataclass(slots=True, eq=False)
class Tracked:
    """A seed of a task, and its pages so far."""

    task_id: str
    _prefix: str  # of the names of its counts
    _first: str  # where its producer's message is, if it has moved
    began: bool = False
    first_ms: int = field(default_factory=lambda: int(runtime.time() * 1000))
    pages: dict[int, CountedPage] = field(default_factory=dict)  # of one page the last document counts
    traps: Counter[str] = field(default_factory=Counter)

    def seed(self, outcome: str) -> CountedSeed | None:
        return CountedSeed.at(self._first, outcome) if self._first and outcome != SPILLED else None

    def counts(self, outcome: str) -> Counts:
        pages, now_ms = self.pages.values(), int(runtime.time() * 1000)
        answered, size_bytes = sum(page.is_answered for page in pages), sum(page.size_bytes for page in pages)
        seeds, traps = {self._prefix + outcome: 1}, bounded(self.traps)
        return Counts(seeds, self.first_ms, now_ms, answered, size_bytes, traps)


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
        self._tracked: dict[SeedInFlight, Tracked] = {}
        self._entries: dict[tuple[Partition, int], SeedInFlight] = {}  # those that wait to be counted
        self._left: BoundedDict[tuple[Partition, int], Tracked] = BoundedDict(_MOST_LEFT)
        self._pages_left = 0  # at most
        self._countings: dict[Share, Counting] = {}
        self._epochs: dict[Partition, int | None] = {}
        self._ready: set[Share] = set()  # something waits to be counted
        self._to_count: list[Share] = []  # those of this round
        self._unsure: list[SeedInFlight] = []
        self._deleted: list[tuple[Partition, int, int]] = []  # while it is not known which tasks lack them
        self._uncounted: BoundedDict[str, int] = BoundedDict(_MOST_UNCOUNTED)  # seeds, by task
        self._numbers = count()  # of keys in the log
        self._closed: list[str] = []  # tasks that wait for their end, and are to be looked at

    # --- SeedListener -----------------------------------------------------------------------------

    def arrived(self, entry: SeedInFlight, message: Message, seed: Seed | SeedError) -> None:
        assert not isinstance(seed, SeedError)
        assert seed.task_id is not None
        prefix, place = prefix_of(seed, message.headers), MessagePlace(entry.partition, entry.offset)
        first = "".join(at.decode(errors="replace") for _, at in first_place(message.headers))
        self._tracked[entry] = Tracked(seed.task_id, prefix, first)
        if prefix:
            self._control.put(seed.task_id, place)
        self._counting((seed.task_id, entry.partition)).arrived(entry.offset)
        self._completion.hold_to_close(entry)

    def began(self, job: Job) -> None:
        if (tracked := self._tracked.get(job.entry)) is not None:
            tracked.began = True

    def written(self, job: Job, document: Mapping[str, Any]) -> None:
        entry = job.entry
        tracked = self._tracked.get(entry)
        if tracked is None and not entry.live:
            tracked = self._left.get((entry.partition, entry.offset))
        if tracked is not None:
            page = CountedPage.of(job, document)
            tracked.pages[page.page] = page

    def withdrawn(self, job: Job, url_id: str | None) -> None:
        tracked = self._left.get((job.entry.partition, job.entry.offset))
        if tracked is not None and url_id is not None:
            for name in (url_id, job.url_id):  # it may be merged into another one
                tracked.pages.pop(CountedPage.of(job, {"url_id": name}).page, None)

    def trapped(self, job: Job, pattern: str) -> None:
        if (tracked := self._tracked.get(job.entry)) is not None:
            tracked.traps[pattern] += 1

    def last_hold(self, entry: SeedInFlight) -> None:
        """All is done but for the counting."""
        if (tracked := self._tracked.get(entry)) is None or not entry.live:
            return
        if not self._is_known(tracked.task_id):
            self._unsure.append(entry)
            if len(self._unsure) == 1:
                self._control.when_read(self._decide)
        else:
            self._done(entry, tracked)

    def ended(self, entry: SeedInFlight) -> None:
        self._tracked.pop(entry, None)

    def fenced(self, entry: SeedInFlight) -> None:
        """What goes on is counted for the repeat that it completes."""
        if (tracked := self._tracked.pop(entry, None)) is not None:
            place = entry.partition, entry.offset
            tracked.pages = self._left.get(place, tracked).pages | tracked.pages  # this may be a repeat itself
            self._left[place] = tracked
            self._pages_left += len(tracked.pages)
            if self._pages_left > _MOST_PAGES_LEFT:
                self._forget_left()
            self._entries.pop(place, None)
            self._completion.release(entry)

    def committed(self, positions: Mapping[Partition, Position | None]) -> None:
        known = {partition: DoneOffsets(position) for partition, position in positions.items() if position}
        for (task_id, partition), counting in list(self._countings.items()):
            if partition in known:
                counting.committed(known[partition].__contains__)
                if counting.is_empty and (task_id, partition) not in self._ready:
                    del self._countings[task_id, partition]

    def deleted(self, partition: Partition, first: int, beyond: int) -> None:
        self._deleted.append((partition, first, beyond))
        if len(self._deleted) == 1:
            self._control.when_read(self._tell_deleted)

    # --- the control log --------------------------------------------------------------------------

    def look(self) -> None:
        """Write what has changed; to be called often."""
        if self._deleted:
            return
        self._forget_lost()
        self._tell_deleted_anew()
        if self._pages.waiting:
            self._pages.look()
        for task_id in self._uncounted.keys() & self._control.endings.unfinished:
            seeds, ending = self._uncounted.pop(task_id), self._control.get(task_id)
            if ending is not None and not ending.lacks_some:
                with self._control.guarded(task_id):  # before any tally: the end waits for what that says
                    self._write_uncounted(task_id, seeds)
        self._to_count = self._to_count or list(self._ready)
        for share in self._to_count[-_MOST_COUNTED:]:
            with self._control.guarded(share[0]):
                self._count(share)
        del self._to_count[-_MOST_COUNTED:]
        self._look_at_closed()

    def _look_at_closed(self) -> None:
        """At so many; at the others the next time."""
        self._closed = self._closed or list(self._control.endings.unfinished)
        left = _MOST_AT_ONCE
        while self._closed and left > 0:
            task_id = self._closed.pop()
            with self._control.guarded(task_id):
                left -= 1 + self._tell_passed(task_id)

    @property
    def is_counting(self) -> bool:
        return bool(self._ready or self._unsure or self._pages.is_writing)

    def _tell_deleted(self) -> None:
        """Nobody knows whose messages these were: perhaps seeds of each task that is open, or not passed there."""
        deleted, self._deleted = self._deleted, []
        for task_id in list(self._control.endings):
            ending = self._control.get(task_id) or TaskEnding()
            if not (ending.is_told or ending.lacks_some) and any(_may_lack(ending, *one) for one in deleted):
                self._write_uncounted(task_id, 1)

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
                self._count_uncounted(tracked.task_id, 1)
                self._completion.release(entry)

    def _is_known(self, task_id: str) -> bool:
        return self._control.get(task_id) is not None or self._is_declared(task_id)

    def _done(self, entry: SeedInFlight, tracked: Tracked) -> None:
        if not tracked.began and (left := self._left.get((entry.partition, entry.offset))) is not None:
            left.pages.update(tracked.pages)  # what an earlier epoch did of it, and what was said instead
            tracked = left
        counted, seed = partial(self._pages_written, entry, tracked), tracked.seed(_outcome(entry))
        self._pages.add(tracked.task_id, tracked.pages.values(), counted, seed)

    def _pages_written(self, entry: SeedInFlight, tracked: Tracked) -> None:
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
            for entry in self._waiting(partition, counting.skip_all()):
                self._completion.release(entry)
            return
        tally = ending.tallies.get(partition)
        for entry in self._waiting(partition, counting.read(ending)):
            if tally is None or entry.offset not in tally.left:
                self._completion.release(entry)
            else:  # its outcome is that of the message as which it went on
                seed = CountedSeed.at(f"{partition.topic}/{partition.number}/{entry.offset}")
                self._pages.add(task_id, (), partial(self._left_written, entry), seed)
        self._control.take_back(task_id, (TakenBack(name, partition) for name in counting.stale(ending)))
        if not counting.is_waiting:
            self._ready.discard(share)
        self._write(share, ending, counting, tells_passed=False)

    def _waiting(self, partition: Partition, offsets: Iterable[int]) -> list[SeedInFlight]:
        found = (self._entries.pop((partition, offset), None) for offset in offsets)
        return [entry for entry in found if entry is not None]

    def _left_written(self, entry: SeedInFlight) -> None:
        if entry in self._tracked and entry.live:
            self._completion.release(entry)

    def _write_uncounted(self, task_id: str, seeds: int) -> None:
        again = partial(self._count_uncounted, task_id, seeds)
        self._control.write(task_id, Uncounted(seeds), lambda is_durable: None if is_durable else again())

    def _count_uncounted(self, task_id: str, seeds: int) -> None:
        self._uncounted[task_id] = self._uncounted.get(task_id, 0) + seeds

    def _tell_passed(self, task_id: str) -> int:
        """Where it is; returns of how many partitions."""
        ending = self._control.get(task_id)
        if ending is None or ending.is_told:
            return 0
        for partition, high in ending.highs.items():
            if ending.passed(partition) < high and self._ledger.epoch(partition) is not None:
                if (position := self._ledger.next_offset(partition) or 0) < high:
                    continue
                counting = self._counting((task_id, partition))
                if counting.passed(position) >= high:
                    self._write((task_id, partition), ending, counting, tells_passed=True)
        return len(ending.highs)

    def _write(self, share: Share, ending: TaskEnding, counting: Counting, *, tells_passed: bool) -> None:
        task_id, partition = share
        position = self._ledger.next_offset(partition) or 0
        tally = counting.next_tally(ending, position, self._control.known(task_id), tells_passed=tells_passed)
        if tally is not None:
            self._ready.add(share)
            self._control.write(task_id, tally, lambda is_durable: None if is_durable else counting.failed())

    def _counting(self, share: Share) -> Counting:
        epoch = self._ledger.epoch(share[1])
        if self._epochs.setdefault(share[1], epoch) != epoch:
            self._forget_lost()
            self._epochs[share[1]] = epoch
        if (counting := self._countings.get(share)) is None:
            name = f"{self._control.writer}.{epoch}"
            counting = self._countings[share] = Counting(share[1], name, self._numbers)
        return counting

    def _tell_deleted_anew(self) -> None:
        """Records of these tasks are gone: no tally that was on its way comes back, nor what was passed."""
        deleted = self._control.endings.deleted
        for (task_id, _), counting in self._countings.items() if deleted else ():
            if task_id in deleted:
                counting.failed()
        for task_id, passed in deleted.items():
            self._control.forget(task_id, passed.get)
        deleted.clear()

    def _forget_left(self) -> None:
        """Those that left first, up to half of what is kept."""
        self._pages_left = sum(len(left.pages) for left in self._left.values())
        while self._pages_left > _MOST_PAGES_LEFT // 2 and len(self._left) > 1:
            self._pages_left -= len(self._left.popitem(last=False)[1].pages)

    def _forget_lost(self) -> None:
        """Partitions that have left, or have left and come back: their seeds were fenced."""
        lost = {part for part, epoch in self._epochs.items() if self._ledger.epoch(part) != epoch}
        if not lost:
            return
        for part in lost:
            del self._epochs[part]
        self._countings = {share: of for share, of in self._countings.items() if share[1] not in lost}
        self._ready = {share for share in self._ready if share[1] not in lost}


def _outcome(entry: SeedInFlight) -> str:
    return "result" if entry.outcome is None else entry.outcome.value


def _may_lack(ending: TaskEnding, partition: Partition, first: int, beyond: int) -> bool:
    """Whether seeds of a task may have been in this part of a partition; some producers do not say where theirs are."""
    is_open = bool(ending.sending) or not ending.is_closed
    return (is_open or ending.highs.get(partition, 0) > first) and ending.passed(partition) < beyond
