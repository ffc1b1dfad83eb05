"""The parts of a crawl whose numbers are shown."""

from __future__ import annotations

from dataclasses import dataclass

from scrapy.crawler import Crawler

from site_spider.download.bodies import Bodies
from site_spider.frontier.scheduler import Queues
from site_spider.intake.intake import Intake
from site_spider.intake.seeds import Seeds
from site_spider.ledger.ledger import Ledger
from site_spider.observe.histograms import Histograms
from site_spider.observe.identity import Identity
from site_spider.observe.loop_lag import LoopLag
from site_spider.observe.pages import PageTally
from site_spider.observe.pauses import Pauses
from site_spider.observe.seed_times import SeedTimes
from site_spider.observe.tasks import TaskSums
from site_spider.results.results import Sinks
from site_spider.tasks.board import BrokerClock


@dataclass(frozen=True, slots=True)
class Counted:
    """What is counted while a crawl goes on."""

    histograms: Histograms
    tasks: TaskSums
    pages: PageTally
    seed_times: SeedTimes

    @classmethod
    def new(cls) -> Counted:
        """With nothing counted yet."""
        histograms, tasks = Histograms(), TaskSums()
        tally = PageTally(tasks, histograms.response_bytes)
        return cls(histograms, tasks, tally, SeedTimes(tasks, histograms.seed_seconds))


@dataclass(frozen=True, slots=True)
class Watched:
    """Nothing of it is changed by who looks."""

    crawler: Crawler
    identity: Identity
    ledger: Ledger
    queues: Queues
    seeds: Seeds
    intake: Intake
    sinks: Sinks
    bodies: Bodies
    pauses: Pauses
    loop_lag: LoopLag
    clock: BrokerClock
    counted: Counted
