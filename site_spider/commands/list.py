"""`scrapy list` of Scrapy: lists the spiders."""

from site_spider.commands.site_command import trial

Command = trial(__name__)
