"""The topics of a crawl: seed topics, one or several tiers with weights, and all others; the partition of a key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Final, NamedTuple, Self

from site_spider import options
from site_spider.errors import ConfigError
from site_spider.options import SettingsView

TOPIC: Final = "SITE_SEED_TOPIC"
TOPICS: Final = "SITE_SEED_TOPICS"
MOST_WEIGHT: Final = 1_000.0
MOST_TIERS: Final = 16
_USUAL: Final = "seeds"  # SITE_SEED_TOPIC, where nobody has set it
_PROJECT: Final = 20  # the priority of what settings.py says, as Scrapy counts
_REMEDY: Final = "Write topic:weight, with commas between, such as urgent:8,seeds:4,bulk:1."


class Tier(NamedTuple):
    """A seed topic, and its part of what is crawled at a time."""

    topic: str
    weight: float


@dataclass(frozen=True, slots=True)
class Tiers:
    """All of one crawl, in the order of the setting."""

    tiers: tuple[Tier, ...]
    main: str  # where seeds go that name no topic

    @classmethod
    def of(cls, settings: SettingsView) -> Self:
        """Read SITE_SEED_TOPICS, else SITE_SEED_TOPIC. Raises ConfigError."""
        tiers = tuple(map(_tier, _parts(settings)))
        if not tiers:
            topic = options.topic(settings, TOPIC)
            return cls((Tier(topic, 1.0),), topic)
        topic = options.text(settings, TOPIC)
        named = [tier.topic for tier in tiers]
        if len(set(named)) < len(named):
            twice = next(name for name in named if named.count(name) > 1)
            raise ConfigError(f"{TOPICS} names {twice!r} twice. Name each topic once.")
        if len(named) > MOST_TIERS:
            raise ConfigError(f"{TOPICS} names {len(named)} topics. Name {MOST_TIERS} at most.")
        if topic and topic not in named and _is_chosen(settings, topic):
            raise ConfigError(
                f"{TOPIC} is {topic!r}, which {TOPICS} does not name: nobody would read it. "
                f"Add it to {TOPICS}, or leave {TOPIC} out."
            )
        return cls(tiers, topic if topic in named else named[0])

    @property
    def topics(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(tier.topic for tier in self.tiers)

    @property
    def weights(self) -> dict[str, float]:
        """By topic."""
        return dict(self.tiers)


def _parts(settings: SettingsView) -> list[object]:
    value = settings.get(TOPICS) or ()
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")] if value.strip() else []
    if isinstance(value, (list, tuple)):
        return list(value)
    raise ConfigError(f"{TOPICS} is {value!r}, but must be text. {_REMEDY}")


def _tier(part: object) -> Tier:
    topic, colon, weight = str(part).strip().rpartition(":")
    if not colon or not topic.strip():
        raise ConfigError(f"{TOPICS} has {part!r}, which has no weight. {_REMEDY}")
    name = options.topic({TOPICS: topic.strip()}, TOPICS)
    try:
        number = float(weight)
    except ValueError:
        number = float("nan")
    if not isfinite(number) or not 0 < number <= MOST_WEIGHT:
        raise ConfigError(
            f"{TOPICS} gives {name} the weight {weight!r}, but a weight is a number above 0, up to "
            f"{MOST_WEIGHT:g}. {_REMEDY}"
        )
    return Tier(name, number)


def _is_chosen(settings: SettingsView, topic: str) -> bool:
    """Whether somebody has set SITE_SEED_TOPIC, as far as can be seen."""
    priority_of = getattr(settings, "getpriority", None)
    priority = priority_of(TOPIC) if priority_of is not None else None
    return topic != _USUAL or (priority or 0) > _PROJECT


# --- All topics of a crawl, under one name each for crawls and commands alike. No two may be the same ----

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
    parked: str  # of seeds that wait until their task goes on
    control: str  # of the log that tells the end of tasks
    clock: str  # of records that tell the broker's time
    pages: str  # that the end of a task counts

    @classmethod
    def of(cls, settings: SettingsView) -> Self:
        """Raises ConfigError, also when two settings name one topic."""
        tiers = Tiers.of(settings)
        seeds = tiers.main
        tasks = options.topic(settings, TASKS, f"{seeds}.tasks")
        found = cls(
            seeds,
            tiers.topics,
            options.topic(settings, DEAD_LETTERS, f"{seeds}.dead-letters"),
            options.topic(settings, STATISTICS, f"{seeds}.stats"),
            tasks,
            options.topic(settings, EVENTS, f"{seeds}.task-events"),
            f"{seeds}.parked",
            *(f"{tasks}.{name}" for name in ("control", "clock", "pages")),
        )
        found._check(settings)
        return found

    @classmethod
    def beside(cls, settings: SettingsView, seeds: str | None = None) -> Self:
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


# --- The partition of a key, as Kafka's Java client computes it (murmur2) --------------------------------

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_WORD = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash, unsigned (Java shows the same bits as a signed number)."""
    length = len(data)
    result = (_SEED ^ length) & _WORD
    whole = length & ~3
    for index in range(0, whole, 4):
        word = int.from_bytes(data[index : index + 4], "little") * _FACTOR & _WORD
        word = (word ^ word >> 24) * _FACTOR & _WORD
        result = (result * _FACTOR & _WORD) ^ word
    if whole < length:
        result = (result ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _WORD
    result = (result ^ result >> 13) * _FACTOR & _WORD
    return result ^ result >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The number of the partition where messages with this key go."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
