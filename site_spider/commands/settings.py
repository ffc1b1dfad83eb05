"""`scrapy settings` of Scrapy: shows a setting."""

from __future__ import annotations

import argparse

from scrapy.commands.settings import Command as ScrapyCommandOfThatName

from site_spider.commands.site_command import USUAL_SPIDER, loaded_spider, usual_spider
from site_spider.service import environment
from site_spider.service.environment import apply_environment


class Command(ScrapyCommandOfThatName):
    """As Scrapy's, with what the add-on and the environment say, and with those of a spider."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            "--spider", metavar="NAME", help=f"with the custom_settings of this spider (default: {USUAL_SPIDER})"
        )

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """As Scrapy asks; a project without the add-on has its own settings alone."""
        super().process_options(args, opts)
        assert self.settings is not None
        if environment.has_addon(self.settings):
            environment.apply_our_settings(self.settings)
        if opts.spider:
            loaded_spider(self.settings, opts.spider).update_settings(self.settings)
        if environment.has_our_settings(self.settings):
            if not opts.spider:
                usual_spider(self.settings).update_settings(self.settings)
            apply_environment(self.settings)
            environment.add_our_parts(self.settings)
