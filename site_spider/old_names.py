"""Keeps dotted paths of release 0.1 working in settings, with a warning.

For one release such a path leads to the module's new place, with one warning line that names it. Paths
that nobody outside had a reason to use are gone.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

logger = logging.getLogger(__name__)

NEW_NAMES = {
    f"site_spider.{old}": f"site_spider.{new}"
    for old, new in {
        "items": "results.result",
        "core.sink": "contracts.sink",
        "core.seed_log": "contracts.seed_log",
        "core.results_reader": "contracts.reader",
        "core.done_store": "contracts.done_store",
        "core.document": "results.document",
        "core.done_bloom": "dupefilter.bloom",
        "core.done_rolling": "dupefilter.rolling",
        "core.options": "options",
        "core.seed": "seed.seed",
        "core.url": "page.url",
        "crawl.assembly": "service.service",
        "crawl.cancellation": "engine.cancellation",
        "crawl.delivery": "results.delivery",
        "crawl.dupefilter": "dupefilter.dupefilter",
        "crawl.lean_middlewares": "engine.middlewares",
        "crawl.log_format": "engine.log_format",
        "crawl.pipeline": "results.pipeline",
        "crawl.plain_handler": "download.handler",
        "crawl.proxy_level": "download.proxies.middlewares",
        "crawl.proxy_service": "download.proxies.service",
        "crawl.quick_stats": "engine.stats",
        "crawl.redirect": "frontier.retry.redirect",
        "crawl.resolver": "download.resolver",
        "crawl.retry": "frontier.retry.middleware",
        "crawl.robots_middleware": "frontier.robots.middleware",
        "crawl.scheduler": "frontier.scheduler",
        "crawl.seen_lookup": "dupefilter.lookup",
        "adapters.elasticsearch_results": "adapters.elasticsearch.results",
        "adapters.hbase_results": "adapters.hbase.results",
        "adapters.kafka_sink": "adapters.kafka.sink",
        "adapters.local_done": "adapters.local.done",
        "adapters.local_log": "adapters.local.log",
        "adapters.local_results": "adapters.local.results",
        "adapters.redis_done": "adapters.redis.done",
    }.items()
}
_CLASSES = {  # whose module's name is a package's now
    "site_spider.adapters.kafka.KafkaSeedLog": "site_spider.adapters.kafka.seed_log",
    "site_spider.adapters.elasticsearch.ElasticsearchSink": "site_spider.adapters.elasticsearch.sink",
    "site_spider.adapters.hbase.HBaseSink": "site_spider.adapters.hbase.sink",
}
_PACKAGES = ("site_spider.core", "site_spider.crawl")


class OldNames(MetaPathFinder, Loader):
    """Finds them; asked only for what is not there."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - as importlib asks
        target: ModuleType | None = None,  # noqa: ARG002 - likewise
    ) -> ModuleSpec | None:
        """As importlib asks."""
        if fullname in _PACKAGES:
            return ModuleSpec(fullname, self, is_package=True)
        return ModuleSpec(fullname, self) if fullname in NEW_NAMES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module at its new place."""
        if spec.name in _PACKAGES:
            return None
        new_name = NEW_NAMES[spec.name]
        _say_moved(spec.name, new_name)
        return importlib.import_module(new_name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it has been executed at its new place."""


def class_of(package: str, name: str) -> Any:
    """For `__getattr__` of a package that has the name of an old module. Raises AttributeError."""
    module = _CLASSES.get(f"{package}.{name}")
    if module is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    _say_moved(f"{package}.{name}", f"{module}.{name}")
    return getattr(importlib.import_module(module), name)


def _say_moved(old: str, new: str) -> None:
    logger.warning("%s has moved to %s; the old name goes with the next release", old, new)


def install() -> None:
    """Let Python find them."""
    sys.meta_path.append(OldNames())
