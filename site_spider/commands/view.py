"""`scrapy view` of Scrapy: opens a URL in a browser."""

from site_spider.commands.site_command import trial

Command = trial(__name__)
