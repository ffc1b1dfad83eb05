"""A spider whose callback holds the event loop for some seconds, where the URL asks for it."""

from __future__ import annotations

import re
import time
from typing import Any

from scrapy.http import Response

from site_spider import SeedSpider


class BlockingSpider(SeedSpider):
    name = "blocking"

    def parse(self, response: Response) -> Any:  # type: ignore[override]
        if found := re.search(r"\?block=(\d+)", response.url):
            time.sleep(int(found[1]))
        return super().parse(response)
