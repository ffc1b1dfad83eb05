"""Checks Scrapy's own settings before Scrapy reads them."""

from __future__ import annotations

from scrapy.settings import BaseSettings, default_settings

from site_spider import options, resources
from site_spider.errors import ConfigError
from site_spider.options import SettingsView

_MAY_BE_NEGATIVE = frozenset({"DEPTH_PRIORITY", "REDIRECT_PRIORITY_ADJUST", "RETRY_PRIORITY_ADJUST"})
_LOWEST = -(10**9)


def check_scrapy_settings(settings: BaseSettings) -> None:
    """Raise ConfigError for the first number, or true or false, that is none; and for another Scrapy."""
    resources.check()
    if settings.get("SITE_SEED_TOPIC") is None:
        raise ConfigError(
            "The settings of site_spider are missing in this project: add "
            'ADDONS = {"site_spider.Addon": 300} to its settings.py.'
        )
    for name in dir(default_settings):
        default = getattr(default_settings, name) if name.isupper() else None
        # only these are read: reading a deprecated setting warns
        if isinstance(default, bool | int | float) and settings.get(name) is not None:
            _check(settings, name, default)
    for code in options.names(settings, "RETRY_HTTP_CODES"):
        options.integer({"RETRY_HTTP_CODES": code}, "RETRY_HTTP_CODES", 100, 599)


def _check(settings: SettingsView, name: str, default: float) -> None:
    if isinstance(default, bool):
        options.boolean(settings, name)
        return
    if name == "TELNETCONSOLE_ENABLED":  # true or false, but 1 by default
        return
    lowest = _LOWEST if name in _MAY_BE_NEGATIVE else 0
    if isinstance(default, int) and not name.endswith(("_TIMEOUT", "_DELAY", "_INTERVAL")):
        options.integer(settings, name, lowest)
    else:
        options.seconds(settings, name, lowest)
