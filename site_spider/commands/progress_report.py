"""One report of `scrapy progress`, as a line and as a document."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from site_spider.contracts.seed_log import SeedLog
from site_spider.observe.progress import Progress, Rate, of_partition, total


@dataclass(frozen=True, slots=True)
class Report:
    """How far a group is, partition by partition and in sum."""

    topic: str
    group: str
    address: str
    partitions: tuple[tuple[int, Progress], ...]
    rate: float | None
    seconds_left: float | None

    @classmethod
    def taken(cls, log: SeedLog, topic: str, group: str, rate: Rate) -> Report:
        """Ask the log; `rate` takes part in the measurement. Raises LogUnavailable, TopicMissing."""
        found = log.progress(topic, group)
        partitions = tuple((part.partition.number, of_partition(part)) for part in found)
        whole = total(part for _, part in partitions)
        rate.add(time.monotonic(), whole.passed)
        return cls(topic, group, log.address, partitions, rate.per_second, rate.seconds_left(whole.lag))

    @property
    def total(self) -> Progress:
        """The sum over partitions."""
        return total(part for _, part in self.partitions)

    @property
    def ends(self) -> tuple[int, ...]:
        """The next offset of each partition."""
        return tuple(part.end for _, part in self.partitions)


def line(report: Report) -> str:
    """All of it in one line."""
    whole = report.total
    parts = [f"done {whole.done}", f"in flight {whole.in_flight}", f"lag {whole.lag}"]
    if whole.deleted:
        parts.append(f"deleted unread {whole.deleted}")
    parts.append("rate -" if report.rate is None else f"rate {report.rate:.1f}/s")
    left = report.seconds_left
    parts.append("time left -" if left is None else f"time left {_clock(left)}")
    return ", ".join(parts)


def document(report: Report) -> dict[str, Any]:
    """All of it for programs; what is not known is null."""
    whole = report.total
    return {
        "topic": report.topic,
        "group": report.group,
        "done": whole.done,
        "in_flight": whole.in_flight,
        "lag": whole.lag,
        "deleted_unread": whole.deleted,
        "rate": None if report.rate is None else round(report.rate, 3),
        "seconds_left": None if report.seconds_left is None else round(report.seconds_left, 1),
        "partitions": [
            {
                "partition": number,
                "done": p.done,
                "in_flight": p.in_flight,
                "lag": p.lag,
                "end": p.end,
                "deleted_unread": p.deleted,
            }
            for number, p in report.partitions
        ],
    }


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
