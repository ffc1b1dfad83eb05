"""`scrapy parse` of Scrapy: parses a URL with a spider."""

from __future__ import annotations

from scrapy.commands.parse import Command as ScrapyCommandOfThatName

from site_spider.commands.site_command import Trial


class Command(Trial, ScrapyCommandOfThatName):
    """As Scrapy's, without touching the crawl."""
