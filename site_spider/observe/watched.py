"""The parts of a crawl whose numbers are shown."""

from __future__ import annotations

from dataclasses import dataclass

from scrapy.crawler import Crawler

from site_spider.frontier.queues import Queues
from site_spider.intake.back_pressure import BackPressure
from site_spider.intake.quarantine.quarantine import Quarantine
from site_spider.intake.seeds import Seeds
from site_spider.ledger.ledger import Ledger
from site_spider.results.commits import Member
from site_spider.results.name_counts import NameCounts
from site_spider.results.sinks import Sinks


@dataclass(frozen=True, slots=True)
class Watched:
    """Nothing of it is changed by who looks."""

    crawler: Crawler
    member: Member
    ledger: Ledger
    queues: Queues
    seeds: Seeds
    quarantine: Quarantine
    back_pressure: BackPressure
    sinks: Sinks
    failures: NameCounts
