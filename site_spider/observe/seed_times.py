"""Measures how long seeds are in flight, and counts their outcomes by task."""

from __future__ import annotations

from collections.abc import Callable

from site_spider import runtime
from site_spider.contracts.seed_log import Message
from site_spider.errors import SeedError
from site_spider.histogram import Histogram
from site_spider.ledger.completion import SeedListener
from site_spider.ledger.ledger import Entry
from site_spider.observe.tasks import TaskSums
from site_spider.seed.seed import Seed


class SeedTimes(SeedListener):
    """From the poll to the completion. The exemplar of a duration is the Entry of its seed."""

    def __init__(
        self, tasks: TaskSums, durations: Histogram, clock: Callable[[], float] | None = None
    ) -> None:
        self._tasks = tasks
        self._durations = durations
        self._clock = clock or runtime.monotonic
        self._open: dict[Entry, tuple[float, str | None]] = {}
        self.last_completion_at: float | None = None  # of the clock

    def arrived(self, entry: Entry, message: Message, seed: Seed | SeedError) -> None:  # noqa: ARG002
        """As in SeedListener."""
        self._open[entry] = self._clock(), None if isinstance(seed, SeedError) else seed.task_id

    def ended(self, entry: Entry) -> None:
        """As in SeedListener."""
        now = self.last_completion_at = self._clock()
        began, task_id = self._open.pop(entry, (now, None))
        self._durations.observe(now - began, entry)
        if entry.outcome is not None:
            self._tasks.of(task_id).ended(
                entry.outcome.value
            )  # the same as `value`, in a quarter of the time

    def fenced(self, entry: Entry) -> None:
        """As in SeedListener."""
        self._open.pop(entry, None)

    def seconds_open(self, entry: Entry | None) -> float:
        """For how long a seed is in flight; 0 for one that is not."""
        found = None if entry is None else self._open.get(entry)
        return 0.0 if found is None else self._clock() - found[0]

    def seconds_since_completion(self) -> float | None:
        """Since the last one was complete; None while none was."""
        return None if self.last_completion_at is None else self._clock() - self.last_completion_at
