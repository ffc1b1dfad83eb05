"""All topics of a crawl, under one name each for crawls and commands alike. No two may be the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Self

from site_spider import options
from site_spider.errors import ConfigError
from site_spider.options import SettingsView
from site_spider.seed.tiers import TOPIC, TOPICS, Tiers

DEAD_LETTERS: Final = "SITE_DEAD_LETTER_TOPIC"
STATISTICS: Final = "SITE_STATS_TOPIC"
TASKS: Final = "SITE_TASK_TOPIC"
EVENTS: Final = "SITE_TASK_EVENTS_TOPIC"
_OF_SINKS: Final = ("SITE_RESULTS_TOPIC", "SITE_ITEMS_TOPIC")


class CrawlTopics(NamedTuple):
    """`seeds` is where seeds go that name no topic; the other names are derived from it."""

    seeds: str
    tiers: tuple[str, ...]  # all seed topics
    dead_letters: str
    statistics: str
    tasks: str
    events: str

    @property
    def parked(self) -> str:
        """Of seeds that wait until their task goes on."""
        return f"{self.seeds}.parked"

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
    def of(cls, settings: SettingsView) -> Self:
        """Raises ConfigError, also when two settings name one topic."""
        tiers = Tiers.of(settings)
        seeds = tiers.main
        found = cls(
            seeds,
            tiers.topics,
            options.topic(settings, DEAD_LETTERS, f"{seeds}.dead-letters"),
            options.topic(settings, STATISTICS, f"{seeds}.stats"),
            options.topic(settings, TASKS, f"{seeds}.tasks"),
            options.topic(settings, EVENTS, f"{seeds}.task-events"),
        )
        found._check(settings)
        return found

    @classmethod
    def beside(cls, settings: SettingsView, seeds: str | None) -> Self:
        """Of the crawl that reads `seeds`: this one, or another with the same settings else."""
        if seeds is None or seeds in Tiers.of(settings).topics:
            return cls.of(settings)
        known = {name: settings.get(name) for name in (DEAD_LETTERS, STATISTICS, TASKS, EVENTS, *_OF_SINKS)}
        return cls.of(known | {TOPIC: seeds})

    def _check(self, settings: SettingsView) -> None:
        known: dict[str, str] = {}  # topic: the setting that it comes from
        for setting, topic in self._named(settings):
            if topic in known:
                raise ConfigError(
                    f"{setting} is {topic!r}, as {known[topic]} is: what is written for one would be read "
                    "as the other. Name another topic."
                )
            known[topic] = setting

    def _named(self, settings: SettingsView) -> Iterator[tuple[str, str]]:
        of_seeds = TOPICS if settings.get(TOPICS) else TOPIC
        yield from ((of_seeds, topic) for topic in self.tiers)
        yield f"the topic of parked seeds of {of_seeds}", self.parked
        yield TASKS, self.tasks
        yield f"the control topic of {TASKS}", self.control
        yield f"the topic of pages of {TASKS}", self.pages
        yield f"the topic of the time of {TASKS}", self.clock
        yield EVENTS, self.events
        yield DEAD_LETTERS, self.dead_letters
        yield STATISTICS, self.statistics
        for setting in _OF_SINKS:
            if topic := options.text(settings, setting):
                yield setting, topic
