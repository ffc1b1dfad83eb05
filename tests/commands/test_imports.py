"""What a start does not import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from site_spider.resources import module_of
from site_spider.service.environment import custom_settings_of_file

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
_NOT_AT_THE_START = {"confluent_kafka", "elasticsearch", "happybase", "jinja2", "redis"}


def test_a_start_imports_no_more_than_it_needs() -> None:
    """All commands and parts are loaded; what one of them alone needs is not. A kill costs a start."""
    done = subprocess.run([sys.executable, "-c", _START], capture_output=True, text=True, check=True)
    assert _NOT_AT_THE_START & set(done.stdout.split()) == set()


_COMMAND = """
import sys
from scrapy.cmdline import execute
sys.argv = ["scrapy", "task", "pause", "t", "--new"]
try:
    execute()
finally:
    print(*sorted(sys.modules))
"""
_NOT_FOR_A_PAUSE = {
    "site_spider.commands.seed", "site_spider.service.wiring",
    "site_spider.spiders.crawl_spider", "scrapy.core.downloader.handlers.http11",
}  # fmt: skip


def test_a_pause_imports_neither_other_commands_nor_the_crawl(tmp_path: Path) -> None:
    """It takes 0.6 s of CPU, most of it for Scrapy itself, and took 2.1 s."""
    environment = os.environ | {"SITE_DATA_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", _COMMAND], capture_output=True, text=True, check=True, env=environment)
    assert "task t is paused" in done.stdout
    assert _NOT_FOR_A_PAUSE & set(done.stdout.split()) == set()


@pytest.mark.parametrize(
    ("words", "module"),
    [
        (["/bin/scrapy", "task", "list"], "site_spider.commands.task"),
        (["scrapy", "crawl", "crawl_spider"], "site_spider.commands.crawl"),
        (["/site-packages/scrapy/__main__.py", "crawl", "crawl_spider"], "site_spider.commands.crawl"),
        (["/site_spider/__main__.py", "task"], "site_spider.commands"),
        (["scrapy", "startproject"], "site_spider.commands"),
        (["scrapy", "../x"], "site_spider.commands"),
        (["scrapy"], "site_spider.commands"),
        (["pytest", "task"], "site_spider.commands"),
        ([], "site_spider.commands"),
    ],
)
def test_scrapy_loads_the_command_that_was_asked_for(words: list[str], module: str) -> None:
    assert module_of(words) == module


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("class A:\n    custom_settings: dict = {'A': 1}\n", {"A": 1}),
        ("class A:\n    custom_settings = {}\n", {}),
        ("class A:\n    custom_settings = {'A': f()}\n", None),
        ("class A:\n    custom_settings = {}\nclass B:\n    custom_settings = {}\n", None),
        ("class A:\n    custom_settings = {}\nA.custom_settings['B'] = 1\n", {}),
        ("class A(:", None),
        ("", None),
    ],
)
def test_custom_settings_are_read_from_the_file_where_they_are_literals(
    tmp_path: Path, text: str, found: object
) -> None:
    file = tmp_path / "spider.py"
    file.write_text(text)
    assert custom_settings_of_file(file) == found
