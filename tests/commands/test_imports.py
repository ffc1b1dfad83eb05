"""What a start does not import."""

from __future__ import annotations

import subprocess
import sys

_START = """
import sys
import scrapy.cmdline
from scrapy.settings import Settings
from scrapy.crawler import Crawler
from scrapy.spiderloader import SpiderLoader
settings = Settings()
settings.setmodule("site_spider.settings")
scrapy.cmdline._get_commands_dict(settings, inproject=True)
from scrapy.utils.misc import load_object
for name in ("EXTENSIONS", "DOWNLOADER_MIDDLEWARES", "SPIDER_MIDDLEWARES", "ITEM_PIPELINES"):
    for part in settings.get_component_priority_dict_with_base(name):
        load_object(part)
SpiderLoader.from_settings(settings).load("crawl_spider")
print(*sorted(sys.modules))
"""
_NOT_AT_THE_START = {"confluent_kafka", "elasticsearch", "happybase", "jinja2", "opentelemetry", "redis"}


def test_a_start_imports_no_more_than_it_needs() -> None:
    """All commands and parts are loaded; what one of them alone needs is not. A kill costs a start."""
    done = subprocess.run([sys.executable, "-c", _START], capture_output=True, text=True, check=True)
    assert _NOT_AT_THE_START & set(done.stdout.split()) == set()
