"""Reads settings from environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping

from scrapy.settings import BaseSettings

from site_spider.service import secret_files

ENVIRONMENT_PRIORITY = 35  # Scrapy: spider is 30, cmdline is 40


def apply_environment(settings: BaseSettings, environ: Mapping[str, str] = os.environ) -> None:
    """Set every known setting that has an environment variable of its name.

    Quotes around a value are taken away: docker hands them on from an environment file.
    Files that hold settings (`NAME_FILE`) count as their variables.
    An empty variable sets a text setting to nothing and leaves any other as it is.
    """
    for name in set(settings) & set(environ):
        value = _unquoted(environ[name])
        if value or isinstance(settings[name], str):
            settings.set(name, value, priority=ENVIRONMENT_PRIORITY)
    secret_files.take(settings, environ, ENVIRONMENT_PRIORITY)


def _unquoted(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if is_quoted else value
