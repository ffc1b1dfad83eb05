"""What becomes of a record that cannot be taken: it is counted, said and skipped, and ends nothing.

Others may write to the topics of tasks, too. So each topic has one strict reader, and each record is taken
behind this guard.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from site_spider.contracts.seed_log import Message
from site_spider.errors import SiteSpiderError

logger = logging.getLogger(__name__)

_MOST_SAID = 20  # of a topic

T = TypeVar("T")


class BadRecords:
    """Of one topic."""

    def __init__(self, topic: str, count: Callable[[str], None] | None = None) -> None:
        self._topic = topic
        self._count = count  # in Scrapy's statistics
        self._said = 0

    def taken(self, take: Callable[[Message], T], message: Message) -> T | None:
        """What `take` returns; None where it raises."""
        try:
            return take(message)
        except SiteSpiderError as error:
            self.skip(message, str(error))
        except Exception as error:  # noqa: BLE001 - whatever a record holds, it ends no process
            self.skip(message, f"it cannot be taken: {error!r:.300}")
        return None

    def skip(self, message: Message, why: str) -> None:
        """One cannot be taken."""
        self._said += 1
        if self._count is not None:
            self._count("tasks/records_skipped")
        if self._said <= _MOST_SAID:
            place = f"{self._topic}/{message.partition.number} offset {message.offset}"
            logger.warning("Skipped in %s: %s", place, why)
        if self._said == _MOST_SAID:
            logger.warning("Further malformed records of %s are not said", self._topic)
