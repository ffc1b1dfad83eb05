"""`scrapy parse` of Scrapy: parses a URL with a spider."""

from site_spider.commands.site_command import trial

Command = trial(__name__)
