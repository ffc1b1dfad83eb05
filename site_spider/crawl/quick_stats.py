"""Scrapy's statistics in memory, without a check at every access for an argument that nobody gives."""

from __future__ import annotations

from typing import Any

from scrapy.statscollectors import MemoryStatsCollector


class QuickStatsCollector(MemoryStatsCollector):
    """Takes a `spider` argument without the warning that it is deprecated."""

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name)
