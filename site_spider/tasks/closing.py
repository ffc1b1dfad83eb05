"""What producers say in the control log of a task: that they begin, that they end, that it is closed.

A task that is known there is counted. So a producer says that it begins before it sends. Whoever closes the
task for all producers says so before it looks for the ends of the topic: a request that is spilled
meanwhile either lies below those ends, or its process has read that the task is known, and waits for its
`High` (tasks.control).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from contextlib import closing

from site_spider import runtime
from site_spider.contracts.seed_log import Message, MessagePlace, Partition, Producer, SeedLog, TopicReader
from site_spider.errors import ConfigError, LogUnavailable, SeedError, TopicMissing
from site_spider.seed.seed import Seed, parse_seed
from site_spider.tasks.control_log import Endings, written
from site_spider.tasks.counts import prefix_of
from site_spider.tasks.ending import ALL_PRODUCERS, UNKNOWN, Fact, Producing
from site_spider.tasks.topics import TaskTopics

_READ_SECONDS = 0.2
_ANSWER_SECONDS = 60.0
_COUNT_SECONDS = 10.0
_POLICY = "so that all processes see its records in one order"


def make_control_log(log: SeedLog, topics: TaskTopics) -> None:
    """Make the topic, unless it is there. Raises ConfigError, LogUnavailable."""
    log.make_topic(topics.control, 1, compacted=True)
    partitions = log.partitions(topics.control)
    if partitions > 1:  # 0: the server that was asked has not heard of it yet
        raise ConfigError(
            f"Topic {topics.control} has {partitions} partitions, but must have one, {_POLICY}. It is named "
            "after SITE_TASK_TOPIC: name another one."
        )


def read_endings(log: SeedLog, topics: TaskTopics, only: str | None = None) -> Endings:
    """What the control log says at this moment, of all tasks or one. Raises LogUnavailable."""
    endings = Endings(only)
    with closing(log.reader(topics.control, compacted=True)) as reader:
        while not reader.is_at_end:
            endings.take_all(reader.poll(_READ_SECONDS))
    return endings


class TaskProducer:
    """One producer of a task's seeds; its name is new each time. All methods block."""

    def __init__(self, log: SeedLog, producer: Producer, topics: TaskTopics, task_id: str) -> None:
        self._log = log
        self._producer = producer
        self._topics = topics
        self._task_id = task_id
        self._name = runtime.token_hex(6)
        self._highs: dict[Partition, int] = {}
        self._uncounted: dict[Partition, deque[int]] | None = None  # offsets; None: nobody asks for them
        self._counted = Endings()
        self._reader: TopicReader | None = None

    def waiting(self) -> int:
        """How many of its seeds nobody has counted yet, of those sent since this was first asked."""
        if self._uncounted is None:
            self._uncounted = defaultdict(deque)
        if self._reader is None:
            self._reader = self._log.reader(self._topics.control, compacted=True)
        self._reader.mark_end()
        while not self._reader.is_at_end:
            self._counted.take_all(self._reader.poll(_READ_SECONDS))
        ending = self._counted.get(self._task_id)
        for partition, offsets in self._uncounted.items():
            if ending is not None and (tally := ending.tallies.get(partition)) is not None:
                self._uncounted[partition] = deque(one for one in offsets if not tally.has_counted(one))
        return sum(map(len, self._uncounted.values()))

    def begin(self) -> None:
        """To be called before the first seed is sent. Raises ConfigError, LogUnavailable."""
        make_control_log(self._log, self._topics)
        self._say(Producing(self._name, is_open=True))

    def sent(self, place: MessagePlace) -> None:
        """A seed is durable there."""
        self._highs[place.partition] = max(place.offset + 1, self._highs.get(place.partition, 0))
        if self._uncounted is not None:
            self._uncounted[place.partition].append(place.offset)

    def end(self, *, closes: bool) -> None:
        """All seeds are durable; `closes`: no other producer sends any."""
        if self._reader is not None:
            self._reader.close()
        self._say(Producing(self._name, is_open=False, closes=closes, highs=dict(self._highs)))

    def close_for_all(self, has_parked: Callable[[], bool], *, counts: bool = True) -> None:
        """No producer sends more seeds of the task; what is in the topic now is all of it.

        `has_parked` is asked when the processes know the task: whether messages of it are parked. A process
        that parks one later says so in the control log. `counts`: its seeds are counted in the topics, for
        some seconds at most, so that the end can say whether some were done before the processes knew it.
        """
        task_id = self._task_id
        parked = lambda: [task_id] if has_parked() else []  # noqa: E731
        is_new = counts and read_endings(self._log, self._topics, task_id).get(task_id) is None
        messages = (lambda: self._count_messages(is_new=is_new)) if counts else (lambda: 0)
        close_for_all(self._log, self._producer, self._topics, [task_id], parked, messages)

    def _count_messages(self, *, is_new: bool) -> int:
        deadline, count = runtime.monotonic() + _COUNT_SECONDS, 0
        for topic in self._topics.all_seeds:
            try:
                for message in self._log.read(topic):
                    seed = seed_of(message, self._task_id)
                    count += seed is not None and not prefix_of(seed, message.headers)
                    if runtime.monotonic() > deadline:
                        return UNKNOWN if is_new else 0
            except TopicMissing:
                continue
        return count

    def _say(self, fact: Fact) -> None:
        _say(self._log, self._producer, self._topics, [(self._task_id, fact)])


def close_for_all(
    log: SeedLog,
    producer: Producer,
    topics: TaskTopics,
    task_ids: Collection[str],
    parked: Callable[[], Collection[str]],
    count: Callable[[], int] = lambda: 0,
) -> None:
    """The same for several tasks; `parked` names those of which messages are parked, `count` their seeds."""
    make_control_log(log, topics)
    begins = Producing(ALL_PRODUCERS, is_open=True)
    _say(log, producer, topics, [(task_id, begins) for task_id in task_ids])
    with_parked = parked()
    highs = {part: end for topic in topics.all_seeds for part, end in _ends(log, topic) if end}
    all_highs = highs | ({part: end for part, end in _ends(log, topics.parked) if end} if with_parked else {})
    messages = count()
    ends = [
        (task_id, Producing(ALL_PRODUCERS, is_open=False, closes=True, highs=chosen, messages=messages))
        for task_id in task_ids
        for chosen in (all_highs if task_id in with_parked else highs,)
    ]
    _say(log, producer, topics, ends)


def _say(log: SeedLog, producer: Producer, topics: TaskTopics, facts: Iterable[tuple[str, Fact]]) -> None:
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
        seed = parse_seed(value, needs_url=False)
    except SeedError:
        return None
    return seed if seed.task_id == task_id else None


def _ends(log: SeedLog, topic: str) -> list[tuple[Partition, int]]:
    try:
        return [(part.partition, part.end) for part in log.progress(topic, f"{topic}.ends")]
    except TopicMissing:
        return []
