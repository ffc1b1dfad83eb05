"""Builds the parts that find and tell the end of tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from scrapy.settings import BaseSettings

from site_spider.contracts.seed_log import Producer, SeedLog
from site_spider.engine.background import Background
from site_spider.ledger.completion import Completion
from site_spider.results.commits import Tell
from site_spider.service.config import ServiceSettings
from site_spider.service.webhook_guard import guard_of
from site_spider.tasks import webhook
from site_spider.tasks.board import Board
from site_spider.tasks.control import Control
from site_spider.tasks.control_follower import ControlFollower
from site_spider.tasks.control_log import Endings
from site_spider.tasks.ends import OverTasks, TaskEnds
from site_spider.tasks.notices import Notices
from site_spider.tasks.teller import Teller
from site_spider.tasks.topics import TaskTopics
from site_spider.tasks.tracker import Tracker


class TaskTopicParts(NamedTuple):
    """What all of them need."""

    log: SeedLog
    producer: Producer
    topics: TaskTopics
    board: Board
    has_first: Callable[[], bool]  # the first partition of the seed topic


def build_ends(
    settings: BaseSettings,
    config: ServiceSettings,
    parts: TaskTopicParts,
    process: str,
    completion: Completion,
    tell: Tell,
    background: Background,
) -> tuple[TaskEnds, Tracker, Control]:
    """None of them opened or started. Raises ConfigError."""
    log, producer, topics, board, has_first = parts
    endings = Endings()
    follower = ControlFollower(log, topics.control, endings, tell)
    control = Control(producer, topics.control, process, endings, follower, background)
    tracker = Tracker(completion, control)
    teller = Teller(log, producer, topics, control, board.end_of, has_first, background)
    over = OverTasks(log, producer, topics, board, control, has_first, background)
    secret = webhook.secret_of(config.spill_keys)
    notices = Notices(board, control, secret, guard_of(settings), has_first, background)
    ends = TaskEnds(control, tracker, teller, over, notices, is_on=not config.exactly_once)
    return ends, tracker, control
