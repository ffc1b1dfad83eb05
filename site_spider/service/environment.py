"""Reads settings from environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping

from scrapy.settings import BaseSettings

ENVIRONMENT_PRIORITY = 35  # Scrapy: spider is 30, cmdline is 40


def apply_environment(settings: BaseSettings, environ: Mapping[str, str] = os.environ) -> None:
    """Set every known setting that has an environment variable of its name.

    An empty variable sets a text setting to nothing and leaves any other as it is.
    """
    for name in set(settings) & set(environ):
        value = environ[name]
        if value or isinstance(settings[name], str):
            settings.set(name, value, priority=ENVIRONMENT_PRIORITY)
