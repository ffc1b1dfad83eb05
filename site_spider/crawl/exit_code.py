"""Exit codes of `scrapy crawl`, after sysexits.h: crawl_spider.sh decides by them what to do next."""

from __future__ import annotations

from site_spider.errors import ConfigError, SiteSpiderError

UNAVAILABLE = 69  # a server is away
SOFTWARE = 70  # ended by an error of its own, to be started again
SETUP = 71  # an error of its own before it could take a seed: starting again seldom helps
CONFIG = 78  # a setting cannot be used: starting again does not help


def of(error: BaseException, own: int) -> int:
    """The code for what ended a crawl; `own` if it is none of our errors."""
    if isinstance(error, ConfigError):
        return CONFIG
    return UNAVAILABLE if isinstance(error, SiteSpiderError) else own
