"""Log lines of a delivery: an outage once, refusals a few at a time."""

from __future__ import annotations

import logging

from site_spider.contracts.sink import Record, Verdict
from site_spider.results.log_limit import LogLimit

logger = logging.getLogger(__name__)

LONGEST_REASON = 300  # characters


class DeliveryLog:
    """For the sink of this name; `now` is the event loop's time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._rejections = LogLimit(count=10, period_seconds=60)
        self._retries = LogLimit(count=1, period_seconds=60)

    def availability(
        self, before: float | None, since: float | None, waiting: int, now: float, reason: str
    ) -> None:
        """The sink is unavailable `since` a moment, and was `before`; one line when that changed."""
        if since is not None and before is None:
            logger.warning("Sink %s is away; %d records wait: %s", self._name, waiting, _shortened(reason))
        elif since is None and before is not None:
            logger.info(
                "Sink %s is back after %.1f s; %d records are waiting.", self._name, now - before, waiting
            )

    def rejected(self, record: Record, verdict: Verdict, now: float) -> None:
        """The server refuses a record for good."""
        if self._rejections.admit(now):
            more = self._rejections.take_held_back()
            note = f" ({more} more since the last such line)" if more else ""
            reason = _shortened(verdict.reason)
            logger.warning("Sink %s rejected %r: %s%s", self._name, record.key, reason, note)

    def retried(self, count: int, reason: str, now: float) -> None:
        """The server wants some records again later."""
        if self._retries.admit(now):
            logger.warning("Sink %s wants %d records again later: %s", self._name, count, _shortened(reason))


def _shortened(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 1] + "…"
