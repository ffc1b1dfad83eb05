"""Scrapy's statistics collectors at less cost."""

from __future__ import annotations

from scrapy import signals
from scrapy.extensions.corestats import CoreStats
from scrapy.signalmanager import SignalManager
from scrapy.statscollectors import MemoryStatsCollector


class QuickStatsCollector(MemoryStatsCollector):
    """Takes a `spider` argument without the warning that it is deprecated, which costs a check each time."""

    __getattribute__ = object.__getattribute__  # in C, as if nobody had ever replaced it


class QuickCoreStats(CoreStats):
    """Lets others count responses and items: to be told of each by a signal costs more than a count."""

    def hand_over(self, connected: SignalManager) -> dict[object, str]:
        """From now on these signals are to be counted under these keys by whoever sends them."""
        connected.disconnect(self.response_received, signals.response_received)
        connected.disconnect(self.item_scraped, signals.item_scraped)
        return {
            signals.response_received: "response_received_count",
            signals.item_scraped: "item_scraped_count",
        }
