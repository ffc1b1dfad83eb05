"""What will happen, and when: all of it from one random seed.

An event is due when a share of the pages has been fetched, so that all events come before the end
however fast the crawl is. While a server is away the crawl stands still sooner or later, so some events are
tied to an outage: they come seconds after it began.
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


OUTAGES = frozenset({Kind.BROKER, Kind.ELASTICSEARCH})


@dataclass(frozen=True)
class Event:
    """One event: due `delay_seconds` after `share` of the pages were fetched.

    `seconds` is how long it lasts: until the server is started again, the frozen process goes on, the
    stopped run is replaced. `victim`, from 0 to 1, says which of those that there are.
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
    if kind in OUTAGES:
        return rng.uniform(2, 6)
    return rng.uniform(1, 6) if kind is Kind.TERM else 0


def plan(options: Options) -> list[Event]:
    """The events in their order."""
    rng = random.Random(options.random_seed)
    counts = {
        Kind.KILL: options.kills,
        Kind.TERM: options.terms,
        Kind.STOP: options.stops,
        Kind.BROKER: options.broker_restarts,
        Kind.ELASTICSEARCH: options.elasticsearch_restarts,
        Kind.JOIN: options.joins,
    }
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
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
