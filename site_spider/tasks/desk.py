"""Reads and writes the task topic for a person: for commands, without a crawl."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import closing
from datetime import UTC, datetime

from site_spider import runtime
from site_spider.contracts.seed_log import Producer, SeedLog
from site_spider.errors import ConfigError, TopicMissing
from site_spider.tasks.board import CANCELLED, SEPARATOR, VERSION_HEADER, Board, Cancelled, note_key
from site_spider.tasks.clock import BrokerClock
from site_spider.tasks.closing import TaskProducer, read_endings
from site_spider.tasks.follower import read_board
from site_spider.tasks.overview import TaskOverview
from site_spider.tasks.record import BadTask, Task
from site_spider.tasks.returning import put_back
from site_spider.tasks.topics import TaskTopics

_MOST_TRIES = 20
_LOOK_SECONDS = 0.2


class TaskDesk:
    """With all that the topic says at the moment in which it was opened. Raises LogUnavailable."""

    def __init__(self, log: SeedLog, topics: TaskTopics) -> None:
        self.log = log
        self.topics = topics
        self.board = Board()
        self.read()

    def read(self) -> None:
        """Read the topic anew."""
        self.board = read_board(self.log, self.topics.tasks)

    def overview(self) -> TaskOverview:
        """What is known of each task, by the task topic as it was read and the control log of now."""
        return TaskOverview(self.board, read_endings(self.log, self.topics))

    def now(self) -> datetime:
        """By the clock of the broker."""
        with closing(self.log.producer()) as producer:
            clock = BrokerClock(self.log, producer, self.topics.clock)
            clock.measure()
        return datetime.fromtimestamp(clock.now(), UTC)

    def order(self, task_id: str, change: Callable[[Task | None], Task]) -> Task:
        """Change what is declared. It is repeated on what others have written meanwhile, so nothing is lost.

        Raises BadTask when others are always quicker.
        """
        for _ in range(_MOST_TRIES):
            task = change(self.board.task(task_id))
            offset = self._write(task, self.board.version(task_id) + 1)
            self.read()
            if offset not in self.board.void:
                return task
        raise BadTask(f"{task_id!r} is being changed by others all the time; try again")

    def write(self, task: Task) -> None:
        """Write a record over whatever is there. Durable when it returns."""
        self._write(task)

    def _write(self, task: Task, version: int = 0) -> int:
        self._make_topics()
        headers = [(VERSION_HEADER, str(version).encode())] if version else []
        with closing(self.log.producer()) as producer:
            sent = producer.send(self.topics.tasks, task.key, task.value(), headers)
            if task.state == "cancelled":
                value = Cancelled(started_at=task.started_at).model_dump_json().encode()
                producer.send(self.topics.tasks, note_key(task.task_id, CANCELLED), value).result()
            return sent.result().offset

    def forget(self, task_id: str) -> None:
        """Delete all records of a task: what was declared, counted and told."""
        with closing(self.log.producer()) as producer:
            forget_tasks(self.log, producer, self.topics, [task_id])

    def make_known(self, task_id: str) -> None:
        """From now on its seeds are counted, see tasks.closing. It is a new generation, if it has ended."""
        with closing(self.log.producer()) as producer:
            declaring = TaskProducer(self.log, producer, self.topics, task_id)
            declaring.begin()
            declaring.end(closes=False)

    def send(self, key: bytes, value: bytes | None) -> None:
        """Write any record of the task topic. Durable when it returns."""
        with closing(self.log.producer()) as producer:
            producer.send(self.topics.tasks, key, value).result()

    def put_back(self, task_id: str) -> int:
        """Put the parked messages of a task back; how many. To be called when its new state is written."""
        count = put_back(self.log, self.topics, [task_id])
        self.read()
        return count

    def watch(self, is_enough: Callable[[Board], bool], timeout_seconds: float) -> bool:
        """Read again and again until it is enough; False when it is not in time."""
        deadline = runtime.monotonic() + timeout_seconds
        while not is_enough(self.board):
            if runtime.monotonic() > deadline:
                return False
            runtime.sleep(_LOOK_SECONDS)
            self.read()
        return True

    def _make_topics(self) -> None:
        self.log.make_topic(self.topics.tasks, 1, compacted=True)
        partitions = self.log.partitions(self.topics.tasks)
        if partitions > 1:  # 0: the server that was asked has not heard of it yet
            raise ConfigError(
                f"SITE_TASK_TOPIC is {self.topics.tasks!r}, which has {partitions} partitions, but must have "
                "one, so that all processes see its records in one order. Name another topic."
            )
        self.log.make_topic(self.topics.parked, self.log.partitions(self.topics.seeds), compacted=False)


def forget_tasks(log: SeedLog, producer: Producer, topics: TaskTopics, task_ids: Collection[str]) -> None:
    """Delete all records of tasks. Blocks. Raises LogUnavailable."""
    wanted = {task_id.encode() for task_id in task_ids}
    for topic in (topics.tasks, topics.pages, topics.control):
        for sent in [producer.send(topic, key, None) for key in _keys(log, topic, wanted)]:
            sent.result()


def _keys(log: SeedLog, topic: str, task_ids: Collection[bytes]) -> list[bytes]:
    found: dict[bytes, bool] = {}  # whether it has a value
    try:
        for message in log.read(topic):
            if message.key is not None and message.key.partition(SEPARATOR.encode())[0] in task_ids:
                found[message.key] = message.value is not None
    except TopicMissing:
        return []
    return [key for key, has_value in found.items() if has_value]
