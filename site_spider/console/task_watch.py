"""Follows what is known of tasks, and carries out what an operator orders of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from site_spider.contracts.seed_log import Message, SeedLog, TopicReader
from site_spider.tasks.board import Board
from site_spider.tasks.control_log import Endings
from site_spider.tasks.desk import Ordered, TaskDesk, TaskFacts, TaskOrders, TaskOverview
from site_spider.tasks.follower import BadRecords, TaskTopics

VERBS = ("pause", "resume", "cancel", "close", "set")
_POLL_SECONDS = 0.2
_MOST_LOOKS = 5_000  # of one look at a topic; each hands out what has come


class TaskWatch:
    """One thread at a time looks; any may read `facts`."""

    def __init__(self, log: SeedLog, topics: TaskTopics) -> None:
        self._log = log
        self._topics = topics
        self._board = Board()
        self._endings = Endings()
        self._bad_records = BadRecords(topics.tasks, self._refuse)
        self._bad_facts = BadRecords(topics.control, self._refuse)
        self._readers: dict[str, TopicReader] = {}
        self.facts: tuple[TaskFacts, ...] = ()
        self.refused = 0  # records that are none of tasks
        self.said = ""  # of them

    def look(self) -> None:
        """Take what was written since the last look. Raises LogUnavailable."""
        news = self._follow(self._topics.tasks, self._take_records)
        news |= self._follow(self._topics.control, self._take_facts)
        if news:
            self.facts = tuple(TaskOverview(self._board, self._endings))

    def order(self, verb: str, task_id: str, words: Sequence[str], *, is_told_of: bool) -> Ordered:
        """Blocks. `is_told_of`: processes know the task. Raises BadTask, ConfigError, LogUnavailable."""
        orders = TaskOrders(TaskDesk(self._log, self._topics), task_id, may_be_new=is_told_of)
        verbs: dict[str, Callable[[], Ordered]] = {
            "pause": orders.pause,
            "resume": orders.resume,
            "cancel": orders.cancel,
            "close": orders.close,
            "set": lambda: orders.change(words),
        }
        return verbs[verb]()

    def close(self) -> None:
        """Release the readers."""
        while self._readers:
            self._readers.popitem()[1].close()

    def _follow(self, topic: str, take: Callable[[list[Message]], None]) -> bool:
        reader = self._readers.get(topic)
        if reader is None:
            reader = self._readers[topic] = self._log.reader(topic, compacted=True)
        else:
            reader.mark_end()
        has_news = False
        for _ in range(_MOST_LOOKS):
            if reader.is_at_end:
                break
            if messages := reader.poll(_POLL_SECONDS):
                take(messages)
                has_news = True
        return has_news

    def _take_records(self, messages: list[Message]) -> None:
        for message in messages:
            self._bad_records.taken(self._board.take, message)

    def _take_facts(self, messages: list[Message]) -> None:
        for message in messages:
            self._bad_facts.taken(self._endings.take, message)

    def _refuse(self, _counted: str) -> None:
        self.refused += 1
        self.said = f"{self.refused:,} records of task topics cannot be read and are skipped; see the log."
