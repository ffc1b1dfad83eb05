"""A spider whose process dies, or hangs, on some pages."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from scrapy.http import Response

from site_spider.spiders.crawl_spider import SeedSpider


class DeadlySpider(SeedSpider):
    """Takes the place of crawl_spider."""

    def parse(self, response: Response) -> Any:
        if "deadly" in response.url:
            os.kill(os.getpid(), signal.SIGKILL)
        while "endless" in response.url:
            time.sleep(0.01)
        return super().parse(response)
