"""The custom_settings of a spider, over the parts of this project.

Scrapy takes a dict of custom_settings in the place of the one that was there: a spider with a pipeline of its
own would have none that writes results, and one with a middleware of its own no retries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scrapy.settings import BaseSettings

MERGED = ("ITEM_PIPELINES", "DOWNLOADER_MIDDLEWARES", "SPIDER_MIDDLEWARES", "EXTENSIONS", "DOWNLOAD_HANDLERS")


def apply_custom_settings(settings: BaseSettings, custom: Mapping[str, Any]) -> None:
    """Set them; dicts of components add to those that are there, and None takes one out."""
    merged = {
        name: {**settings.getdict(name), **custom[name]}
        for name in MERGED
        if isinstance(custom.get(name), Mapping)
    }
    settings.setdict({**custom, **merged}, priority="spider")
