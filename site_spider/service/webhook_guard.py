"""Which addresses a webhook may reach: those that a crawl may."""

from __future__ import annotations

from scrapy.settings import BaseSettings

from site_spider import options
from site_spider.download.address import is_metadata_name, is_public
from site_spider.tasks.webhook import MayReach


def guard_of(settings: BaseSettings) -> MayReach:
    """All with SITE_ALLOW_PRIVATE_HOSTS, else public ones. Raises ConfigError."""
    if options.boolean(settings, "SITE_ALLOW_PRIVATE_HOSTS"):
        return lambda _host, _address: True
    return lambda host, address: not is_metadata_name(host) and is_public(address)
