"""A distributed crawler built on Scrapy: seeds from Kafka, results to Elasticsearch, HBase or Kafka."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from site_spider import old_names

if TYPE_CHECKING:
    from site_spider.results.result import Result as Result
    from site_spider.service.addon import Addon as Addon
    from site_spider.spiders.crawl_spider import SeedSpider as SeedSpider

# What other projects import from here, and the module of each: loaded when it is asked for.
_PUBLIC = {
    "Addon": "service.addon",
    "Result": "results.result",
    "SeedSpider": "spiders.crawl_spider",
}
__all__ = ["Addon", "Result", "SeedSpider"]

old_names.install()


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
