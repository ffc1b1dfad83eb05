"""Where the settings of a crawl come from: environment variables, files, spiders, and the add-on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name
from scrapy.utils.reactor import is_reactor_installed

from site_spider import settings as ours
from site_spider.engine.scrapy_parts import takes_seeds
from site_spider.errors import ConfigError

# --- Takes settings that can hold a secret from files, as Docker and Kubernetes hand secrets out ---------
# `NAME_FILE` is the path of a file with what `NAME` would be, as an environment variable or a setting.

SECRETS = (
    "SITE_KAFKA_OPTIONS",
    "SITE_ELASTICSEARCH_HOSTS",
    "SITE_ELASTICSEARCH_OPTIONS",
    "SITE_REDIS_URL",
    "SITE_PROXIES",
    "SITE_SPILL_KEY",
    "SITE_CONSOLE_TOKEN",
    "SITE_NOTIFY_URL",
    "MAIL_PASS",  # of Scrapy, for notices by mail
)
FILES = frozenset(f"{name}_FILE" for name in SECRETS)

_MOST_BYTES = 1_000_000


def files_of(settings: BaseSettings, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Of the settings that are given so, the names and the paths."""
    for name in SECRETS:
        if path := str(settings.get(f"{name}_FILE") or environ.get(f"{name}_FILE") or "").strip():
            yield name, path


def content_of(name: str, path: str) -> str:
    """Of the file at the path. Raises ConfigError."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        text = content.decode("utf-8-sig").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(f"{name}_FILE names {path!r}, which cannot be read: {reason}.") from None
    if not text or len(content) > _MOST_BYTES:
        reason = "is empty" if not text else f"has more than {_MOST_BYTES:,} bytes"
        raise ConfigError(f"{name}_FILE names {path!r}, which {reason}; it must hold the value of {name}.")
    return text


ENVIRONMENT_PRIORITY = 35  # Scrapy: spider is 30, cmdline is 40


def apply_environment(settings: BaseSettings, environ: Mapping[str, str] = os.environ) -> None:
    """Set every known setting that has an environment variable of its name.

    Quotes around a value are taken away: docker hands them on from an environment file.
    Files that hold settings (`NAME_FILE`) count as their variables.
    An empty variable sets a text setting to nothing and leaves any other as it is.
    """
    for name in set(settings) & set(environ):
        value = unquoted(environ[name])
        if value or isinstance(settings[name], str):
            with suppress(TypeError, ValueError):  # no JSON object: `settings_checks.check_names` says so
                settings.set(name, value, priority=ENVIRONMENT_PRIORITY)
    for name, path in files_of(settings, environ):
        with suppress(ConfigError):  # `settings_checks.check_names` says so
            settings.set(name, content_of(name, path), priority=ENVIRONMENT_PRIORITY)


def unquoted(value: str) -> str:
    """Without quotes around all of it."""
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


# --- spider settings: the custom_settings of a spider, over the parts of this project --------------------
# Scrapy takes a dict of custom_settings in the place of the one that was there: a spider with a pipeline of
# its own would have none that writes results, and one with a middleware of its own no retries.

COMPONENTS = ("ITEM_PIPELINES", "DOWNLOADER_MIDDLEWARES", "SPIDER_MIDDLEWARES", "EXTENSIONS")
MERGED = (*COMPONENTS, "DOWNLOAD_HANDLERS")


def apply_custom_settings(settings: BaseSettings, custom: Mapping[str, Any]) -> None:
    """Set them; dicts of components add to those that are there, and None takes one out."""
    merged = {
        name: {**settings.getdict(name), **_with_stand_ins(custom[name])}
        for name in MERGED
        if isinstance(custom.get(name), Mapping)
    }
    settings.setdict({**custom, **merged}, priority="spider")


# Whoever names one of these classes of Scrapy's means the one that does its work here: None turns it off, so
# that a retry middleware of a project's own is the only one, and a number moves it.
STAND_INS: Final[Mapping[str, str]] = MappingProxyType(
    {
        stock: ours_instead
        for parts in (ours.EXTENSIONS, ours.DOWNLOADER_MIDDLEWARES, ours.SPIDER_MIDDLEWARES)
        for (stock, order), (ours_instead, _) in pairwise(parts.items())
        if order is None
    }
)


def _with_stand_ins(named: Mapping[Any, int | None]) -> dict[Any, int | None]:
    """Components and their orders; what is named itself stays as it is said."""
    paths = {_path_of(component): component for component in named}
    meant = {stock: instead for stock, instead in STAND_INS.items() if stock in paths and instead not in paths}
    return {
        **named,
        **{instead: named[paths[stock]] for stock, instead in meant.items()},
        **{paths[stock]: None for stock in meant},
    }


def _path_of(component: object) -> str:
    """Without loading it: a module of a project may install Twisted's usual reactor, before it is Scrapy's turn."""
    return component if isinstance(component, str) else global_object_name(component)


# --- add-on: the settings of this project in another one, as an add-on of Scrapy -------------------------
# `ADDONS = {"site_spider.Addon": 300}` brings scheduler, download handlers, middlewares, extensions and
# pipeline to the spiders that take seeds, and changes nothing for any other. What the project sets itself
# counts more: add-ons stand between Scrapy's defaults and settings.py.

ADDON_PRIORITY: Final = "addon"
ADDON_PATH: Final = "site_spider.Addon"
_LEAST: Final = SETTINGS_PRIORITIES[ADDON_PRIORITY]

_RESULTS: Final = "site_spider.results.pipeline.ResultPipeline"
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
        if not takes_seeds(crawler):
            raise NotConfigured
        return cls()

    def update_settings(self, settings: BaseSettings) -> None:
        """As Scrapy asks: our settings below the project's, the environment above them."""
        join_settings(settings)
        apply_environment(settings)
        add_our_parts(settings)


