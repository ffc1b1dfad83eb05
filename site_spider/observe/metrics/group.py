"""What is known of the whole group: its lag, the age of the lag, members, retention and dead letters.

Asked of the seed log only while somebody scrapes, in a thread, and at most four times a minute.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from site_spider import runtime
from site_spider.contracts.seed_log import (
    LogFacts,
    Partition,
    PartitionProgress,
    SeedLog,
    Topics,
    each_topic,
)
from site_spider.errors import LogUnavailable, SiteSpiderError, TopicMissing
from site_spider.observe.progress import of_partition, total

logger = logging.getLogger(__name__)

_EVERY_SECONDS: Final = 15.0
_MOST_PARTITIONS: Final = 200  # whose first message is looked at


class GroupWatch:
    """One thread at a time looks."""

    def __init__(
        self,
        log: SeedLog,
        topics: Topics,
        group: str,
        dead_letter_topic: str,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._log = log
        self._topics = each_topic(topics)
        self._group = group
        self._dead_letter_topic = dead_letter_topic
        self._clock = clock or runtime.monotonic
        self._look_at = float("-inf")
        self._found: dict[str, Any] = {}
        self._asking: runtime.Thread | None = None

    def look(self) -> dict[str, Any]:
        """As it was some seconds ago; empty at first, and while the log does not answer. Never waits."""
        if self._clock() >= self._look_at and (self._asking is None or not self._asking.is_alive()):
            self._look_at = self._clock() + _EVERY_SECONDS
            self._asking = runtime.Thread(target=self._ask, name="site-group", daemon=True)
            self._asking.start()
        return self._found

    def lag(self) -> int:
        """Seeds of all topics that are not complete. Asks at once, and waits. Raises LogUnavailable."""
        lag = 0
        for topic in self._topics:
            with suppress(TopicMissing):
                lag += total(map(of_partition, self._log.progress(topic, self._group))).lag
        return lag

    def _ask(self) -> None:
        try:
            self._found = self._asked()
        except SiteSpiderError as error:
            logger.debug("Nothing is known of the group: %s", error)
            self._found = {}
        except Exception:  # metrics never end a crawl
            logger.exception("The group could not be asked about")
            self._found = {}

    def _asked(self) -> dict[str, Any]:
        found: dict[str, Any] = {"lag_seeds": {}, "lag_age_seconds": {}}
        for topic in self._topics:
            with suppress(TopicMissing):  # it has nothing to do
                self._add(topic, found)
        found["dead_letters"] = {self._dead_letter_topic: self._dead_letters()}
        return found

    def _add(self, topic: str, found: dict[str, Any]) -> None:
        parts = self._log.progress(topic, self._group)
        facts = self._log.facts(topic, self._group, _first_incomplete(parts))
        found["lag_seeds"][topic] = total(map(of_partition, parts)).lag
        found["lag_age_seconds"][topic] = _age_seconds(facts)
        if facts.members is not None:
            found["members"] = max(facts.members, found.get("members", 0))
        if (unowned := self._log.unowned(topic, self._group)) is not None:
            found.setdefault("partitions_unowned", {})[topic] = len(unowned)
        if facts.retention_seconds is not None:
            found.setdefault("retention_seconds", {})[topic] = facts.retention_seconds

    def _dead_letters(self) -> int:
        try:
            parts = self._log.progress(self._dead_letter_topic, self._group)
        except (TopicMissing, LogUnavailable):
            return 0  # it is made by the first one
        return sum(part.end - part.start for part in parts)


def _first_incomplete(parts: Sequence[PartitionProgress]) -> dict[Partition, int]:
    """Where the watermark of each partition stands that has something left."""
    left = (part for part in parts if of_partition(part).lag)
    return {
        part.partition: part.start if part.committed is None else max(part.start, part.committed.offset)
        for part in islice(left, _MOST_PARTITIONS)
    }


def _age_seconds(facts: LogFacts) -> float:
    """Of the oldest seed that is not complete; 0 without one."""
    return max((max(0.0, runtime.time() - at) for at in facts.written_at.values()), default=0.0)
