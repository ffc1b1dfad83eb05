"""`scrapy view` of Scrapy: opens a URL in a browser."""

from __future__ import annotations

from scrapy.commands.view import Command as ScrapyCommandOfThatName

from site_spider.commands.site_command import Trial


class Command(Trial, ScrapyCommandOfThatName):
    """As Scrapy's, without touching the crawl."""
