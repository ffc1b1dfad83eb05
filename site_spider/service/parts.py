"""The parts of a crawl, as the wiring has built them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scrapy.dupefilters import BaseDupeFilter

from site_spider.contracts.seed_log import LogName, Producer, SeedLog
from site_spider.contracts.sink import Sink, StatisticsStore
from site_spider.download.bodies import Bodies
from site_spider.frontier.scheduler import Dispatcher, Queues
from site_spider.frontier.waiting_room import WaitingRoom
from site_spider.intake.intake import Handover, Intake
from site_spider.intake.room import BackPressure
from site_spider.intake.seed_queue import TopicPartitions
from site_spider.intake.seeds import Seeds
from site_spider.intake.suspects import Quarantine
from site_spider.ledger.completion import Completion
from site_spider.observe.metrics.exporter import GroupWatch
from site_spider.observe.metrics.readings import Measurements
from site_spider.observe.snapshot import Watched
from site_spider.results.commits import Commits
from site_spider.results.failures import Mishaps
from site_spider.results.results import Results, Sinks
from site_spider.service.config import ServiceSettings
from site_spider.service.observers import Observers
from site_spider.sources.extractor import Extractor
from site_spider.sources.library import SourceFolder
from site_spider.tasks.ends import TaskEnds
from site_spider.tasks.tasks import Tasks


@dataclass(frozen=True, slots=True)
class Parts:
    """What the service opens, drives and closes, and what tests look at."""

    config: ServiceSettings
    log: SeedLog
    producer: Producer
    completion: Completion
    sinks: Sinks
    commits: Commits
    results: Results
    room: WaitingRoom
    queues: Queues
    partitions: TopicPartitions
    bodies: Bodies
    handover: Handover
    quarantine: Quarantine
    back_pressure: BackPressure
    seeds: Seeds
    intake: Intake
    dupefilter: BaseDupeFilter
    dispatcher: Dispatcher
    watched: Watched
    group: GroupWatch
    measurements: Measurements
    observers: Observers
    extractor: Extractor
    tasks: Tasks
    ends: TaskEnds
    mishaps: Mishaps  # kept: Scrapy refers to its listeners weakly


@dataclass(frozen=True, slots=True)
class Stores:
    """What settings name, not yet opened."""

    log: SeedLog
    log_name: LogName
    sinks: Sequence[Sink]
    item_sinks: Sequence[Sink]
    statistics: Sequence[StatisticsStore]
    sources: SourceFolder
    obeys_robots: bool  # where no source says otherwise
