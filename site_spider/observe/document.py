"""The statistics document: totals of this process, and of the last interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from site_spider.ledger.entry import Outcome
from site_spider.ledger.ledger import Ledger


@dataclass(slots=True)
class Totals:
    """Running totals of a process; sizes are bytes."""

    num: int = 0  # downloads: every attempt that was answered
    response_size: int = 0
    request_size: int = 0

    def minus(self, other: Totals) -> Totals:
        """The difference to an earlier state, or to a part."""
        return Totals(
            self.num - other.num,
            self.response_size - other.response_size,
            self.request_size - other.request_size,
        )


@dataclass(slots=True)
class Snapshot:
    """The state of a process at one moment."""

    totals: Totals  # of links, without robots.txt
    robots: Totals = field(default_factory=Totals)  # of robots.txt
    responses: Mapping[str, int] = field(default_factory=dict)  # to links, by status
    failures: Mapping[str, int] = field(default_factory=dict)  # by reason
    seeds: Mapping[str, int] = field(default_factory=dict)
    queues: Mapping[str, int] = field(default_factory=dict)
    hosts: Mapping[str, int] = field(default_factory=dict)  # of which something waits, by reason
    unknown_fields: Mapping[str, int] = field(default_factory=dict)  # of seeds: ignored, by name


def seed_counts(ledger: Ledger) -> dict[str, int]:
    """Where every seed of this process is (rule 10)."""
    counts = {f"completed_with_{outcome.value}": ledger.outcomes[outcome] for outcome in _COMPLETED}
    return {
        "consumed": ledger.consumed,
        "completed": sum(ledger.outcomes.values()),
        **counts,
        "filtered": ledger.outcomes[Outcome.FILTERED],
        "dead_lettered": ledger.outcomes[Outcome.DEAD_LETTER],
        "spilled": ledger.outcomes[Outcome.SPILLED],
        "cancelled": ledger.outcomes[Outcome.CANCELLED],
        "in_flight": ledger.in_flight,
        "handed_back": ledger.handed_back,
    }


_COMPLETED = (Outcome.RESULT, Outcome.FAILURE)
_ENDED = (
    "completed_with_result", "completed_with_failure", "filtered", "dead_lettered", "spilled", "cancelled",
)  # fmt: skip


def is_conserved(seeds: Mapping[str, int]) -> bool:
    """Whether every consumed seed is accounted for (rule 10)."""
    return seeds["consumed"] == sum(seeds.get(name, 0) for name in _ENDED) + seeds["in_flight"]


def document(
    names: Mapping[str, str], number: int, now: float, seconds: float, state: Snapshot, before: Totals
) -> dict[str, Any]:
    """One statistics document.

    `names` are spider, group and process; `number` counts the intervals, `now` is a Unix
    time, `seconds` the length of the interval, `before` the totals at its beginning.
    """
    interval = state.totals.minus(before)
    return {
        "@timestamp": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
        **names,
        "interval": number,
        "interval_seconds": round(seconds, 3),
        "total_num": state.totals.num,
        "total_response_size": state.totals.response_size,
        "total_request_size": state.totals.request_size,
        "interval_num": interval.num,
        "interval_response_size": interval.response_size,
        "interval_request_size": interval.request_size,
        "robots": {
            "num": state.robots.num,
            "response_size": state.robots.response_size,
            "request_size": state.robots.request_size,
        },
        "responses": dict(state.responses),
        "failures": dict(state.failures),
        "seeds": dict(state.seeds),
        "queues": dict(state.queues),
        "hosts": dict(state.hosts),
        "unknown_fields": dict(state.unknown_fields),
    }


def document_id(process: str, number: int) -> str:
    """The `_id`: a document that is sent again overwrites itself."""
    return f"{process}-{number}"
