"""Whether downloads, seeds and polls may begin."""

from __future__ import annotations

from collections.abc import Callable

from site_spider.intake.handover import Handover
from site_spider.intake.load import Load
from site_spider.intake.soft_limit import SoftLimit
from site_spider.results.commits import Commits
from site_spider.results.results import Sinks


class BackPressure:
    """Asks all that may be full, away or ending. Any thread may ask."""

    def __init__(
        self,
        load: Load,
        sinks: Sinks,
        commits: Commits,
        handover: Handover,
        is_stopping: Callable[[], bool],
        has_memory: Callable[[], bool],
        soft_limit: SoftLimit,
    ) -> None:
        self._load = load
        self._sinks = sinks
        self._commits = commits
        self._handover = handover
        self._is_stopping = is_stopping
        self._soft_limit = soft_limit
        self._has_memory = has_memory  # for more bodies

    def may_download(self) -> bool:
        """False while a sink or the seed topic takes nothing, the seed log is silent, bodies fill the
        memory, partitions leave or the crawl stops.
        """
        if self._is_stopping() or self._handover.active or not self._has_memory():
            return False
        if self._commits.is_cut_off:
            return False
        return self._load.may_download and self._sinks.are_taking() and self._commits.is_taking()

    @property
    def is_cut_off(self) -> bool:
        """Whether nothing begins because the seed log is silent."""
        return self._commits.is_cut_off

    def cause(self) -> str:
        """What keeps polls from beginning, of the causes of observe.pauses; empty when they may."""
        if self._is_stopping() or self._handover.active:
            return "stop"
        if not self._has_memory():
            return "memory"
        takes = self._load.may_download and self._commits.is_taking()
        if self.is_cut_off or (self._sinks.are_taking() and not takes):
            return "kafka"
        if not (self._sinks.are_taking() and self.may_admit()):
            return "sink"
        return "memory" if self._soft_limit.keeps_intake else ""

    def look(self) -> None:
        """See how much memory is used; to be called now and then, on the event loop's thread."""
        self._soft_limit.look()

    def may_admit(self) -> bool:
        """Whether seeds may begin; while trees keep too many results, none is to be in their way."""
        return not self._commits.is_crowded

    def may_poll(self) -> bool:
        """Whether more seeds may be polled."""
        return self.may_download() and self.may_admit() and not self._soft_limit.keeps_intake
