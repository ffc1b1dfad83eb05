"""Counts every result document as it is handed to the sinks: by task, by reason, and the newest failures."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from site_spider import runtime
from site_spider.histogram import Histogram
from site_spider.ledger.completion import Job
from site_spider.ledger.ledger import Entry
from site_spider.observe.moments import iso
from site_spider.observe.tasks import TaskCounts, TaskSums
from site_spider.results.failures import REASONS, NameCounts, failure_name, reason_of

MOST_NEWEST: Final = 20
_LONGEST_URL: Final = 500  # characters
_LONGEST_SAID: Final = 300
_LARGEST_BYTES: Final = 2**50


class FailedPage(NamedTuple):
    """A page that could not be fetched or read."""

    url: str
    reason: str  # one of REASONS
    description: str
    at: float  # Unix time
    task_id: str | None
    seed: Entry | None

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {**self._asdict(), "at": iso(self.at), "seed": self.seed and self.seed.position}


class PageTally:
    """Hears of result documents. On the event loop's thread only."""

    def __init__(self, tasks: TaskSums, sizes: Histogram) -> None:
        self._tasks = tasks
        self._sizes = sizes
        self.reasons: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self.names = NameCounts()  # by the name of the error or status, without host and numbers
        self.items = 0
        self.newest: deque[FailedPage] = deque(maxlen=MOST_NEWEST)

    def page(self, document: Mapping[str, Any], job: Job | None, *, is_again: bool = False) -> None:
        """As in ResultTally."""
        task_id = None if job is None else job.root.seed.task_id
        counts = self._tasks.of(task_id)
        if not is_again:
            self._count(counts, document.get("response_size"))
        description = document.get("description")
        if description is not None:
            said = str(description)
            reason = reason_of(said)
            counts.reasons[reason] += 1
            self._failed(said, reason, document, job, task_id)

    def item(self) -> None:
        """An item is handed to the sinks."""
        self.items += 1

    def _count(self, counts: TaskCounts, size: object) -> None:
        if type(size) is int and 0 <= size < _LARGEST_BYTES:  # a spider of the user's own may say anything
            self._sizes.observe(size)
            counts.page(size)
        else:
            counts.page(0)

    def _failed(
        self, said: str, reason: str, document: Mapping[str, Any], job: Job | None, task_id: str | None
    ) -> None:
        self.reasons[reason] += 1
        self.names.add(str(document.get("reason") or failure_name(said)))
        url = document.get("url") or (job.url if job is not None else "")
        seed = None if job is None else job.entry
        self.newest.append(
            FailedPage(str(url)[:_LONGEST_URL], reason, said[:_LONGEST_SAID], runtime.time(), task_id, seed)
        )

    def document(self) -> dict[str, Any]:
        """Counts and newest failures, the latest first."""
        return {
            "items": self.items,
            "reasons": dict(self.reasons),
            "failures": dict(self.names.counts),
            "newest_failures": [failed.document() for failed in reversed(self.newest)],
        }
