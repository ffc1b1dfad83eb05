"""What will happen, and when: all of it from one random seed.

An event is due when a share of the crawl is done, so that all events come before the end however fast the
crawl is. While a server is away the crawl stands still sooner or later, so some events are tied to an
outage: they come seconds after it began.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import Enum

from tools.chaos.options import Options

FIRST_SHARE, LAST_SHARE = 0.04, 0.85
SHARE_TIED = 0.5  # of the outages get an event of another kind into their middle


class Kind(Enum):
    """What happens."""

    KILL = "kill -9 of a crawler"
    TERM = "SIGTERM of a run"
    STOP = "SIGSTOP of a crawler"
    BROKER = "kill -9 of Kafka"
    ELASTICSEARCH = "kill -9 of Elasticsearch"
    JOIN = "a run more"
    HBASE = "kill -9 of HBase"
    BLOCK = "Elasticsearch read-only"
    PROXY = "a network that fails"
    PARTITIONS = "a partition more"
    PAUSE = "pause of a task"
    CANCEL = "cancel of a task"
    CLOSE = "close of a task"
    TOPIC = "a topic created again"


OUTAGES = frozenset({Kind.BROKER, Kind.ELASTICSEARCH, Kind.HBASE})
_LASTS = {  # seconds, from and to
    Kind.TERM: (1, 6),
    **dict.fromkeys(OUTAGES, (2, 6)),
    Kind.BLOCK: (2, 12),
    Kind.PROXY: (3, 20),
    Kind.PAUSE: (3, 10),
    Kind.TOPIC: (0, 4),
}


@dataclass(frozen=True)
class Event:
    """One event: due `delay_seconds` after `share` of the crawl was done.

    `seconds` is how long it lasts: until the server is started again, the frozen process goes on, the
    stopped run is replaced, the task is resumed, the topic is created. `victim`, from 0 to 1, says which of
    those that there are.
    """

    share: float
    kind: Kind
    victim: float
    seconds: float
    delay_seconds: float = 0

    def __str__(self) -> str:
        later = f" + {self.delay_seconds:.1f} s" if self.delay_seconds else ""
        lasts = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.share:6.1%}{later}: {self.kind.value}{lasts}"


def _seconds(kind: Kind, options: Options, rng: random.Random) -> float:
    if kind is Kind.STOP:
        return options.stop_seconds
    return rng.uniform(*_LASTS[kind]) if kind in _LASTS else 0


def _counts(options: Options) -> dict[Kind, int]:
    """In an order that stays: a random seed means the same plan in later versions."""
    return {
        Kind.KILL: options.kills,
        Kind.TERM: options.terms,
        Kind.STOP: options.stops,
        Kind.BROKER: options.broker_restarts,
        Kind.ELASTICSEARCH: options.elasticsearch_restarts,
        Kind.JOIN: options.joins,
        Kind.HBASE: options.hbase_restarts,
        Kind.BLOCK: options.elasticsearch_blocks,
        Kind.PROXY: options.proxies,
        Kind.PARTITIONS: options.added_partitions,
        Kind.PAUSE: options.pauses,
        Kind.CANCEL: options.cancels,
        Kind.CLOSE: options.closes,
        Kind.TOPIC: options.recreated_topics,
    }


def plan(options: Options) -> list[Event]:
    """The events in their order."""
    rng = random.Random(options.random_seed)
    kinds = [kind for kind, count in _counts(options).items() for _ in range(count)]
    rng.shuffle(kinds)
    width = (LAST_SHARE - FIRST_SHARE) / max(1, len(kinds))
    shares = [FIRST_SHARE + width * (place + rng.random()) for place in range(len(kinds))]
    events = [
        Event(share, kind, rng.random(), _seconds(kind, options, rng))
        for share, kind in zip(shares, kinds, strict=True)
    ]
    return _tied(events, rng)


def _tied(events: list[Event], rng: random.Random) -> list[Event]:
    """Move some of those that follow an outage into it."""
    result: list[Event] = []
    for event in events:
        before = result[-1] if result else None
        tie, delay_seconds = rng.random() < SHARE_TIED, rng.uniform(0.5, 5)
        if tie and before and before.kind in OUTAGES and event.kind not in OUTAGES:
            event = replace(event, share=before.share, delay_seconds=delay_seconds)  # noqa: PLW2901
        result.append(event)
    return result