class OurParts:
    """An add-on behind all others: who sets a dict of components anew, as those or a spider may, takes ours out."""

    @classmethod
    def come_last(cls, settings: BaseSettings) -> None:
        """To be called as the settings of a spider are made."""
        settings.set("ADDONS", {**settings.getdict("ADDONS"), cls: inf}, settings.getpriority("ADDONS") or _LEAST)

    def update_settings(self, settings: BaseSettings) -> None:
        add_our_parts(settings)


def has_addon(settings: BaseSettings) -> bool:
    """Whether a project has the add-on."""
    return any(order is not None and load_object(name) is Addon for name, order in settings.getdict("ADDONS").items())


def has_our_settings(settings: BaseSettings) -> bool:
    """Whether our settings are there: in the project itself, or where the add-on has been at work."""
    return "SITE_SEED_TOPIC" in settings


def join_settings(settings: BaseSettings) -> None:
    """Our settings for one crawl, but for those that its process has chosen already."""
    apply_our_settings(settings, without=_OF_PROCESS if is_reactor_installed() else frozenset())


def apply_our_settings(settings: BaseSettings, without: frozenset[str] = frozenset()) -> None:
    """Our settings where the project has none of its own. Doing it twice changes nothing more."""
    for name, value in OUR_SETTINGS.items():
        if name not in without and name not in MERGED:
            settings.set(name, value, priority=ADDON_PRIORITY)
    add_our_parts(settings)


def add_our_parts(settings: BaseSettings) -> None:
    """Beside theirs, whoever has named those: without the service, say, a crawl would wait for ever."""
    for name in MERGED:
        try:
            theirs = _with_stand_ins(settings.getdict(name))
        except (TypeError, ValueError):  # `settings_checks.check_names` says so
            continue
        paths = set(map(_path_of, theirs))
        new = {path: order for path, order in OUR_SETTINGS[name].items() if path not in paths}
        # at the project's own priority: what may replace its value may replace this one
        priority = max(settings.getpriority(name) or 0, _LEAST)
        settings.set(name, _sinks_last({**new, **theirs}), priority=priority)


def _sinks_last(components: dict[Any, Any]) -> dict[Any, Any]:
    """A pipeline with a larger number than ours would change an item that sinks have already.

    Who gives ours a number below the usual one wants that.
    """
    last = components.get(_RESULTS)
    numbers = [order for name, order in components.items() if name != _RESULTS and isinstance(order, int | float)]
    if not isinstance(last, int | float) or last < ours.ITEM_PIPELINES[_RESULTS] or not numbers or max(numbers) < last:
        return components
    return {**components, _RESULTS: max(numbers) + 1}
