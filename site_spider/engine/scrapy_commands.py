"""Scrapy's `crawl` and `genspider` commands, with what they keep to themselves within reach."""

from __future__ import annotations

from pathlib import Path

from scrapy.commands import crawl, genspider
from scrapy.crawler import Crawler


class CrawlCommand(crawl.Command):
    """Scrapy's own `run` makes a crawler and does not let others have it."""

    def crawler_of(self, spider: str) -> Crawler:
        """A crawler of this spider, not started."""
        return self._create_crawler(spider)


class GenspiderCommand(genspider.Command):
    """Scrapy's own knows the templates of one folder alone."""

    def own_template(self, name: str) -> Path | None:  # noqa: ARG002 - of those that know some
        """The file of a template of this name; None for one of Scrapy's folder."""
        return None

    def _find_template(self, template: str) -> Path | None:
        return self.own_template(template) or super()._find_template(template)
