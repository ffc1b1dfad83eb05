"""What producers say in the control log of a task: that they begin, that they end, that it is closed.

A task that is known there is counted. So a producer says that it begins before it sends. Whoever closes
the task for all producers says so before it looks for the ends of the topic: a request that is spilled
meanwhile either lies below those ends, or its process has read that the task is known, and waits for its
next tally (tasks.tracker).
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from dataclasses import replace
from functools import partial

from site_spider import runtime
from site_spider.contracts.seed_log import Message, MessagePlace, Partition, Producer, SeedLog
from site_spider.errors import LogUnavailable, SeedError, TopicMissing
from site_spider.outage import Outage, wait_until_there
from site_spider.seed.seed import Seed, parse_seed
from site_spider.seed.topics import CrawlTopics
from site_spider.tasks.control_log import Endings, make_ordered, read_endings, written
from site_spider.tasks.ending import ALL_PRODUCERS, UNKNOWN, Fact, Producing, TakenBack, TaskEnding, prefix_of
from site_spider.tasks.follower import TopicView, read_board

logger = logging.getLogger(__name__)

_ANSWER_SECONDS = 60.0
_COUNT_SECONDS = 10.0


class TaskProducer:
    """One producer of a task's seeds; its name is new each time. All methods block."""

    def __init__(self, log: SeedLog, producer: Producer, topics: CrawlTopics, task_id: str) -> None:
        self._log, self._producer, self._topics, self._task_id = log, producer, topics, task_id
        self._name = runtime.token_hex(6)
        self._highs: dict[Partition, int] = {}
        self._uncounted: dict[Partition, deque[int]] | None = None  # offsets; None: nobody asks for them
        self._counted = Endings(task_id)
        self._was_ending: bool | None = None  # when this one began; None: its word was not read yet
        self._view = TopicView(log, topics.control, self._take)
        self._away = Outage(logger, "Waiting for what is said of ends of tasks", "It was read")

    def waiting(self) -> int:
        """How many of its seeds nobody has counted yet, of those sent since this was first asked."""
        if self._uncounted is None:
            self._uncounted = defaultdict(deque)
        ending = self._read()
        for partition, offsets in self._uncounted.items():
            if (tally := ending.tallies.get(partition)) is not None:
                self._uncounted[partition] = deque(one for one in offsets if not tally.has_counted(one))
        return sum(map(len, self._uncounted.values()))

    def begin(self) -> None:
        """To be called before the first seed is sent. Raises ConfigError, LogUnavailable."""
        make_ordered(self._log, self._topics, self._topics.control)
        self._say(Producing(self._name, is_open=True))

    def sent(self, place: MessagePlace) -> None:
        self._highs[place.partition] = max(place.offset + 1, self._highs.get(place.partition, 0))
        if self._uncounted is not None:
            self._uncounted[place.partition].append(place.offset)

    def end(self, *, closes: bool | None) -> None:
        """All seeds are durable; `closes`: no other producer sends any. None: as it was when this began, or is now."""
        with closing(self._view):
            ending = self._read()
        closes = (bool(self._was_ending) or ending.is_ending) if closes is None else closes
        said = Producing(self._name, is_open=False, closes=closes, highs=dict(self._highs))
        self._say(ending.carried_on(said))
        self._say(TakenBack(self._name, is_open=True), *ending.carried_words(ending.read_to))

    def _read(self) -> TaskEnding:
        """What the log says now, also if it is away for a moment: without its end the task would stay open."""
        wait_until_there(self._view.read_on, LogUnavailable, _ANSWER_SECONDS, self._away)
        return self._counted.get(self._task_id) or TaskEnding()

    def _take(self, message: Message) -> str:
        before = self._counted.get(self._task_id)
        was_ending = before is not None and before.is_ending
        task_id = self._counted.take(message)
        if self._was_ending is None and task_id == self._task_id:
            ending = self._counted.get(task_id)
            if ending is not None and (self._name, True) in ending.words:
                self._was_ending = was_ending
        return task_id

    def close_for_all(self) -> None:
        """As the function says, of this task alone. Blocks.

        Its seeds are counted in the topics, for some seconds at most, so that the end can say whether some
        were done before the processes knew it.
        """
        is_new = read_endings(self._log, self._topics, self._task_id).get(self._task_id) is None
        count = partial(self._count_messages, is_new=is_new)
        close_for_all(self._log, self._producer, self._topics, [self._task_id], count)

    def _count_messages(self, *, is_new: bool) -> int:
        deadline, count = runtime.monotonic() + _COUNT_SECONDS, 0
        for topic in self._topics.tiers:
            try:
                for message in self._log.read(topic):
                    seed = seed_of(message, self._task_id)
                    count += seed is not None and not prefix_of(seed, message.headers)
                    if runtime.monotonic() > deadline:
                        return UNKNOWN if is_new else 0
            except TopicMissing:
                continue
        return count

    def _say(self, *facts: Fact) -> None:
        _say(self._log, self._producer, self._topics, [(self._task_id, fact) for fact in facts])


