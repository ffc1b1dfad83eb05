"""The topics of tasks beside a seed topic."""

from __future__ import annotations

from typing import NamedTuple, Self

from site_spider.options import SettingsView
from site_spider.seed.tiers import CrawlTopics

TASK_HEADER = "task_id"  # of a parked message
ORIGIN_HEADER = "origin_topic"  # of a parked message: the seed topic that it comes back to


class TaskTopics(NamedTuple):
    """Their names, and that of the seed topic."""

    seeds: str
    tasks: str
    parked: str
    events: str = "task-events"
    tiers: tuple[str, ...] = ()  # all seed topics; empty: `seeds` alone

    @property
    def all_seeds(self) -> tuple[str, ...]:
        """Each topic that seeds of a task may be in."""
        return self.tiers or (self.seeds,)

    @property
    def control(self) -> str:
        """Of the log that tells the end of tasks."""
        return f"{self.tasks}.control"

    @property
    def clock(self) -> str:
        """Of records that tell the broker's time."""
        return f"{self.tasks}.clock"

    @property
    def pages(self) -> str:
        """Of the pages that the end of a task counts."""
        return f"{self.tasks}.pages"

    @classmethod
    def read(cls, settings: SettingsView, seeds: str | None = None) -> Self:
        """Of the crawl that reads `seeds`; by default that of the settings. Raises ConfigError."""
        return cls.of(CrawlTopics.beside(settings, seeds))

    @classmethod
    def of(cls, topics: CrawlTopics) -> Self:
        """Those of them that are of tasks."""
        return cls(topics.seeds, topics.tasks, topics.parked, topics.events, topics.tiers)
