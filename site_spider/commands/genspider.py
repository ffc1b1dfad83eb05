"""`scrapy genspider` of Scrapy: makes a spider, which takes seeds."""

from __future__ import annotations

import argparse
from pathlib import Path

from scrapy.settings import SETTINGS_PRIORITIES

from site_spider.engine.scrapy_commands import GenspiderCommand
from site_spider.installation import resource
from site_spider.service import environment


class Command(GenspiderCommand):
    """As Scrapy's, with templates of this project; a project with the add-on has `-t seed` as well."""

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        super().run(args, opts)
        assert self.settings is not None
        if opts.list and environment.has_addon(self.settings) and self.own_template("seed"):
            print("  seed")

    @property
    def templates_dir(self) -> str:
        assert self.settings is not None
        has_own = (self.settings.getpriority("TEMPLATES_DIR") or 0) > SETTINGS_PRIORITIES["default"]
        if has_own or not environment.has_our_settings(self.settings):
            return super().templates_dir
        return str(resource("templates") / "spiders")

    def own_template(self, name: str) -> Path | None:
        assert self.settings is not None
        if name == "seed" and (environment.has_addon(self.settings) or environment.has_our_settings(self.settings)):
            return resource("templates") / "spiders" / "basic.tmpl"
        return None
