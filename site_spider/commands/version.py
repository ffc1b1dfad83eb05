"""`scrapy version` of Scrapy: prints its version."""

from __future__ import annotations

import argparse

from scrapy.commands.version import Command as ScrapyCommandOfThatName

from site_spider.installation import form


class Command(ScrapyCommandOfThatName):
    """As Scrapy's; -v also says whether modules of site_spider are compiled."""

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        super().run(args, opts)
        if opts.verbose:
            print(f"site_spider is {form()}")
