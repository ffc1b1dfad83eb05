"""The settings of this project, for tests that start no process."""

from __future__ import annotations

from typing import Any

from scrapy.settings import Settings


def ours(priority: str = "cmdline", **given: Any) -> Settings:
    """And those that are given on the command line."""
    settings = Settings()
    settings.setmodule("site_spider.settings", priority="project")
    settings.setdict(given, priority=priority)
    return settings