def close_for_all(
    log: SeedLog,
    producer: Producer,
    topics: CrawlTopics,
    task_ids: Collection[str],
    count: Callable[[], int] = lambda: 0,
) -> None:
    """No producer sends more seeds of these tasks; what is in the topics now is all of it.

    What is parked is asked when the processes know the tasks: one that parks a message later says so in the
    control log. `count` gives the number of their seeds.
    """
    make_ordered(log, topics, topics.control)
    begins = Producing(ALL_PRODUCERS, is_open=True)
    _say(log, producer, topics, [(task_id, begins) for task_id in task_ids])
    endings = read_endings(log, topics)
    board = read_board(log, topics.tasks)
    with_parked = {task_id for task_id in task_ids if board.has_parked(task_id)}
    highs = {part: end for topic in topics.tiers for part, end in _ends(log, topic) if end}
    all_highs = highs | ({part: end for part, end in _ends(log, topics.parked) if end} if with_parked else {})
    messages = count()
    known = {task_id: endings.get(task_id) or TaskEnding() for task_id in task_ids}
    for ending in known.values():
        ending.sending.clear()  # it speaks for them
    said = Producing(ALL_PRODUCERS, is_open=False, closes=True, messages=messages)
    ends = [
        (task_id, ending.carried_on(replace(said, highs=all_highs if task_id in with_parked else highs)))
        for task_id, ending in known.items()
    ]
    _say(log, producer, topics, ends)
    gone = ((task_id, ending.carried_words(ending.read_to)) for task_id, ending in known.items())
    _say(log, producer, topics, [(task_id, fact) for task_id, facts in gone for fact in facts])


def _say(log: SeedLog, producer: Producer, topics: CrawlTopics, facts: Iterable[tuple[str, Fact]]) -> None:
    """Durable when it returns."""
    sent = [producer.send(topics.control, *written(task_id, fact)) for task_id, fact in facts]
    deadline = runtime.monotonic() + _ANSWER_SECONDS
    try:
        for future in sent:
            future.result(max(0.0, deadline - runtime.monotonic()))
    except TimeoutError:
        raise LogUnavailable(
            f"{log.address} took no record for {topics.control} within {_ANSWER_SECONDS:g} s"
        ) from None


def seed_of(message: Message, task_id: str) -> Seed | None:
    """The seed of a message, if it is one of the task."""
    value = message.value or b""
    if task_id.encode() not in value and b"\\" not in value:  # far quicker than to read the others
        return None
    try:
        seed = parse_seed(value, callbacks=None, needs_url=False)
    except SeedError:
        return None
    return seed if seed.task_id == task_id else None


def _ends(log: SeedLog, topic: str) -> list[tuple[Partition, int]]:
    try:
        return [(part.partition, part.end) for part in log.progress(topic, None)]
    except TopicMissing:
        return []
