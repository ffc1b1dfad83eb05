"""Builds the parts that find and tell the end of tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection

from scrapy.settings import BaseSettings

from site_spider.contracts.seed_log import Partition, Producer, SeedLog
from site_spider.service.config import ServiceSettings
from site_spider.service.task_wiring import TaskRecords
from site_spider.service.webhook_guard import guard_of
from site_spider.tasks import webhook
from site_spider.tasks.ends import Notices, OverTasks, TaskEnds, Tracker
from site_spider.tasks.follower import BadRecords
from site_spider.tasks.tasks import Teller


def build_ends(
    settings: BaseSettings,
    config: ServiceSettings,
    records: TaskRecords,
    log: SeedLog,
    producer: Producer,
    tracker: Tracker,
    partitions: Callable[[], Collection[Partition]],
) -> TaskEnds:
    """Not started; `partitions` are those of this process. Raises ConfigError."""
    has_first = lambda: Partition(config.tiers.main, 0) in partitions()  # noqa: E731
    topics, board, control, background = records.topics, records.board, records.control, records.background
    pages = BadRecords(topics.pages, records.count_in_stats)
    teller = Teller(log, producer, topics, control, board.end_of, has_first, background, pages)
    over = OverTasks(log, producer, topics, board, control, has_first, background)
    secret = webhook.secret_of(config.spill_keys)
    notices = Notices(board, control, secret, guard_of(settings), has_first, background)
    return TaskEnds(control, tracker, teller, over, notices, is_on=config.tells_ends)
