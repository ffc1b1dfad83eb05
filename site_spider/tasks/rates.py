"""How processes share the rate of a task. Pure: time is an argument, in seconds of the event loop's clock.

Theory. A process that has requests of a task with a rate tells its pace once a second: how many requests a
second begin here, and whether the rate holds back further ones. Processes that are not held back leave the
rest of the rate to those that are, in equal parts. So a task of one host has its whole rate in the process
that owns the host. The records have one order, and whoever is active repeats its own: when a process has read
for a moment what it tells itself, it knows all others. Until then, and while the topic cannot be read, its
part is that of the partitions that it has. These parts add up to the rate as well, so it is not exceeded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from itertools import islice
from typing import Any

from site_spider.bounded import BoundedDict
from site_spider.contracts.seed_log import MessagePlace, Partition
from site_spider.engine.background import Turns
from site_spider.errors import SiteSpiderError
from site_spider.frontier.scheduler import Queues
from site_spider.frontier.waiter import TaskFlow, TaskRates, Waiter, flow_of, is_fenced
from site_spider.ledger.completion import Completion
from site_spider.ledger.ledger import Outcome, SeedInFlight
from site_spider.seed.seed import moved_headers
from site_spider.tasks.board import Board, pace_key
from site_spider.tasks.declaration import Pace
from site_spider.tasks.parking import key_of
from site_spider.tasks.tracker import Group

TELL_SECONDS = 1.0
_STALE_SECONDS = 4.0  # without a word, a process is gone, or this one does not hear
_KNOWN_SECONDS = 1.5  # of hearing oneself, before all others are known
_HELD_SECONDS = 1.5  # since the rate held something back
_WINDOW_SECONDS, _LONGEST_WINDOW_SECONDS = 3.0, 60.0  # over which requests are counted
_WINDOW_REQUESTS = 6.0  # that it has at the task's rate, if it does not become too long
_LEAST_SHARE = 0.02  # of the rate, for who comes while others use all of it and have not heard yet
_MOST_TASKS = 200  # in one go


def part(rate: float, others: Iterable[Pace]) -> float:
    """What one process may take of a rate, by what the others tell."""
    paces = list(others)
    rest = rate - sum(pace.per_second for pace in paces if not pace.is_held)
    return max(rest, _LEAST_SHARE * rate) / (1 + sum(pace.is_held for pace in paces))


class _Here:
    """One task in this process."""

    def __init__(self) -> None:
        self.begun: deque[tuple[float, int]] = deque()  # moments, and how many had begun
        self.heard: dict[str, tuple[Pace, float]] = {}  # by process, and when that was new
        self.known_at: float | None = None  # since when this process hears itself

    def pace(self, now: float, begun: int, rate: float, *, is_held: bool) -> Pace:
        """What the others are told."""
        window = min(_LONGEST_WINDOW_SECONDS, max(_WINDOW_SECONDS, _WINDOW_REQUESTS / rate))
        self.begun.append((now, begun))
        while len(self.begun) > 2 and self.begun[1][0] <= now - window:
            self.begun.popleft()
        since, before = self.begun[0]
        return Pace.of((begun - before) / max(now - since, TELL_SECONDS), is_held=is_held)

    def fresh(self, paces: dict[str, Pace], now: float) -> dict[str, Pace]:
        """What was told of late; whoever is active repeats it, as a new record."""
        before = self.heard
        self.heard = {
            process: before[process] if process in before and before[process][0] is pace else (pace, now)
            for process, pace in paces.items()
        }
        return {process: pace for process, (pace, at) in self.heard.items() if now - at < _STALE_SECONDS}


class GroupRates:
    """Tells the others what begins here of tasks with a rate. On the event loop's thread only."""

    def __init__(
        self, board: Board, rates: TaskRates, process: str, send: Callable[[bytes, bytes | None], object]
    ) -> None:
        self._board = board
        self._rates = rates
        self._process = process
        self._send = send
        self._here: dict[str, _Here] = {}

    def look(self, now: float) -> None:
        """To be called every second (`TELL_SECONDS`), at a time of the event loop."""
        active = dict(islice(self._active(now), _MOST_TASKS))
        for task_id in self._here.keys() - active.keys():
            self._leave(task_id)
        for task_id, rate in active.items():
            self._share(task_id, rate, now)

    def close(self) -> None:
        """The others need not wait until this process is forgotten."""
        for task_id in list(self._here):
            self._leave(task_id)

    def _active(self, now: float) -> Iterator[tuple[str, float]]:
        for task_id in self._rates.active(now - _LONGEST_WINDOW_SECONDS):
            rate = self._board.rate_of(task_id)
            if rate is not None:
                yield task_id, rate

    def _leave(self, task_id: str) -> None:
        del self._here[task_id]
        self._rates.share(task_id, None)
        self._send(pace_key(task_id, self._process), None)

    def _share(self, task_id: str, rate: float, now: float) -> None:
        here = self._here.setdefault(task_id, _Here())
        use = self._rates.use(task_id)
        pace = here.pace(now, use.begun, rate, is_held=now - use.held_at < _HELD_SECONDS)
        self._send(pace_key(task_id, self._process), pace.value())
        others = here.fresh(self._board.paces(task_id), now)
        if others.pop(self._process, None) is None:
            here.known_at = None
        elif here.known_at is None:
            here.known_at = now
        is_known = here.known_at is not None and now - here.known_at >= _KNOWN_SECONDS
        self._rates.share(task_id, part(rate, others.values()) if is_known else None)


