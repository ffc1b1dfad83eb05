"""`scrapy genspider` and `scrapy settings`: Scrapy's, as a project of seeds needs them."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from scrapy.http import HtmlResponse
from scrapy.settings import Settings
from scrapy.spiders import CrawlSpider, CSVFeedSpider, SitemapSpider, Spider, XMLFeedSpider

from site_spider import Addon, SeedSpider
from site_spider.commands import genspider
from site_spider.commands import settings as settings_command
from tests.commands.project import run
from tests.project_settings import ours

BASES = {
    "basic": SeedSpider,
    "crawl": CrawlSpider,
    "csvfeed": CSVFeedSpider,
    "sitemap": SitemapSpider,
    "xmlfeed": XMLFeedSpider,
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"made_{tmp_path.name}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return name


def made(package: str, settings: Settings, *arguments: str) -> type[Spider]:
    values: dict[str, Any] = {"NEWSPIDER_MODULE": package, "SPIDER_MODULES": [package]}
    settings.setdict(values, priority="cmdline")
    run(genspider.Command(), settings, *arguments, "shop", "shop.test")
    spider: type[Spider] = import_module(f"{package}.shop").ShopSpider
    return spider


@pytest.mark.parametrize("template", BASES)
def test_every_template_makes_a_spider_that_takes_seeds(
    package: str, template: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of each of Scrapy's kinds, with SeedSpider first."""
    spider = made(package, ours(), *([] if template == "basic" else ["-t", template]))
    assert issubclass(spider, BASES[template])
    assert spider.__mro__[1] is SeedSpider
    assert (spider.name, spider.allowed_domains) == ("shop", ["shop.test"])  # type: ignore[attr-defined]
    run(genspider.Command(), ours(), "--list")
    assert template in capsys.readouterr().out.split()


def test_the_usual_spider_gives_an_item_and_follows_links(package: str) -> None:
    spider = made(package, ours())()
    page = HtmlResponse("http://shop.test/", body=b"<title>A</title><a href=/b>", encoding="utf-8")
    item, link = spider.parse(page)
    assert item == {"title": "A"}
    assert link.url == "http://shop.test/b"


def test_a_project_with_the_add_on_has_scrapys_templates_and_one_for_seeds(
    package: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings({"ADDONS": {Addon: 300}})
    assert not issubclass(made(package, settings), SeedSpider)
    sys.modules.pop(f"{package}.shop")
    assert issubclass(made(package, settings, "-t", "seed", "--force"), SeedSpider)
    run(genspider.Command(), settings, "--list")
    assert capsys.readouterr().out.split()[-5:] == ["basic", "crawl", "csvfeed", "xmlfeed", "seed"]


@pytest.mark.parametrize(
    ("settings", "told", "shown"),
    [
        (Settings({"ADDONS": {Addon: 300}}), None, "seeds"),
        (Settings({"ADDONS": {Addon: 300}, "SITE_SEED_TOPIC": "mine"}), None, "mine"),
        (Settings({"ADDONS": {Addon: 300}}), "told", "told"),
        (ours(), "told", "told"),
        (Settings(), "told", "None"),
    ],
)
def test_settings_are_shown_as_a_crawl_has_them(
    settings: Settings, told: str | None, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Those of the add-on and of the environment, too; a project of somebody else's has its own."""
    monkeypatch.delenv("SITE_SEED_TOPIC", raising=False)
    if told:
        monkeypatch.setenv("SITE_SEED_TOPIC", told)
    run(settings_command.Command(), settings.copy(), "--get", "SITE_SEED_TOPIC")
    assert capsys.readouterr().out == f"{shown}\n"


def test_parts_that_the_environment_names_are_shown_beside_ours(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("EXTENSIONS", '{"mine.Extension": 1}')
    run(settings_command.Command(), ours(), "--get", "EXTENSIONS")
    shown = json.loads(capsys.readouterr().out)
    assert {"mine.Extension", "site_spider.service.service.SeedService"} <= shown.keys()
