"""What all pages are made of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from site_spider.console.model.fleet import Fleet
from site_spider.console.model.pace import settled
from site_spider.console.model.scene import Scene
from site_spider.contracts.seed_log import Partition
from site_spider.observe.progress import Progress, total
from site_spider.tasks.desk import TaskFacts

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LogView:
    """What the seed log said of the group, and when."""

    at: float
    partitions: tuple[tuple[Partition, Progress], ...]
    unowned: frozenset[Partition] | None = None  # that no process has; None while that is not known

    @property
    def tiers(self) -> dict[str, Progress]:
        """Of each topic."""
        parts: dict[str, list[Progress]] = {}
        for partition, progress in self.partitions:
            parts.setdefault(partition.topic, []).append(progress)
        return {topic: total(found) for topic, found in parts.items()}

    @property
    def total(self) -> Progress:
        """The sum over partitions."""
        return total(part for _, part in self.partitions)


@dataclass(frozen=True, slots=True)
class View:
    """The fleet at one moment; `log` is None until the seed log has answered."""

    fleet: Fleet
    now: float
    group: str
    topic: str
    address: str
    log: LogView | None = None
    tasks: tuple[TaskFacts, ...] = ()
    troubles: tuple[str, ...] = ()
    others: tuple[str, ...] = ()  # processes of this host in other groups

    @property
    def until(self) -> float:
        """Up to when the curves are complete."""
        living = self.fleet.living(self.now)
        return settled(self.now, max((state.interval_seconds for state in living), default=0.0))

    @property
    def scene(self) -> Scene:
        """What the causes are looked for in."""
        if self.log is None:
            return Scene(self.fleet, self.now, self.until, tasks=self.tasks)
        unowned = self.log.unowned
        names = None if unowned is None else tuple(f"{each.topic}/{each.number}" for each in sorted(unowned))
        lag, partitions = self.log.total.lag, len(self.log.partitions)
        return Scene(self.fleet, self.now, self.until, lag, partitions, names, self.tasks)

    def heading(self, page: str) -> Document:
        """What each document begins with."""
        return {
            "page": page,
            "at": moment(self.now),
            "group": self.group,
            "topic": self.topic,
            "log": self.address,
            "troubles": list(self.troubles),
        }


def moment(at: float | None) -> str | None:
    """ISO 8601 in UTC, to the second; None for a time that is not known."""
    if not at:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def matches(wanted: str, *values: str) -> bool:
    """Whether one of the values contains the text that somebody looks for."""
    return not wanted or any(wanted.lower() in value.lower() for value in values)
