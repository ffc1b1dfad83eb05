"""What becomes of one seed, link or request whose task is not to go on with it."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from typing import Any, NamedTuple

from scrapy import Request, Spider

from site_spider import meta_keys, runtime
from site_spider.contracts.seed_log import Headers, Message, MessagePlace, Partition, Producer, SeedLog
from site_spider.engine.background import Background
from site_spider.errors import SinkRejected, SiteSpiderError
from site_spider.frontier.politeness import PoliteFrontier
from site_spider.frontier.spill import Highs, Spill
from site_spider.frontier.waiter import Waiter, WaitingLink, as_request, is_fenced, seed_entry
from site_spider.intake.seed_queue import seed_request
from site_spider.ledger import completion as lineage
from site_spider.ledger.completion import Completion
from site_spider.ledger.ledger import Outcome, SeedInFlight
from site_spider.outage import Outage
from site_spider.page.url import host_of
from site_spider.results.dead_letters import DeadLetters
from site_spider.results.pipeline import Results
from site_spider.seed.seed import MOVED, carried, moved_headers
from site_spider.seed.topics import CrawlTopics
from site_spider.tasks.board import RETURNED, Board, note_key
from site_spider.tasks.budgets import CANCELLED, TaskState, TaskStates
from site_spider.tasks.control_log import Endings, make_control_log, read_endings, written
from site_spider.tasks.declaration import Returned, Task
from site_spider.tasks.ending import Moved, TaskEnding
from site_spider.tasks.follower import ORIGIN_HEADER, TASK_HEADER, read_board
from site_spider.tasks.tracker import Control

# --- parking ---------------------------------------------------------------------------------------------
# Parks messages of paused tasks, so that none is lost to a task that goes on at the same moment.
#
# Theory (decision 0018). A message is safe when three things have happened in this order: its copy in the
# parked topic is durable; this process has told on the task topic that it has parked so many; it has read
# that back, and the task is paused still. Whoever resumes the task writes so to the same topic first, and
# then looks at the parked topic. If that record comes before what was read back, it is known here, and the
# message goes to the seed topic as well. If it comes behind, the copy was durable before, and is found.


class _Parked(NamedTuple):
    task_id: str
    origin: str
    key: bytes | None
    value: bytes
    headers: Headers
    done: Future[Any]
    task: Task | None  # as declared when it was parked
    number: int = 0
    place: MessagePlace | None = None


def _stays(state: TaskState, parked: _Parked) -> bool:
    """Whether a message waits in the parked topic.

    A budget may have room again because others gave back what they had claimed. Nobody has looked there
    then: it is put back by and by (`ParkedWatch`), and not crawled twice.
    """
    is_same = parked.task is not None and state.task == parked.task
    return state.phase.name == "paused" or (is_same and not state.phase.is_over)


class Parking:
    """Fulfils `ParkedTopic` of frontier.spill. On the event loop's thread only."""

    def __init__(
        self,
        producer: Producer,
        topics: CrawlTopics,
        states: TaskStates,
        background: Background,
        highs: Highs | None = None,
    ) -> None:
        self._highs = highs
        self.topic = topics.parked
        self._producer = producer
        self._states = states
        self._background = background
        self._unproved: dict[str, deque[_Parked]] = {}  # by task

    def send(self, task_id: str, origin: str, key: bytes | None, value: bytes, headers: Headers) -> Future[Any]:
        parked = _Parked(task_id, origin, key, value, headers, Future(), self._states.board.task(task_id))
        whose = (TASK_HEADER, task_id.encode()), (ORIGIN_HEADER, origin.encode())
        sent = self._producer.send(self.topic, key, value, [*whose, *carried(headers)])
        self._background.when_done(sent, self._durable, parked)
        return parked.done

    def _durable(self, sent: Future[Any], parked: _Parked) -> None:
        if (error := sent.exception()) is not None:
            parked.done.set_exception(error)
            return
        state = self._states.of(parked.task_id)
        if state is None:  # it was forgotten meanwhile
            self._send_on(parked)
            return
        numbered = parked._replace(number=state.count("parked"), place=sent.result())
        self._unproved.setdefault(parked.task_id, deque()).append(numbered)
        self._states.tell_soon()

    def changed(self, task_ids: Collection[str]) -> None:
        """Records have come, and the phases of these tasks are known."""
        for task_id in task_ids:
            waiting = self._unproved.get(task_id)
            if not waiting:
                continue
            state = self._states.of(task_id)
            mine = None if state is None else self._states.board.usage(task_id, state.process)
            while waiting and (state is None or (mine is not None and waiting[0].number <= mine.parked)):
                parked = waiting.popleft()
                if state is not None and _stays(state, parked):
                    self._finish(parked, parked.place)
                else:
                    if state is not None:
                        state.count("sent_on")
                    self._send_on(parked)
            if not waiting:
                del self._unproved[task_id]

    def _finish(self, parked: _Parked, place: MessagePlace | None) -> None:
        """The end of its task waits for the message where it is."""
        if self._highs is not None and place is not None:
            self._highs.put(parked.task_id, place)
        parked.done.set_result(None)

    def _send_on(self, parked: _Parked) -> None:
        headers = ((MOVED, b""), *carried(parked.headers))
        sent = self._producer.send(parked.origin, parked.key, parked.value, headers)
        self._background.when_done(sent, self._is_back, parked)

    def _is_back(self, sent: Future[MessagePlace], parked: _Parked) -> None:
        if (error := sent.exception()) is not None:
            parked.done.set_exception(error)
        else:
            self._finish(parked, sent.result())


