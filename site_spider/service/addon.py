"""The settings of this project in another one, as an add-on of Scrapy.

`ADDONS = {"site_spider.Addon": 300}` brings scheduler, download handlers, middlewares, extensions and
pipeline to the spiders that take seeds, and changes nothing for any other. What the project sets itself
counts more: add-ons stand between Scrapy's defaults and settings.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Self

from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy.utils.misc import load_object
from scrapy.utils.reactor import is_reactor_installed

from site_spider import settings as ours
from site_spider.engine.scrapy_parts import takes_seeds
from site_spider.service.environment import apply_environment

PRIORITY: Final = "addon"
PATH: Final = "site_spider.Addon"
_LEAST: Final = SETTINGS_PRIORITIES[PRIORITY]

_COMPONENTS: Final = ("EXTENSIONS", "DOWNLOADER_MIDDLEWARES", "SPIDER_MIDDLEWARES", "ITEM_PIPELINES")
_HANDLERS: Final = "DOWNLOAD_HANDLERS"
# What a project is called and where its code lies; and what this package's place in it says already.
_PROJECTS: Final = frozenset({"BOT_NAME", "SPIDER_MODULES", "NEWSPIDER_MODULE", "COMMANDS_MODULE"})
# Of the process: whoever made it has chosen them. `scrapy crawl` sets them before it makes one.
_OF_PROCESS: Final = frozenset({"ASYNCIO_EVENT_LOOP", "TWISTED_DNS_RESOLVER", "REACTOR_THREADPOOL_MAXSIZE"})

OUR_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType(
    {name: value for name, value in vars(ours).items() if name.isupper() and name not in _PROJECTS}
)


class Addon:
    """For spiders with `takes_seeds`."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """As Scrapy asks."""
        if not takes_seeds(crawler):
            raise NotConfigured
        return cls()

    def update_settings(self, settings: BaseSettings) -> None:
        """As Scrapy asks: our settings below the project's, the environment above them."""
        join(settings)
        apply_environment(settings)


def is_enabled(settings: BaseSettings) -> bool:
    """Whether a project has the add-on."""
    return any(
        order is not None and load_object(name) is Addon for name, order in settings.getdict("ADDONS").items()
    )


def has_settings(settings: BaseSettings) -> bool:
    """Whether our settings are there: in the project itself, or where the add-on has been at work."""
    return "SITE_SEED_TOPIC" in settings


def join(settings: BaseSettings) -> None:
    """Our settings for one crawl, but for those that its process has chosen already."""
    apply_settings(settings, without=_OF_PROCESS if is_reactor_installed() else frozenset())


def apply_settings(settings: BaseSettings, without: frozenset[str] = frozenset()) -> None:
    """Our settings where the project has none of its own. Doing it twice changes nothing more."""
    for name, value in OUR_SETTINGS.items():
        if name in without:
            continue
        if name in _COMPONENTS:
            _add_components(settings, name, value)
        elif name == _HANDLERS:
            _merge(settings, name, {**value, **settings.getdict(name)})
        else:
            settings.set(name, value, priority=PRIORITY)


def _add_components(settings: BaseSettings, name: str, added: Mapping[str, int | None]) -> None:
    theirs = settings.getdict(name)
    known = {load_object(component) for component in theirs}
    new = {path: order for path, order in added.items() if load_object(path) not in known}
    _merge(settings, name, {**new, **theirs})


def _merge(settings: BaseSettings, name: str, value: Mapping[str, Any]) -> None:
    """At the project's own priority: what may replace its value may replace this one."""
    settings.set(name, dict(value), priority=max(settings.getpriority(name) or 0, _LEAST))
