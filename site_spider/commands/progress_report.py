"""One report of `scrapy progress`, as a line and as a document."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from site_spider import runtime
from site_spider.contracts.seed_log import Partition, SeedLog, Topics, each_topic
from site_spider.observe.progress import Progress, Rate, of_partition, of_topics, total


@dataclass(frozen=True, slots=True)
class Report:
    """How far a group is, partition by partition and in sum."""

    topic: str  # or several, with commas between
    group: str
    address: str
    partitions: tuple[tuple[int | Partition, Progress], ...]  # by number, or by name too
    rate: float | None
    seconds_left: float | None
    unowned: frozenset[Partition] | None = (
        None  # partitions that no process has; None: not asked, or not known
    )

    @classmethod
    def taken(cls, log: SeedLog, topics: Topics, group: str, rate: Rate) -> Report:
        """Ask the log; `rate` takes part in the measurement. Raises LogUnavailable, TopicMissing."""
        names = each_topic(topics)
        found = of_topics(log, names, group)
        is_one = len(names) == 1
        partitions = tuple(
            (part.partition.number if is_one else part.partition, of_partition(part)) for part in found
        )
        whole = total(part for _, part in partitions)
        rate.add(runtime.monotonic(), whole.passed)
        return cls(
            topic=",".join(names),
            group=group,
            address=log.address,
            partitions=partitions,
            rate=rate.per_second,
            seconds_left=rate.seconds_left(whole.lag),
        )

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


def without_owner(report: Report) -> str:
    """A sentence about partitions that no process has; empty when nothing waits for one."""
    if not report.unowned or report.total.is_done:
        return ""
    if len(report.unowned) == len(report.partitions):
        return f"No process of group {report.group} has a partition: nothing is crawled until one is started."
    names = ", ".join(f"{one.topic}/{one.number}" for one in sorted(report.unowned))
    return (
        f"No process of group {report.group} has these partitions, so their seeds wait: {names}. The group "
        "should assign them within a minute; if not, start one more process."
    )


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
        "partitions_without_owner": None
        if report.unowned is None
        else [{"topic": one.topic, "partition": one.number} for one in sorted(report.unowned)],
        "partitions": [
            {
                **_named(which),
                "done": p.done,
                "in_flight": p.in_flight,
                "lag": p.lag,
                "end": p.end,
                "deleted_unread": p.deleted,
            }
            for which, p in report.partitions
        ],
    }


def _named(which: int | Partition) -> dict[str, Any]:
    if isinstance(which, Partition):
        return {"topic": which.topic, "partition": which.number}
    return {"partition": which}


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
