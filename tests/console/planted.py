"""What is planted into real crawls: a sink that goes away, and a spider that fails for one task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scrapy.http import Response

from site_spider.adapters.local.results import LocalSink
from site_spider.contracts.sink import Record, Verdict
from site_spider.errors import SinkUnavailable
from site_spider.spiders.crawl_spider import SeedSpider

GONE = "sink-is-away"


class LeavingSink(LocalSink):
    """Away while there is a file of this name beside its data."""

    name = "archive"

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        if (Path(self._store.path).parent / GONE).exists():
            raise SinkUnavailable("the archive does not answer")
        return await super().write(records)


class BrokenSpider(SeedSpider):
    """Takes the place of crawl_spider; cannot read the pages of one task."""

    def parse(self, response: Response) -> Any:
        if "/spring" in response.url:
            raise KeyError("price")
        return super().parse(response)
