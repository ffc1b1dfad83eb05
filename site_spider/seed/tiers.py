"""The seed topics of a crawl, each with its weight: one, or several tiers."""

from __future__ import annotations

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


def seed_topics(settings: SettingsView) -> tuple[str, ...]:
    """Their names; none where the settings are of a sink alone. Raises ConfigError."""
    return Tiers.of(settings).topics if settings.get(TOPIC) or settings.get(TOPICS) else ()


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