logger = logging.getLogger(__name__)

_TRY_AGAIN_SECONDS = 10.0


def key_of(waiting: SeedInFlight) -> bytes | None:
    """The key with which a seed leaves: its own, or its host."""
    key = waiting.message.key
    return key if key is not None else host_of(waiting.seed.url).encode() or None


class Leaving:
    """On the event loop's thread only. What it is given has left the frontier, and holds its seed."""

    def __init__(  # noqa: PLR0913 - it knows all ways out
        self,
        spider: Spider,
        completion: Completion,
        room: PoliteFrontier,
        spill: Spill,
        parking: Parking,
        results: Results,
        dead_letters: DeadLetters,
        background: Background,
        *,
        control: Control | None,
        writes_cancelled: bool,
    ) -> None:
        self._spider = spider
        self._completion = completion
        self._room = room
        self._spill = spill
        self._parking = parking
        self._results = results
        self._dead_letters = dead_letters
        self._background = background
        self._control = control  # None: seeds are not counted
        self._writes_cancelled = writes_cancelled
        self._cancelled: list[tuple[Waiter, TaskState]] = []  # they may have been counted before
        self._away = Outage(logger, f"{parking.topic} takes no seeds of paused tasks, which wait here", "It takes them")

    # --- parked -----------------------------------------------------------------------------------

    def park(self, waiter: Waiter, state: TaskState) -> None:
        """It waits in the parked topic; what no message can say stays, and goes on."""
        if isinstance(waiter, SeedInFlight):
            self._park_seed(waiter, state.task.task_id)
            return
        request, is_link = self._request(waiter), True
        job = lineage.job_of(request)
        assert job is not None
        if isinstance(waiter, Request):
            is_link = lineage.is_first_attempt(request, job)
        request.meta[meta_keys.TO_TOPIC] = self._parking.topic
        if not self._spill.send(request, job, is_link=is_link):
            del request.meta[meta_keys.TO_TOPIC]
            request.meta[meta_keys.STAYS] = True
            self._room.put_request(request)

    def _park_seed(self, waiting: SeedInFlight, task_id: str) -> None:
        message, headers = waiting.message, moved_headers(waiting.seed, waiting.message)
        self._completion.leaves(waiting)
        future = self._parking.send(task_id, message.partition.topic, key_of(waiting), message.value or b"", headers)
        self._background.when_done(future, self._parked, waiting)

    def _parked(self, future: Future[None], waiting: SeedInFlight) -> None:
        error = future.exception()
        if error is None:
            self._away.is_over()
            self._completion.end_as(waiting, Outcome.SPILLED)
        elif isinstance(error, SinkRejected):
            reason = f"its task is paused, and it cannot be parked: {error}"
            self._dead_letters.set_aside(waiting.message, reason, waiting)
        elif waiting.live and not self._room.is_closed:  # else it is repeated
            self._away.goes_on(error)
            self._room.put_seed(waiting, asyncio.get_running_loop().time() + _TRY_AGAIN_SECONDS)

    # --- cancelled, filtered --------------------------------------------------------------------------

    def cancel(self, waiter: Waiter, state: TaskState) -> None:
        """It ends here, and is counted."""
        state.count("links_cancelled", _is_link(waiter))
        if not self._writes_cancelled:
            self._end(waiter, Outcome.CANCELLED, "")
        elif self._control is None:
            self._end(waiter, Outcome.CANCELLED, _why_cancelled(state))
        else:
            self._cancelled.append((waiter, state))
            if len(self._cancelled) == 1:
                self._control.when_read(self._end_cancelled)

    def _end_cancelled(self) -> None:
        """A seed that was counted and not committed comes again; its documents are there, and stay."""
        cancelled, self._cancelled = self._cancelled, []
        for waiter, state in cancelled:
            if is_fenced(waiter):
                self._room.drop(waiter)
            else:
                was_counted = self._was_counted(waiter, state.task.task_id)
                self._end(waiter, Outcome.CANCELLED, "" if was_counted else _why_cancelled(state))

    def _was_counted(self, waiter: Waiter, task_id: str) -> bool:
        entry = seed_entry(waiter)
        ending = None if self._control is None else self._control.get(task_id)
        if entry is None or ending is None or (tally := ending.tallies.get(entry.partition)) is None:
            return False
        return tally.has_counted(entry.offset)

    def filter(self, waiter: Waiter, state: TaskState) -> None:
        """The rules of its task do not let it be fetched."""
        state.count("links_filtered", _is_link(waiter))
        self._end(waiter, Outcome.FILTERED, "")

    def _end(self, waiter: Waiter, outcome: Outcome, description: str) -> None:
        """With a description there is a failure result."""
        if isinstance(waiter, SeedInFlight):
            self._end_seed(waiter, outcome, description)
        elif isinstance(waiter, WaitingLink) and not description:
            self._spill.give_up(*as_request(waiter))
            self._completion.release(waiter.parent.entry)
        else:
            self._end_request(self._request(waiter), outcome, description)

    def _end_seed(self, waiting: SeedInFlight, outcome: Outcome, description: str) -> None:
        self._completion.ledger.decide(waiting, outcome)
        if description:
            _, job = seed_request(waiting, self._spider)
            job.error = description
            self._results.write_missing(job)
        self._completion.release(waiting)

    def _end_request(self, request: Request, outcome: Outcome, description: str) -> None:
        job = lineage.job_of(request)
        assert job is not None
        self._spill.give_up(request, job)
        if job.parent is None:
            self._completion.ledger.decide(job.entry, outcome)
        if description:
            job.error = description
        else:
            job.written = True  # no failure result
        self._completion.ended(request)

    def _request(self, waiter: Waiter) -> Request:
        if isinstance(waiter, WaitingLink):
            request, job = as_request(waiter)
            self._completion.begin_job(request, job)
            return request
        assert isinstance(waiter, Request)
        return waiter


