"""What the rules of `rules` look at, and what they say."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from site_spider.console.model.fleet import Fleet
from site_spider.console.model.state import ProcessState
from site_spider.tasks.desk import TaskFacts

LOOK_BACK_SECONDS = 600


class Weight(IntEnum):
    """How much a cause matters."""

    BUG = 0
    STOP = 1
    SLOW = 2
    NOTE = 3


class Cause(NamedTuple):
    """One sentence; `page` of the console says more."""

    weight: Weight
    text: str
    page: str


@dataclass(frozen=True, slots=True)
class Scene:
    """What the rules look at; `lag` and `partitions` are None while the log does not answer."""

    fleet: Fleet
    now: float
    until: float  # up to when the curves are complete
    lag: int | None = None
    partitions: int | None = None
    unowned: tuple[str, ...] | None = None  # partitions, topic/number; None: the log cannot tell
    tasks: tuple[TaskFacts, ...] = ()

    @property
    def parked(self) -> int:
        """Seeds that wait until their task goes on."""
        return sum(task.parked for task in self.tasks)

    @property
    def living(self) -> list[ProcessState]:
        """Processes that run."""
        return self.fleet.living(self.now)

    def counted(self, prefix: str) -> Counter[str]:
        """What happened in the last ten minutes, by name."""
        counts: Counter[str] = Counter()
        for step in self.fleet.curves.between(self.until - LOOK_BACK_SECONDS, self.until):
            for name, count in step.counts.items():
                if name.startswith(prefix):
                    counts[name.removeprefix(prefix)] += count
        return counts
