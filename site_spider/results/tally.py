"""Counts what sinks and the seed log answered, for metrics."""

from __future__ import annotations

from collections.abc import Iterable

from site_spider import runtime
from site_spider.contracts.sink import Answer, Verdict
from site_spider.histogram import Histogram

_NAMES = {Answer.ACKNOWLEDGED: "acknowledged", Answer.RETRY: "retried", Answer.REJECTED: "rejected"}


class SinkTally:
    """Of one delivery. On the event loop's thread."""

    def __init__(self) -> None:
        self.batches = 0
        self.answers = dict.fromkeys(_NAMES.values(), 0)
        self.seconds = Histogram()

    def written(self, seconds: float) -> None:
        """A batch was written, whatever came of it."""
        self.batches += 1
        self.seconds.observe(seconds)

    def answered(self, verdicts: Iterable[Verdict]) -> None:
        """What the sink said of each record."""
        for verdict in verdicts:
            self.answers[_NAMES[verdict.answer]] += 1


class CommitTally:
    """Commits of offsets. One thread counts, any may read."""

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(("succeeded", "failed"), 0)
        self.last_at: float | None = None  # Unix time of the last one that succeeded

    def succeeded(self) -> None:
        """Offsets are committed."""
        self.outcomes["succeeded"] += 1
        self.last_at = runtime.time()

    def failed(self) -> None:
        """They are not, for now."""
        self.outcomes["failed"] += 1
