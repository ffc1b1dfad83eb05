"""The same spider with seeds, queue and dupefilter in Redis.

scrapy runspider redis_spider.py -a extract=1 -O FILE:jsonlines -s REDIS_URL=... -s SCHEDULER=...
"""

from __future__ import annotations

import sys
from pathlib import Path

from scrapy_redis.spiders import RedisSpider

sys.path.insert(0, str(Path(__file__).parent))

from page_spider import PageSpider as FileSpider


class PagesOfRedis(RedisSpider):  # type: ignore[misc] # scrapy-redis has no types
    """Seeds are JSON in the list `pages:start_urls`."""

    name = "pages"
    redis_key = "pages:start_urls"
    extractor = None
    parse = FileSpider.parse

    def __init__(self, extract: str = "", **kwargs: str) -> None:
        super().__init__(**kwargs)
        self.extractor = FileSpider(extract=extract).extractor
