"""A distributed crawler built on Scrapy: seeds from Kafka, results to Elasticsearch, HBase or Kafka.

What spiders and other projects import stands here, and is loaded when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from site_spider.results.document import Result, page_of
    from site_spider.service.environment import Addon
    from site_spider.service.seed_producer import SeedProducer
    from site_spider.spiders.crawl_spider import SeedSpider, to_topic

__all__ = ["Addon", "Result", "SeedProducer", "SeedSpider", "page_of", "to_topic"]

_HOMES = {
    "Addon": "site_spider.service.environment",
    "Result": "site_spider.results.document",
    "SeedProducer": "site_spider.service.seed_producer",
    "SeedSpider": "site_spider.spiders.crawl_spider",
    "page_of": "site_spider.results.document",
    "to_topic": "site_spider.spiders.crawl_spider",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
