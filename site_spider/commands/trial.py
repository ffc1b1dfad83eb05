"""What Scrapy's commands for trying things out share here: they touch nothing of the crawl.

They take settings from custom_settings and the environment as a crawl does, but join no group, commit
nothing and write to no sink, also when they run a spider that takes seeds.
"""

from __future__ import annotations

import argparse

from scrapy.commands import ScrapyCommand
from scrapy.spiderloader import get_spider_loader

from site_spider.commands.output import escape_logs_and_tracebacks
from site_spider.engine.scrapy_parts import take_no_seeds
from site_spider.service.environment import apply_environment
from site_spider.service.redaction import redact_logs


class Trial(ScrapyCommand):
    """A mixin, in front of Scrapy's command."""

    # Scrapy makes a command of every subclass that it finds in the module it was defined in.
    __module__ = "site_spider.commands"

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """As Scrapy asks."""
        escape_logs_and_tracebacks()
        take_no_seeds()
        super().process_options(args, opts)
        assert self.settings is not None
        name = getattr(opts, "spider", None)
        loader = get_spider_loader(self.settings)
        if name in loader.list():
            loader.load(name).update_settings(self.settings)
        apply_environment(self.settings)
        redact_logs(self.settings)
