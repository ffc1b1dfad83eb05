"""Which requests were made again because of a death, and how far the first one had come then.

Nobody can ask a killed crawler what it was doing. The record says when each answer was sent, the logs say
who had the host's partition at that time. So a request that comes again counts for the next death of its
crawler: it was downloading, or its answer had been there for some time and was not committed.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tools.chaos.crew import Run
from tools.chaos.happened import Death
from tools.chaos.logs import assignments

_Outage = tuple[float, float]


class Asked(NamedTuple):
    """One request as the site saw it."""

    began: float
    sent: float
    place: str | None  # topic/partition of its seed


@dataclass
class Toll:
    """What one death made to be fetched again."""

    death: Death
    downloading: int = 0
    ages: list[float] = field(default_factory=list)  # seconds since the answer, of those that had one

    @property
    def count(self) -> int:
        """How many requests."""
        return self.downloading + len(self.ages)

    def __str__(self) -> str:
        death = self.death
        oldest = f", the first of them {max(self.ages):.2f} s before" if self.ages else ""
        return (
            f"kill -9 of {death.crawler.pid} in {death.run.name}: {self.count} fetched again, "
            f"{self.downloading} of them downloading, {len(self.ages)} answered{oldest}"
        )


@dataclass(frozen=True)
class Repeats:
    """All requests that were made again."""

    tolls: Sequence[Toll]  # of deaths while all servers were there
    in_outages: int  # by deaths while one was away: nothing could be stored or committed
    others: int  # frozen crawlers, rebalances, retries

    def rows(self) -> list[tuple[str, str]]:
        """For the table."""
        if not self.tolls:
            return [("fetched twice, not by a death", str(self.in_outages + self.others))]
        ages = sorted(age for toll in self.tolls for age in toll.ages)
        return [
            ("fetched twice for each kill", _spread([toll.count for toll in self.tolls])),
            ("of these downloading at the kill", _spread([toll.downloading for toll in self.tolls])),
            ("of these answered before it", _spread([len(toll.ages) for toll in self.tolls])),
            ("seconds from those answers to the kill", _ages(ages)),
            ("fetched twice by kills while a server was away", str(self.in_outages)),
            ("fetched twice, not by a kill", str(self.others)),
        ]


def _spread(counts: Sequence[int]) -> str:
    mean = sum(counts) / len(counts)
    return f"mean {mean:.1f}, median {median(counts):.0f}, most {max(counts)} ({len(counts)})"


def _ages(ages: Sequence[float]) -> str:
    if not ages:
        return "-"
    return f"median {median(ages):.2f}, 95 % {ages[len(ages) * 95 // 100]:.2f}, longest {ages[-1]:.2f}"


def repeats(
    record: Path,
    place_of: Callable[[str], str | None],
    runs: Iterable[Run],
    deaths: Sequence[Death],
    outages: Sequence[_Outage],
) -> Repeats:
    """Look through the record; `place_of` tells where the seed of a path lies."""
    owners = _Owners(runs)
    tolls = [Toll(death) for death in deaths]
    others = 0
    for first, again in _pairs(record, place_of):
        number = _death(deaths, owners.at(first.place, first.began), first, again)
        if number is None:
            others += 1
        elif first.sent < deaths[number].when:
            tolls[number].ages.append(deaths[number].when - first.sent)
        else:
            tolls[number].downloading += 1
    calm = [toll for toll in tolls if not any(begin < toll.death.when < end for begin, end in outages)]
    return Repeats(calm, sum(toll.count for toll in tolls) - sum(toll.count for toll in calm), others)


def _pairs(record: Path, place_of: Callable[[str], str | None]) -> Iterator[tuple[Asked, Asked]]:
    """Each request that was made again, and the next one."""
    asked: dict[str, list[Asked]] = defaultdict(list)
    with record.open() as lines:
        for line in lines:
            entry = json.loads(line)
            asked[entry["host"] + entry["path"]].append(
                Asked(entry["time"], entry["sent"], place_of(entry["path"]))
            )
    for requests in asked.values():
        requests.sort()
        yield from pairwise(requests)


class _Owners:
    """Who had a partition at what time."""

    def __init__(self, runs: Iterable[Run]) -> None:
        found = sorted(one for run in runs for one in assignments(run.log))
        self._by_place: Mapping[str | None, list[tuple[float, int]]] = defaultdict(list)
        for when, place, pid in found:
            self._by_place[place].append((when, pid))

    def at(self, place: str | None, when: float) -> int | None:
        known = self._by_place[place]
        number = bisect_right(known, (when, 0))
        return known[number - 1][1] if number else None


def _death(deaths: Sequence[Death], pid: int | None, first: Asked, again: Asked) -> int | None:
    for number, death in enumerate(deaths):
        if death.crawler.pid == pid and first.began <= death.when <= again.began:
            return number
    return None
