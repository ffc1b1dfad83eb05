"""Rebalances by the clock: a member joins the group, the next time another one leaves, and so on."""

from __future__ import annotations

import random

from tools.chaos.crew import Crew, Run


class Rebalances:
    """One every so many seconds, on top of the events of the plan; none when that is 0.

    A member is a `crawl_spider.sh` with one process. One joins first, so the group never has fewer
    processes than the run began with, but for what the plan does to it.
    """

    def __init__(self, crew: Crew, every_seconds: float, random_seed: int) -> None:
        self.joined = 0
        self.left: list[Run] = []
        self._crew = crew
        self._every_seconds = every_seconds
        self._rng = random.Random(f"rebalances {random_seed}")
        self._due: float | None = None

    @property
    def count(self) -> int:
        """How many there were."""
        return self.joined + len(self.left)

    def look(self, now: float) -> str | None:
        """What happens now, in words, if anything does."""
        if not self._every_seconds:
            return None
        if self._due is None:
            self._due = now + self._every_seconds
        if now < self._due:
            return None
        told = self._join() if self.joined == len(self.left) else self._leave()
        if told:  # otherwise again in the next round: nobody was there who could leave
            self._due = max(self._due + self._every_seconds, now)
        return told

    def _join(self) -> str:
        self.joined += 1
        return f"rebalance {self.count}: {self._crew.start(1).name} joins"

    def _leave(self) -> str | None:
        alone = [run for run in self._crew.working() if run.size == 1]
        if not alone:
            return None
        run = self._rng.choice(alone)
        run.terminate()
        self.left.append(run)
        return f"rebalance {self.count}: {run.name} leaves (SIGTERM)"
