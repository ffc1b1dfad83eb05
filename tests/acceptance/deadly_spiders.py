"""Spiders whose processes die, or hang, on some pages."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from typing import Any, ClassVar

from scrapy.http import Response

from site_spider.spiders.crawl_spider import SeedSpider


class DeadlySpider(SeedSpider):
    """In the place of crawl_spider: `deadly` pages kill the first process, and block others for ever."""

    def parse(self, response: Response) -> Any:
        if "deadly" in response.url and not os.environ["CRAWL_SPIDER_RESTARTS"]:
            os.kill(os.getpid(), signal.SIGKILL)
        while "deadly" in response.url:
            time.sleep(0.01)
        return super().parse(response)


class ThreadlessSpider(SeedSpider):
    """From a page on the process is at its limit of threads; `endless` pages block the event loop."""

    name = "threadless_spider"

    def parse(self, response: Response) -> Any:
        if "threadless" in response.url:
            threading.Thread.start = _refused  # type: ignore[method-assign]
        self.logger.info("reads %s", response.url)
        while "endless" in response.url:
            time.sleep(0.01)
        return super().parse(response)


class LateSpider(SeedSpider):
    """Its pipeline stores what it has gathered when it is closed."""

    name = "late_spider"
    custom_settings: ClassVar[dict[str, Any]] = {"ITEM_PIPELINES": {f"{__name__}.Gathering": 500}}


class Gathering:
    def __init__(self) -> None:
        self._count = 0

    def process_item(self, item: Any) -> Any:
        self._count += 1
        return item

    def close_spider(self) -> None:
        logging.getLogger(__name__).info("gathered: %d", self._count)


def _refused(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
