"""Builds the parts of tasks: what they need of others is named in two steps, as these are made."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

from site_spider.contracts.seed_log import Partition, Producer, SeedLog
from site_spider.engine.background import Background
from site_spider.frontier.frontier import Frontier
from site_spider.frontier.scheduler import Queues
from site_spider.frontier.waiter import TaskFlow, TaskRates, Waiter
from site_spider.intake.intake import LoopCalls
from site_spider.intake.room import PollRoom
from site_spider.ledger.completion import Completion
from site_spider.service.config import ServiceSettings
from site_spider.tasks.board import Board, BrokerClock, TimeLimits
from site_spider.tasks.control import Control, ControlFollower
from site_spider.tasks.control_log import Endings
from site_spider.tasks.follower import Follower, TaskTopics
from site_spider.tasks.moving import Leaving, Parking
from site_spider.tasks.page_counts import PageLog
from site_spider.tasks.rates import GroupRates, KnownTasks, Overtaking, Send, Window
from site_spider.tasks.states import TaskStates
from site_spider.tasks.tasks import ReturnWatch, TaskGate, Tasks, process_name


class TaskRecords(NamedTuple):
    """What is known of tasks, and told of them."""

    topics: TaskTopics
    board: Board
    states: TaskStates
    parking: Parking
    control: Control
    highs: Control | None  # None: the end of tasks is not told
    pages: PageLog
    clock: BrokerClock
    producer: Producer
    background: Background
    send: Send  # to the task topic
    count_in_stats: Callable[[str], None]


def build_records(
    config: ServiceSettings,
    log: SeedLog,
    producer: Producer,
    tell: LoopCalls,
    background: Background,
    count: Callable[[str], None],
) -> TaskRecords:
    """The first step, before there is a frontier."""
    topics, board, endings = config.task_topics, Board(), Endings()
    send = partial(producer.send, topics.tasks)
    states = TaskStates(board, process_name(), send, background)
    follower = ControlFollower(log, topics.control, endings, tell, count)
    control = Control(producer, topics.control, states.process, endings, follower, background)
    highs = control if config.tells_ends else None
    parking = Parking(producer, topics, states, background, highs)
    pages = PageLog(log, producer, topics.pages, background)
    clock = BrokerClock(log, producer, topics.clock)
    return TaskRecords(
        topics, board, states, parking, control, highs, pages, clock, producer, background, send, count
    )


def shares(records: TaskRecords, frontier: Frontier[Waiter]) -> bool:
    """Whether there are tasks that share what is polled: here, declared, or named by a producer."""
    return (
        frontier.has_flow(lambda flow: isinstance(flow, TaskFlow) and flow.task_id is not None)
        or records.board.has_running()
        or records.control.endings.have_seeds()
    )


def build_gate(records: TaskRecords, queues: Queues, leaving: Leaving) -> TaskGate:
    """The second: what lets seeds, links and requests begin."""
    return TaskGate(records.states, queues, leaving, records.background)


def build_overtaking(
    records: TaskRecords,
    config: ServiceSettings,
    poll_room: PollRoom,
    may_poll: Callable[[], bool],
    queues: Queues,
    completion: Completion,
    log: SeedLog,
) -> Overtaking | None:
    """None with exactly-once: a seed that leaves would not be part of a transaction."""
    if config.exactly_once:
        return None
    window = Window(poll_room.is_full, may_poll)
    known = KnownTasks(records.board, records.control.endings, records.highs)
    group, producer = config.consumer_group, records.producer
    return Overtaking(window, known, queues, completion, log, group, producer, records.background)


def build_tasks(
    records: TaskRecords,
    gate: TaskGate,
    log: SeedLog,
    partitions: Callable[[], Collection[Partition]],
    tell: LoopCalls,
    rates: TaskRates,
    overtaking: Overtaking | None,
) -> Tasks:
    """All of it, to be opened and driven."""
    topics, board = records.topics, records.board
    watch = ReturnWatch(log, topics, board, partitions, records.control.endings, records.background)
    group_rates = GroupRates(board, rates, records.states.process, records.send)
    has_first = lambda: Partition(topics.seeds, 0) in partitions()  # noqa: E731
    limits = TimeLimits(board, records.clock, topics.tasks, records.producer, has_first, records.background)
    follower = partial(Follower, log, topics.tasks, board, tell, count=records.count_in_stats)
    return Tasks(records.states, records.parking, gate, watch, limits, group_rates, overtaking, follower)
