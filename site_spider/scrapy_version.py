"""The one version of Scrapy that site_spider works with."""

from __future__ import annotations

import scrapy

from site_spider.errors import ConfigError

NEEDED = "2.19.0"  # as in requirements.txt; tests/test_scrapy_version.py compares them


def check() -> None:
    """Raise ConfigError when another one is installed."""
    if scrapy.__version__ != NEEDED:
        raise ConfigError(
            f"Scrapy {scrapy.__version__} is installed, but site_spider works with Scrapy {NEEDED} only; "
            "install it with: pip install -r requirements.txt"
        )
