"""`scrapy fetch` of Scrapy: fetches a URL."""

from site_spider.commands.site_command import trial

Command = trial(__name__)
