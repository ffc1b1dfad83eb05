"""`scrapy shell` of Scrapy: an interactive shell."""

from site_spider.commands.site_command import trial

Command = trial(__name__)
