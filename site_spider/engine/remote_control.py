"""Scrapy's RemoteControl, imported only where it is switched on."""

from __future__ import annotations

from typing import Any

from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured


class LateRemoteControl:
    """Stands for it in EXTENSIONS_BASE: its import of aiohttp.web takes a twelfth of the CPU of a start."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Any:
        """Scrapy's extension. Raises NotConfigured without REMOTE_CONTROL_ENABLED."""
        if not crawler.settings.getbool("REMOTE_CONTROL_ENABLED"):
            raise NotConfigured
        from scrapy.extensions.remote_control import RemoteControl  # noqa: PLC0415

        return RemoteControl.from_crawler(crawler)
