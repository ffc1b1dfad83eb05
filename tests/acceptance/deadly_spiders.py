"""Spiders whose processes die, or hang, on some pages."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

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


def _refused(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