# --- overtaking ------------------------------------------------------------------------------------------
# Lets a task of which nothing was polled overtake those whose seeds fill all that may be in flight.
#
# Theory of operation. Tasks share what was polled. When all that may be in flight is taken, and a task is
# known of which nothing is among it, the tasks with more than their share give seeds away: these go to the
# end of their topic, as spilled links do, and are complete here. So the next seeds are polled, until there
# is one of the task, or the log was read as far as it reached when this began. It ends in any case, since
# what is moved lies behind that end, and a task is looked for once as long as there is no news of it.
#
# The oldest seeds leave: else they would hold the watermark, and a partition pauses when what is polled
# next is too far ahead of it (SITE_MAX_SPAN_OFFSETS).
#
# A task is known to have seeds in the log when its producers have said how far these reach. It is believed
# to have some when it is declared, running, and no process has counted one of them.

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_IN_VAIN_SECONDS = 3.0  # between two looks at all that waits, when nothing of it can leave
_SEND_SECONDS = 60.0
_PAUSE_SECONDS = 0.05  # while seeds are polled
_MOST_LOOKED_FOR = 10_000
_MOST_LOOKED_AT = 1_000  # tasks, those declared or named last
_KEPT_SHARE = 1 / 2  # of its share, that a task keeps: so many more are polled in one go


