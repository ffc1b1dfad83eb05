"""What one process has done for a task, as it tells the others. Numbers only grow, but for `claimed`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from site_spider.sources.model import Part
from site_spider.tasks.record import MOST

_MOST_NAMES = 1_000
_MOST_TRAPS = 20

Number = Annotated[int, Field(ge=0, le=MOST)]
Numbers = Annotated[dict[str, Number], Field(max_length=_MOST_NAMES)]


class Trap(Part):
    """A pattern of paths with many pages and few different texts."""

    pattern: str
    pages: Number
    texts: Number


class Usage(Part):
    """Of one process and task."""

    claimed: Number = 0  # pages of the budget that nobody else may take
    begun: Number = 0  # first attempts
    pages: Number = 0  # documents
    bytes: Number = 0  # of their responses
    parked: Number = 0  # messages
    sent_on: Number = 0  # of these: sent to the seed topic as well, because the task went on meanwhile
    links_filtered: Number = 0  # by rules and by budgets of hosts
    links_cancelled: Number = 0
    seeds: Numbers = Field(default_factory=dict)  # by outcome
    hosts: Numbers = Field(default_factory=dict)  # pages claimed of hosts, where there is a budget for them
    traps: Annotated[list[Trap], Field(max_length=_MOST_TRAPS)] = Field(default_factory=list)

    @property
    def waiting(self) -> int:
        """Messages that only the parked topic has, or had."""
        return max(0, self.parked - self.sent_on)


class Pace(Part):
    """How fast one process is with a task that has a rate."""

    used: Number = 0  # thousandths of a request a second
    is_held: bool = False  # by the rate: it could begin more

    @classmethod
    def of(cls, per_second: float, *, is_held: bool) -> Pace:
        """From a rate."""
        return cls(used=min(MOST, int(1_000 * per_second)), is_held=is_held)

    @property
    def per_second(self) -> float:
        """Requests."""
        return self.used / 1_000


class Returned(Part):
    """How far the parked messages of a task were put back."""

    parked: Numbers = Field(
        default_factory=dict
    )  # of each process: how many waited of it when the work began
    offsets: Numbers = Field(default_factory=dict)  # of each partition: the first that was not looked at


NOTHING = Usage()


def total(usages: Iterable[Usage]) -> Usage:
    """The sum over processes."""
    usages = list(usages)
    traps = sorted((trap for usage in usages for trap in usage.traps), key=lambda trap: -trap.pages)
    return Usage(
        claimed=sum(usage.claimed for usage in usages),
        begun=sum(usage.begun for usage in usages),
        pages=sum(usage.pages for usage in usages),
        bytes=sum(usage.bytes for usage in usages),
        parked=sum(usage.parked for usage in usages),
        sent_on=sum(usage.sent_on for usage in usages),
        links_filtered=sum(usage.links_filtered for usage in usages),
        links_cancelled=sum(usage.links_cancelled for usage in usages),
        seeds=_sum_by_name(usage.seeds for usage in usages),
        traps=traps[:_MOST_TRAPS],
    )


def _sum_by_name(many: Iterable[dict[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for counts in many:
        for name, count in counts.items():
            sums[name] = sums.get(name, 0) + count
    return sums
