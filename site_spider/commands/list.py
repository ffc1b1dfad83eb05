"""`scrapy list` of Scrapy: lists the spiders."""

from __future__ import annotations

from scrapy.commands.list import Command as ScrapyCommandOfThatName

from site_spider.commands.site_command import Trial


class Command(Trial, ScrapyCommandOfThatName):
    """As Scrapy's, without touching the crawl."""
