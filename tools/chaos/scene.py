"""One crawl that is ready to begin, and how far it is."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from site_spider.errors import LogUnavailable
from tools.chaos.crew import Crew
from tools.chaos.feed import Feed
from tools.chaos.options import Options
from tools.chaos.roster import Roster
from tools.chaos.site import ChaosSite
from tools.chaos.workload import Page, Workload, seed_of
from tools.deployment.deployment import Deployment


@dataclass(frozen=True)
class Scene:
    """As in storm.Scene."""

    options: Options
    site: ChaosSite
    deployment: Deployment
    topics: Sequence[str]  # of seeds
    crew: Crew
    workload: Workload
    feed: Feed
    roster: Roster
    began: float = field(default_factory=time.monotonic)

    def wanted(self) -> list[Page]:
        """All pages that must be stored."""
        return [page for seed in range(self.feed.count) for page in self.workload.pages_of(seed)]

    def share(self) -> float:
        """As in storm.Scene: of the pages, or of the time of a soak."""
        if self.options.soak:
            return min(1.0, (time.monotonic() - self.began) / (60 * self.options.soak))
        deleted = len(self.feed.deleted)  # as many were produced besides
        return (self._done() - deleted) / (self.options.seeds * self.options.tree)

    def progress(self) -> str:
        """As in storm.Scene."""
        minutes = f"minute {(time.monotonic() - self.began) / 60:.1f}, " if self.options.soak else ""
        ended = sum(task.is_ended for task in self.roster.all())
        tasks = f", {ended} of {len(self.roster)} tasks have ended" if len(self.roster) else ""
        return f"{minutes}{self.fetched()} of {self._total()} pages{tasks}"

    def fetched(self) -> int:
        """As in storm.Scene."""
        return len(self.site.read_on())

    def seeds_done(self) -> int:
        """How many seeds are fetched or given up, about."""
        return self._done() // self.options.tree

    def is_fetched(self) -> bool:
        """As in storm.Scene."""
        return self._done() >= self._total()

    def lag(self) -> int | None:
        """As in storm.Scene."""
        try:
            return self.deployment.lag(*self.topics)
        except LogUnavailable:
            return None

    def place_of(self, path: str) -> str | None:
        """The partition that the seed of a page lies in."""
        seed = seed_of(path)
        place = None if seed is None else self.feed.places.get(seed)
        return f"{place.partition.topic}/{place.partition.number}" if place else None

    def _total(self) -> int:
        """Pages of all seeds that there will be, or that there are in a soak."""
        seeds = self.feed.count if self.options.soak else self.options.seeds + len(self.feed.deleted)
        return seeds * self.options.tree

    def _done(self) -> int:
        """Pages that were fetched, and those of cancelled tasks and deleted seeds, which may never be."""
        cancelled = (list(task.seeds) for task in self.roster.all() if task.is_cancelled)
        given_up = itertools.chain(self.feed.deleted, *cancelled)
        return len(self.site.asked) + sum(self.options.tree - self.site.of_seed[seed] for seed in given_up)
