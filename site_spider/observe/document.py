"""The statistics document: a snapshot of this process with what was added since the document before.

Its fields are fit for an index: none is named after a host, a partition or a task. Names from outside stand
only in `failures`, `unknown_fields`, `counters` and `texts`, which are bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from site_spider.histogram import difference
from site_spider.ledger.ledger import Ledger, Outcome
from site_spider.observe.counters import counters

MOMENTS: Final = ("interval", "idle", "close")

_TASKS_SECONDS: Final = 60.0  # from one document with the counts of tasks to the next: they are large
_AS_THEY_ARE: Final = (  # in the snapshot
    "spider", "group", "topic", "process", "slot", "host_name", "pid", "started_at", "version",
    "uptime_seconds", "seeds", "conserved", "seconds_since_completion", "unknown_fields", "items", "reasons",
    "failures", "retries", "links", "queues", "waiting", "waiting_for_their_moment",
    "requests_out", "requests_in_progress", "pause", "paused_seconds", "log_is_away", "sinks", "proxies",
    "frontier", "bodies", "loop_lag_max_seconds", "clock_ahead_seconds", "memory",
)  # fmt: skip
_NO_HOSTS: Final = dict.fromkeys(("waiting", "ready", "busy", "delay", "back-off", "robots"), 0)
_NAMED_BY_OTHERS: Final = frozenset({"failures", "responses", "unknown_fields", "counters", "texts"})


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


class Series:
    """Makes the documents of one receiver: numbers them, and tells what was added since the one before."""

    def __init__(self, statistics_id: str, now: float) -> None:
        self._id = statistics_id
        self._number = 0
        self._before = Totals()
        self._since = now  # monotonic
        self._tasks_at = -_TASKS_SECONDS
        self._latency: Mapping[str, Any] = {}

    def next(self, taken: Mapping[str, Any], stats: Mapping[Any, Any], moment: str, now: float) -> Made:
        """The document of a snapshot. `moment` is one of MOMENTS, `now` of the monotonic clock."""
        pages = totals_in(taken["downloads"]["page"])
        found = {
            "@timestamp": taken["at"],
            "id": self._id,
            "moment": moment,
            "interval": self._number,
            "interval_seconds": round(now - self._since, 3),
            **_sums("total", pages),
            **_sums("interval", pages.minus(self._before)),
            "robots": _sums("", totals_in(taken["downloads"]["robots"])),
            "responses": taken["downloads"]["page"]["statuses"],
            "oldest_seconds": max(taken["oldest_in_flight_seconds"].values(), default=0.0),
            "partitions": len(taken["seeds_in_flight"]),
            "latency": {name: _without_buckets(one) for name, one in taken["latency"].items()},
            "interval_latency": {
                name: difference(one, self._latency.get(name)) for name, one in taken["latency"].items()
            },
            **{name: taken[name] for name in _AS_THEY_ARE},
            "hosts": {**_NO_HOSTS, **taken["hosts"]},  # a field that an index lacks cannot be shown
            **_counted(stats),
        }
        if moment != "interval" or now - self._tasks_at >= _TASKS_SECONDS:
            self._tasks_at = now
            found["tasks"] = taken["tasks"]
        made = Made(document_id(taken["process"], self._number), found)
        self._number, self._since, self._before = self._number + 1, now, pages
        self._latency = taken["latency"]
        return made


class Made(NamedTuple):
    """A document and its `_id`: one that is sent again overwrites itself."""

    key: str
    document: dict[str, Any]


def totals_in(kind: Mapping[str, Any]) -> Totals:
    """Of one kind of download in a snapshot."""
    return Totals(kind["answers"], kind["response_bytes"], kind["request_bytes"])


def without_names(document: Mapping[str, Any]) -> dict[str, Any]:
    """Without the fields that take their names from outside: for an index that has too many fields."""
    return {name: value for name, value in document.items() if name not in _NAMED_BY_OTHERS}


def document_id(process: str, number: int) -> str:
    """The `_id` of a document."""
    return f"{process}-{number}"


def _without_buckets(histogram: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in histogram.items() if name != "buckets"}


def _sums(prefix: str, sums: Totals) -> dict[str, int]:
    before = f"{prefix}_" if prefix else ""
    return {
        f"{before}num": sums.num,
        f"{before}response_size": sums.response_size,
        f"{before}request_size": sums.request_size,
    }


def _counted(stats: Mapping[Any, Any]) -> dict[str, Any]:
    found = counters(stats)
    return {"counters": found.numbers, "texts": found.texts, "counters_left_out": found.left_out}
