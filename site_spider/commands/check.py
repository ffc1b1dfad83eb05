"""`scrapy check` of Scrapy: checks the contracts of spiders."""

from site_spider.commands.site_command import trial

Command = trial(__name__)
