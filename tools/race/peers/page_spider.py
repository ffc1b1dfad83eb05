"""The spider of the Scrapy contestants, as Scrapy's tutorial would have it: LinkExtractor, items, a feed.

scrapy runspider page_spider.py -a seeds=FILE -a extract=1 -O FILE:jsonlines -s ...
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from scrapy import Request, Spider
from scrapy.http import Response
from scrapy.linkextractors import LinkExtractor


def headers_of(response: Response) -> str:
    assert response.headers is not None
    return json.dumps(dict(response.headers.to_unicode_dict()))


class PageSpider(Spider):
    name = "pages"

    def __init__(self, seeds: str = "", extract: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seeds = seeds
        self.extractor = LinkExtractor() if extract else None

    async def start(self) -> AsyncIterator[Any]:
        with Path(self.seeds).open() as lines:
            for line in lines:
                yield Request(line.strip(), dont_filter=True)

    def parse(self, response: Response, **_kwargs: Any) -> Iterator[Any]:
        assert hasattr(response, "text")
        yield {"url": response.url, "status": response.status, "headers": headers_of(response), "body": response.text}
        if self.extractor is not None:
            for link in self.extractor.extract_links(response):  # type: ignore[arg-type]
                yield Request(link.url)
