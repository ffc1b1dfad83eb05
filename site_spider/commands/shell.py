"""`scrapy shell` of Scrapy: an interactive shell."""

from __future__ import annotations

from scrapy.commands.shell import Command as ScrapyCommandOfThatName

from site_spider.commands.site_command import Trial


class Command(Trial, ScrapyCommandOfThatName):
    """As Scrapy's, without touching the crawl."""
