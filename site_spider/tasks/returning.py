"""Puts the parked messages of tasks back into the seed topics that they came from, in their order.

Theory. Messages are sent and durable before the record that says so is written. So what is cut short does
some of it again, and leaves nothing out. How many messages processes had parked is read before the ends
of the topic: what is parked later is not counted as put back, and somebody does this once more.

One works for a task at a time. It says so in the record of what was put back (`Returned.by`), and renews
that while it works. Who finds another's name there waits until it is done, or has stood still for too
long.

The topic is read from where it was read to. Where that cannot be true, or fewer messages are found than
processes have told of, it is read from its start: a message that comes back twice is crawled twice, one
that does not is lost. What is not there either is said, and stays counted as parked.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

from site_spider import runtime
from site_spider.contracts.seed_log import Headers, Message, MessagePlace, Partition, Producer, SeedLog
from site_spider.errors import SinkRejected, SiteSpiderError
from site_spider.results.dead_letters import headers_of
from site_spider.seed.seed import MOVED, carried
from site_spider.seed.topics import CrawlTopics
from site_spider.tasks.board import RETURNED, Board, note_key
from site_spider.tasks.control_log import Endings, make_ordered, read_endings, written
from site_spider.tasks.declaration import Phase, Returned
from site_spider.tasks.ending import Moved, TaskEnding
from site_spider.tasks.follower import ORIGIN_HEADER, TASK_HEADER, read_board
from site_spider.tasks.tracker import Group, GroupWork

logger = logging.getLogger(__name__)

_MOST_UNDER_WAY = 2_000
_NOTE_EVERY = 5_000  # messages
_NOTE_SECONDS = 2.0
_STILL_SECONDS = 10.0  # without a note: who was at work has died
_LOOK_SECONDS = 0.5
_HEARD_SECONDS = 1.0  # in which processes hear of a new state; else they park again what comes back


def put_back(log: SeedLog, topics: CrawlTopics, task_ids: Collection[str]) -> int:
    """Put back what is parked of these tasks; how many messages. Blocks; raises LogUnavailable.

    To be called when their new state is written.
    """
    if not log.partitions(topics.parked):
        return 0
    board = read_board(log, topics.tasks)
    left, count = {task_id for task_id in task_ids if board.was_parked(task_id)}, 0
    with closing(log.producer()) as producer:
        returning = _Returning(log, producer, topics)
        while left:
            mine = returning.claim(left)
            count += returning.put_back() if mine else 0
            left -= mine
    return count


class _Work:
    """One task: how many messages wait, and how far they are put back."""

    def __init__(
        self, task_id: str, board: Board, ending: TaskEnding, parked: str, ends: Mapping[int, int], topic_id: str
    ) -> None:
        self.task_id = task_id
        self.before = board.returned(task_id)
        self.waiting = board.waiting(task_id)
        self.count = self.refused = 0
        self.highs: dict[Partition, int] = {}  # of what was put back
        self._parked, self._ending = parked, ending
        self.starts = {int(number): offset for number, offset in self.before.offsets.items()}
        for part, passed in ending.moved.passed.items():  # a later word is gone: decision 0025
            if part.topic == parked and part.number in self.starts:
                self.starts[part.number] = min(passed, self.starts[part.number])
        is_other = topic_id and self.before.topic_id and topic_id != self.before.topic_id
        if is_other or any(offset > ends.get(number, 0) for number, offset in self.starts.items()):
            logger.warning("The topic of parked messages of task %s was made anew: read anew", task_id)
            self.starts = {}

    @property
    def has_ended(self) -> bool:
        """Its end was told, and nothing that counts was waiting."""
        return self._ending.is_told and not self.missing

    @property
    def missing(self) -> int:
        """How many messages processes have told of that were not put back."""
        return max(0, self.waiting - self.before.cleared - self.before.found - self.count)

    def offsets(self, read_to: Mapping[int, int]) -> dict[int, int]:
        """Of each partition: the first that was not looked at."""
        numbers = read_to.keys() | self.starts.keys()
        return {number: max(read_to.get(number, 0), self.starts.get(number, 0)) for number in numbers}

    def moved(self, read_to: Mapping[int, int]) -> Moved:
        """How far it is, and where its messages are: with what those before have said."""
        told = TaskEnding(moved=self._ending.moved)
        passed = {Partition(self._parked, number): at for number, at in self.offsets(read_to).items() if at}
        told.read(0, Moved(passed, self.highs))
        ahead = {part: high for part, high in told.moved.highs.items() if high > self._ending.tallied(part)}
        return Moved(told.moved.passed, ahead)

    def returned(self, read_to: Mapping[int, int], by: str, topic_id: str, *, is_last: bool) -> Returned:
        """The same for the task topic; the last one has looked for everything."""
        update: dict[str, Any] = {
            "found": self.before.found + self.count,
            "offsets": {str(number): offset for number, offset in self.offsets(read_to).items()},
            "topic_id": topic_id,
            "by": by,
        }
        if is_last:
            missing = self.before.missing + self.missing
            waited = max(0, self.waiting - missing)
            ahead = max(0, self.before.cleared + update["found"] - self.waiting)  # of what processes will tell of
            update |= {"found": ahead, "missing": missing, "waited": waited}
        return self.before.model_copy(update=update)


class _Returning:
    """Works for several tasks at once, so that the topic is read once."""

    def __init__(self, log: SeedLog, producer: Producer, topics: CrawlTopics) -> None:
        self._log, self._producer, self._topics = log, producer, topics
        self._name = runtime.token_hex(6)
        self._numbers = itertools.count(1)  # of its notes
        self._works: dict[bytes, _Work] = {}  # by the header of their messages
        self._under_way: deque[tuple[Message, _Work, Future[MessagePlace]]] = deque()
        self._read_to: dict[int, int] = {}  # of each partition: the first that was not looked at
        self._ends: Mapping[int, int] = {}
        self._topic_id = ""
        self._note_at = 0.0
        self._unnoted = 0

    # --- whose work it is ---------------------------------------------------------------------

    def claim(self, task_ids: Collection[str]) -> set[str]:
        """Those tasks that nobody else works for; waits until there are some, or somebody stands still."""
        board, free = self._free(task_ids)
        claims = {task_id: board.returned(task_id).model_copy(update={"by": self._by()}) for task_id in free}
        self._write_notes(claims)
        # who has claimed it at the same moment has done so by then: the last one has it
        runtime.sleep(_HEARD_SECONDS)
        board = read_board(self._log, self._topics.tasks)
        mine = {task_id for task_id in free if board.returned(task_id).by.startswith(self._name)}
        self._begin(mine, board)
        return mine

    def _free(self, task_ids: Collection[str]) -> tuple[Board, set[str]]:
        since: dict[tuple[str, str], float] = {}  # when it was first seen who is at work for a task
        while True:
            board, now = read_board(self._log, self._topics.tasks), runtime.monotonic()
            since = {one: since.get(one, now) for one in ((each, board.returned(each).by) for each in task_ids)}
            free = {task_id for task_id, by in since if not by}
            if free := free or {task_id for (task_id, _), at in since.items() if now - at > _STILL_SECONDS}:
                return board, free
            runtime.sleep(_LOOK_SECONDS)

    def _by(self) -> str:
        return f"{self._name}.{next(self._numbers)}"

    # --- the work -----------------------------------------------------------------------------

    def _begin(self, task_ids: Collection[str], board: Board) -> None:
        parked = self._topics.parked
        self._topic_id = self._log.topic_id(parked)
        ends = {part.partition.number: part.end for part in self._log.progress(parked, None)}
        self._ends = ends
        endings = self._hold_ends(task_ids, ends)
        known = {each: endings.get(each) or TaskEnding() for each in task_ids}
        works = [_Work(each, board, ending, parked, ends, self._topic_id) for each, ending in known.items()]
        self._works = {work.task_id.encode(): work for work in works}
        self._read_to = {n: min(work.starts.get(n, 0) for work in works) for n in ends if works}
        self._note_at = runtime.monotonic() + _NOTE_SECONDS

    def _hold_ends(self, task_ids: Collection[str], ends: Mapping[int, int]) -> Endings:
        """Ends wait from now on: a process may have sent on itself what is put back, and tell of that alone."""
        highs = {Partition(self._topics.parked, number): end for number, end in ends.items() if end}
        before = read_endings(self._log, self._topics)
        open_ones = [each for each in task_ids if (ending := before.get(each)) is not None and not ending.is_told]
        self._write(self._topics.control, (written(each, Moved(highs=highs)) for each in open_ones))
        return read_endings(self._log, self._topics) if open_ones else before

    def put_back(self) -> int:
        """Do it for the tasks that were claimed; how many messages."""
        works = [work for work in self._works.values() if not work.has_ended]
        try:
            self._read(works, is_again=False)
            again = [work for work in works if work.missing > work.refused and any(work.starts.values())]
            for work in again:
                logger.warning(
                    "%d parked messages of task %s were not found where they should be: the topic is read "
                    "from its start, and some may come back twice", work.missing, work.task_id,
                )  # fmt: skip
            self._read(again, is_again=True)
            self._note(by="", is_last=True)
        except BaseException:
            with suppress(SiteSpiderError):  # others need not wait
                self._note(by="")
            raise
        for work in works:
            if work.missing:
                logger.error(
                    "%d messages of task %s that were parked in %s were not put back",
                    work.missing, work.task_id, self._topics.parked,
                )  # fmt: skip
        return sum(work.count for work in works)

    def _read(self, works: Collection[_Work], *, is_again: bool) -> None:
        """From where each was read to; or again, what lies before that."""
        starts = {Partition(self._topics.parked, number): at for number, at in self._read_to.items()}
        for message in self._log.read(self._topics.parked, {} if is_again else starts) if works else ():
            number = message.partition.number
            work = self._works.get(dict(message.headers).get(TASK_HEADER, b""))
            if work is not None and work in works and is_again == (message.offset < work.starts.get(number, 0)):
                self._send(message, work)
            if not is_again:
                self._read_to[number] = message.offset + 1
            if self._unnoted >= _NOTE_EVERY or runtime.monotonic() >= self._note_at:
                self._note(by=self._by())
        if not is_again:
            self._read_to |= {number: max(end, self._read_to.get(number, 0)) for number, end in self._ends.items()}
        self._settle(most=0)

    def _send(self, message: Message, work: _Work) -> None:
        headers = ((MOVED, b""), *carried(message.headers))
        sent = self._producer.send(self._topic_of(message), message.key, message.value, headers)
        self._under_way.append((message, work, sent))
        self._settle(most=_MOST_UNDER_WAY)

    def _settle(self, most: int) -> None:
        """Wait for the oldest, until so many are under way at most."""
        while len(self._under_way) > most:
            message, work, future = self._under_way[0]  # where it stays if that fails: no note passes it
            try:
                place = future.result()
            except SinkRejected as error:
                self._set_aside(
                    message, work, f"{message.partition} offset {message.offset} cannot be put back: {error}"
                )
            else:
                work.count += 1
                self._unnoted += 1
                work.highs[place.partition] = max(place.offset + 1, work.highs.get(place.partition, 0))
            self._under_way.popleft()

    def _topic_of(self, message: Message) -> str:
        """Where it was; releases before did not say where."""
        origin = dict(message.headers).get(ORIGIN_HEADER, b"").decode(errors="replace")
        return origin if origin in self._topics.tiers else self._topics.seeds

    def _set_aside(self, message: Message, work: _Work, reason: str) -> None:
        origin = Partition(self._topic_of(message), message.partition.number)
        headers = headers_of(replace(message, partition=origin), reason)
        try:
            self._producer.send(self._topics.dead_letters, message.key, message.value, headers).result()
        except SinkRejected:
            logger.error("%s; it stays there", reason)  # noqa: TRY400
            work.refused += 1
        else:
            logger.warning("Dead letter: %s", reason)
            work.count += 1

    # --- what is told -------------------------------------------------------------------------

    def _note(self, by: str, *, is_last: bool = False) -> None:
        """The ends of tasks wait for these seeds where they are now, and no more for where they were."""
        self._settle(most=0)
        make_ordered(self._log, self._topics, self._topics.control)
        works, read_to = self._works.values(), self._read_to
        self._write(self._topics.control, (written(work.task_id, work.moved(read_to)) for work in works))
        notes = {work.task_id: work.returned(read_to, by, self._topic_id, is_last=is_last) for work in works}
        self._write_notes(notes)
        self._note_at, self._unnoted = runtime.monotonic() + _NOTE_SECONDS, 0

    def _write_notes(self, notes: Mapping[str, Returned]) -> None:
        said = ((note_key(task_id, RETURNED), note.value(), ()) for task_id, note in notes.items())
        self._write(self._topics.tasks, said)

    def _write(self, topic: str, records: Iterable[tuple[bytes, bytes | None, Headers]]) -> None:
        for sent in [self._producer.send(topic, *record) for record in records]:
            sent.result()


# --- return watch ----------------------------------------------------------------------------------------
# Puts parked messages back where no command does: their task has expired, or the command was killed.
#
# The same where the end of a task waits for the parked topic although nothing of it waits there: who closed
# the task saw a message that its process had parked, and not yet that the process sent it on.

_QUIET_SECONDS = 10.0  # in which nobody tells that he puts messages of a task back, and its phase is the same
_MOST_PUT_BACK = 1_000  # tasks at once


class ParkedWatch(GroupWork):
    """Puts back what waits although its task goes on."""

    every_seconds = 0.2

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._look_at = 0.0
        # of tasks that go on, with parked messages: since when
        self._news: dict[str, tuple[Returned, Phase, float]] = {}
        self._in_vain: set[str] = set()  # of these: what could not be put back, because the topic is gone, say
        self._work: asyncio.Task[None] | None = None

    def heard(self, task_ids: Collection[str]) -> None:
        now = asyncio.get_running_loop().time()
        for task_id in task_ids:
            if self._board.has_parked(task_id):
                self._in_vain.discard(task_id)
                self._hear(task_id, now)
            else:
                self._news.pop(task_id, None)

    def _hear(self, task_id: str, now: float) -> None:
        said, phase = self._board.returned(task_id), self._board.phase(task_id)
        if phase.name == "paused":  # a record tells when it goes on
            self._news.pop(task_id, None)
        elif (known := self._news.get(task_id)) is None or known[0] is not said or known[1] != phase:
            self._news[task_id] = said, phase, now

    @property
    def is_waiting(self) -> bool:
        """Whether it is going to put something back that it has not tried in vain."""
        return self._has_first() and not self._news.keys() <= self._in_vain

    def look(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._look_at:
            self._look_at = now + _QUIET_SECONDS
            for task_id in self._control.endings.waiting_for(self._topics.parked):
                self._hear(task_id, now)
            self._in_vain &= self._news.keys()
        is_at_work = self._work is not None and not self._work.done()
        if not self._news or is_at_work or not self._has_first():
            return
        before = now - _QUIET_SECONDS
        if due := [task_id for task_id, (*_, heard) in self._news.items() if heard < before]:
            self._work = self._background.start(self._put_back(due[:_MOST_PUT_BACK]), "parked messages")

    async def _put_back(self, task_ids: Collection[str]) -> None:
        said = "task " + ", ".join(list(task_ids)[:3]) + (", ..." if len(task_ids) > 3 else "")
        in_vain: Collection[str] = ()
        try:
            count = await asyncio.to_thread(put_back, self._log, self._topics, task_ids)
        except SiteSpiderError as error:
            logger.warning("Parked messages of %s cannot be put back now: %s", said, error)
        else:
            logger.info("Put back %d parked messages of %s", count, said)
            in_vain = () if count else task_ids  # else what is left may have been parked meanwhile
        for task_id in task_ids:  # if something is left, not at once
            self._news.pop(task_id, None)
        self.heard(task_ids)
        self._in_vain.update(in_vain)