class Overtaking:
    """On the event loop's thread only."""

    every_seconds = 0.0

    def __init__(
        self,
        group: Group,
        consumer_group: str,
        completion: Completion,
        queues: Queues,
        is_full: Callable[[], bool],  # what may be in flight
        may_poll: Callable[[], bool],  # false also when the crawl stops
    ) -> None:
        self._log, self._producer, _, self._board, control, *_ = group
        self._background = group.background
        self._endings, self._put = control.endings, control.put
        self._group = consumer_group
        self._completion, self._queues = completion, queues
        self._is_full, self._may_poll = is_full, may_poll
        self._ledger = completion.ledger
        self._loop = asyncio.get_running_loop()
        # what was known of a task when that was over
        self._looked_for: BoundedDict[str, object] = BoundedDict(_MOST_LOOKED_FOR)
        self._work: asyncio.Task[None] | None = None
        self._look_at = 0.0

    def look(self) -> None:
        if not self._is_full() or (self._work is not None and not self._work.done()):
            return
        if self._loop.time() < self._look_at:
            return
        self._look_at = self._loop.time() + _LOOK_SECONDS
        for task_id in self._awaited():
            self._work = self._background.start(self._let_overtake(task_id), "overtaking")
            return

    def _awaited(self) -> Iterator[str]:
        """Those of which something is to come, and nothing is here."""
        named = list(self._endings)[-_MOST_LOOKED_AT:]
        declared = islice(reversed(self._board.tasks), _MOST_LOOKED_AT)
        for task_id in {**dict.fromkeys(reversed(named)), **dict.fromkeys(declared)}:
            is_news = self._is_certain(task_id) or self._looked_for.get(task_id) != self._known_of(task_id)
            if is_news and self._is_awaited(task_id):
                yield task_id

    def _is_certain(self, task_id: str) -> bool:
        """Whether its producers have said that seeds of it are to be polled here."""
        ending = self._endings.get(task_id)
        return ending is not None and not ending.is_told and self._is_below(ending.highs)

    def _is_awaited(self, task_id: str) -> bool:
        board, ending = self._board, self._endings.get(task_id)
        if board.phase(task_id).name != "running" or self._is_here(task_id):
            return False
        if self._is_certain(task_id):
            return True
        if ending is not None and ending.is_told:
            return False
        is_unknown = ending is None or bool(ending.sending) or not ending.highs
        return is_unknown and board.task(task_id) is not None and not board.used(task_id).seeds

    def _known_of(self, task_id: str) -> object:
        ending = self._endings.get(task_id)
        return self._board.task(task_id), {} if ending is None else dict(ending.highs)

    def _is_here(self, task_id: str) -> bool:
        return self._queues.room.frontier.has_flow(lambda flow: isinstance(flow, TaskFlow) and flow.task_id == task_id)

    def _is_below(self, positions: Mapping[Partition, int]) -> bool:
        """Whether something below these positions is to be polled here."""
        return any(
            (self._ledger.next_offset(partition) or 0) < position
            for partition, position in positions.items()
            if self._ledger.epoch(partition) is not None
        )

    @property
    def _left(self) -> int:
        """How many seeds are complete because they have left."""
        return self._ledger.outcomes[Outcome.SPILLED]

    async def _let_overtake(self, task_id: str) -> None:
        try:
            ends = await asyncio.to_thread(self._ends)
        except SiteSpiderError as error:
            logger.debug("The ends of the seed topics are not known now: %s", error)
            return
        awaited, moved = {each: self._known_of(each) for each in self._awaited()}, 0
        while self._may_poll() and self._is_awaited(task_id) and self._is_below(ends):
            if self._is_full():
                count = await self._move(task_id)
                moved += count
                if not count:
                    self._look_at = self._loop.time() + _IN_VAIN_SECONDS
                    break
            await asyncio.sleep(_PAUSE_SECONDS)
        if not self._is_below(ends):
            self._looked_for.update(awaited)  # also those that were found last: their counts are told later
        elif task_id in awaited and not self._is_awaited(task_id):  # found
            self._looked_for[task_id] = awaited[task_id]
        if moved:
            logger.info(
                "%d seeds of other tasks were sent to the end of their topic, so that task %s is reached",
                moved,
                task_id,
            )

    def _ends(self) -> dict[Partition, int]:
        topics = {partition.topic for partition in self._ledger.partitions()}
        return {each.partition: each.end for topic in topics for each in self._log.progress(topic, self._group)}

    async def _move(self, task_id: str) -> int:
        """Send away what other tasks have beyond their share; how many seeds."""
        below, left = await self._below(task_id), self._left
        count, turns = 0, Turns.of_running_loop()

        def leaves(waiter: Waiter) -> bool:
            if not isinstance(waiter, SeedInFlight) or not self._may_leave(waiter):
                return False
            return waiter.offset < below.get((flow_of(waiter), waiter.partition), 0)

        for found in self._queues.take_out(leaves):
            for waiter in found:
                assert isinstance(waiter, SeedInFlight)
                count += 1
                self._send(waiter)
                if not turns.has_time():
                    await turns.time()
        deadline = self._loop.time() + _SEND_SECONDS  # then they stay in flight, and are repeated
        # counted where seeds end, in many ways
        while (  # noqa: ASYNC110
            self._left < left + count and self._loop.time() < deadline and self._may_poll()
        ):
            await asyncio.sleep(_PAUSE_SECONDS)
        return count

    async def _below(self, task_id: str) -> dict[tuple[TaskFlow | None, Partition], int]:
        """Of each task and partition: the offset below which its seeds leave; nothing if the task is here."""
        offsets: defaultdict[TaskFlow | None, defaultdict[Partition, list[int]]]
        offsets = defaultdict(lambda: defaultdict(list))

        def note(waiter: Waiter) -> bool:
            if isinstance(waiter, SeedInFlight) and self._may_leave(waiter):
                offsets[flow_of(waiter)][waiter.partition].append(waiter.offset)
            return False

        turns = Turns.of_running_loop()
        for _ in self._queues.take_out(note):
            if not turns.has_time():
                await turns.time()
        if any(flow is not None and flow.task_id == task_id for flow in offsets):
            return {}
        totals = {flow: sum(map(len, of_flow.values())) for flow, of_flow in offsets.items()}
        share = sum(totals.values()) / (len(totals) + 1)
        below = {}
        for flow, of_flow in offsets.items():
            total = totals[flow]
            if total <= share:
                continue
            for partition, found in of_flow.items():
                found.sort()
                leave = len(found) - int(_KEPT_SHARE * share * len(found) / total)
                below[flow, partition] = found[leave - 1] + 1 if leave else 0
        return below

    def _may_leave(self, waiting: SeedInFlight) -> bool:
        """A seed that was under way when a process died stays: elsewhere nobody would know of that."""
        return waiting.live and not self._ledger.of_partition(waiting.partition).suspicion.deaths(waiting.offset)

    def _send(self, waiting: SeedInFlight) -> None:
        if is_fenced(waiting):
            self._queues.room.drop(waiting)
            return
        message, headers = waiting.message, moved_headers(waiting.seed, waiting.message)
        self._completion.tell("leaves", waiting)
        sent = self._producer.send(message.partition.topic, key_of(waiting), message.value, headers)
        self._background.when_done(sent, self._sent, waiting)

    def _sent(self, sent: Future[Any], waiting: SeedInFlight) -> None:
        error, task_id = sent.exception(), waiting.seed.task_id
        if error is not None:
            logger.debug("A seed could not be sent to the end of its topic, and stays: %s", error)
            if waiting.live:
                self._queues.room.put(waiting)
            return
        place: MessagePlace | None = sent.result()
        if place is not None and task_id is not None:
            self._put(task_id, place)
        self._completion.end_as(waiting, Outcome.SPILLED)