def _is_link(waiter: Waiter) -> bool:
    """Also one that has been parked, or sent on."""
    if isinstance(waiter, WaitingLink):
        return True
    found = waiter.seed if isinstance(waiter, SeedInFlight) else lineage.job_of(waiter)
    return found is not None and found.is_link


def _why_cancelled(state: TaskState) -> str:
    return f"{CANCELLED}task {state.task.task_id} is {state.phase.name}"


# --- returning -------------------------------------------------------------------------------------------
# Puts the parked messages of tasks back into the seed topics that they came from, in their order.
#
# Theory. Messages are sent and durable before the record that says so is written. So what is cut short does
# some of it again, and leaves nothing out. How many messages processes had parked is read before the ends
# of the topic: what is parked later is not counted as put back, and somebody does this once more.
#
# One works for a task at a time. It says so in the record of what was put back (`Returned.by`), and renews
# that while it works. Who finds another's name there waits until it is done, or has stood still for too
# long.
#
# The topic is read from where it was read to. Where that cannot be true, or fewer messages are found than
# processes have told of, it is read from its start: a message that comes back twice is crawled twice, one
# that does not is lost. What is not there either is said, and stays counted as parked.

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

    def __init__(self, task_id: str, board: Board, ending: TaskEnding, parked: str) -> None:
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

    def begin_at(self, ends: Mapping[int, int], topic_id: str) -> None:
        """Forget the offsets if they are not of the topic that is there."""
        is_other = topic_id and self.before.topic_id and topic_id != self.before.topic_id
        if is_other or any(offset > ends.get(number, 0) for number, offset in self.starts.items()):
            logger.warning("The topic of parked messages of task %s was made anew: read anew", self.task_id)
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
        self._log = log
        self._producer = producer
        self._topics = topics
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
        before: dict[str, str] = {}
        still_at = 0.0
        while True:
            board = read_board(self._log, self._topics.tasks)
            at_work = {task_id: board.returned(task_id).by for task_id in task_ids}
            free = {task_id for task_id, by in at_work.items() if not by}
            is_still = bool(before) and runtime.monotonic() > still_at
            if not free and is_still:
                free = {task_id for task_id, by in at_work.items() if by == before[task_id]}
            if free:
                return board, free
            if not before or is_still:
                before, still_at = at_work, runtime.monotonic() + _STILL_SECONDS
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
        works = [_Work(each, board, endings.get(each) or TaskEnding(), parked) for each in task_ids]
        for work in works:
            work.begin_at(ends, self._topic_id)
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
        """Back to where it was; releases before did not say where."""
        origin = dict(message.headers).get(ORIGIN_HEADER, b"").decode(errors="replace")
        topic = origin if origin in self._topics.tiers else self._topics.seeds
        headers = ((MOVED, b""), *carried(message.headers))
        sent = self._producer.send(topic, message.key, message.value, headers)
        self._under_way.append((message, work, sent))
        self._settle(most=_MOST_UNDER_WAY)

    def _settle(self, most: int) -> None:
        """Wait for the oldest, until so many are under way at most."""
        while len(self._under_way) > most:
            message, work, future = self._under_way.popleft()
            try:
                place = future.result()
            except SinkRejected as error:
                where = f"{message.partition} offset {message.offset}"
                logger.error("%s cannot be put back, and stays there: %s", where, error)  # noqa: TRY400
                work.refused += 1
            else:
                work.count += 1
                self._unnoted += 1
                work.highs[place.partition] = max(place.offset + 1, work.highs.get(place.partition, 0))

    # --- what is told -------------------------------------------------------------------------

    def _note(self, by: str, *, is_last: bool = False) -> None:
        """The ends of tasks wait for these seeds where they are now, and no more for where they were."""
        self._settle(most=0)
        make_control_log(self._log, self._topics)
        works, read_to = self._works.values(), self._read_to
        self._write(self._topics.control, (written(work.task_id, work.moved(read_to)) for work in works))
        notes = {work.task_id: work.returned(read_to, by, self._topic_id, is_last=is_last) for work in works}
        self._write_notes(notes)
        self._note_at, self._unnoted = runtime.monotonic() + _NOTE_SECONDS, 0

    def _write_notes(self, notes: Mapping[str, Returned]) -> None:
        said = ((note_key(task_id, RETURNED), note.value()) for task_id, note in notes.items())
        self._write(self._topics.tasks, said)

    def _write(self, topic: str, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        for sent in [self._producer.send(topic, key, value) for key, value in records]:
            sent.result()
