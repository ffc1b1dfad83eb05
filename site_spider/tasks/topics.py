"""The topics of tasks beside a seed topic."""

from __future__ import annotations

from typing import NamedTuple, Self

from site_spider import options
from site_spider.errors import ConfigError
from site_spider.options import SettingsView
from site_spider.seed.tiers import Tiers

TASK_HEADER = "task_id"  # of a parked message


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
    def pages(self) -> str:
        """Of the pages that the end of a task counts."""
        return f"{self.tasks}.pages"

    @classmethod
    def read(cls, settings: SettingsView) -> Self:
        """SITE_SEED_TOPIC and SITE_TASK_TOPIC. Raises ConfigError."""
        tiers = Tiers.of(settings)
        seeds = tiers.main
        tasks = options.topic(settings, "SITE_TASK_TOPIC", f"{seeds}.tasks")
        events = options.topic(settings, "SITE_TASK_EVENTS_TOPIC", f"{seeds}.task-events")
        if events in (seeds, tasks):
            raise ConfigError(
                f"SITE_TASK_EVENTS_TOPIC is {events!r}, which is another topic of the crawl as well. "
                "Name one of its own, or leave it empty."
            )
        if tasks == seeds:
            raise ConfigError(
                f"SITE_TASK_TOPIC is {tasks!r} as SITE_SEED_TOPIC is: each task would be read as a seed. "
                "Name another topic, or leave it empty."
            )
        return cls(seeds, tasks, f"{seeds}.parked", events, tiers.topics)
