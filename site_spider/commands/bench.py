"""`scrapy bench` of Scrapy: measures Scrapy itself."""

from __future__ import annotations

import argparse

from scrapy.commands.bench import Command as ScrapyCommandOfThatName

from site_spider.commands.site_command import Trial


class Command(Trial, ScrapyCommandOfThatName):
    """As Scrapy's, without touching the crawl."""

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """As Scrapy asks; its server listens on loopback."""
        super().process_options(args, opts)
        assert self.settings is not None
        self.settings.set("SITE_ALLOW_PRIVATE_HOSTS", True, priority="cmdline")
