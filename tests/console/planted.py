"""What is planted into a real crawl: a spider that fails for one task."""

from __future__ import annotations

from typing import Any

from scrapy.http import Response

from site_spider.spiders.crawl_spider import SeedSpider


class BrokenSpider(SeedSpider):
    """Takes the place of crawl_spider; cannot read the pages of one task."""

    def parse(self, response: Response) -> Any:
        if "/spring" in response.url:
            raise KeyError("price")
        return super().parse(response)
