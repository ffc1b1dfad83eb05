"""`scrapy check` of Scrapy: checks the contracts of spiders."""

from __future__ import annotations

from scrapy.commands.check import Command as ScrapyCommandOfThatName

from site_spider.commands.site_command import Trial


class Command(Trial, ScrapyCommandOfThatName):
    """As Scrapy's, without touching the crawl."""
