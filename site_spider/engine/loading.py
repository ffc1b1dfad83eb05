"""Loads the classes that settings name by dotted path."""

from __future__ import annotations

from typing import Any

from scrapy.utils.misc import load_object

from site_spider.errors import ConfigError

_EXTRAS = {"redis": "redis", "happybase": "hbase", "thriftpy2": "hbase"}  # module > extra of this package


def load_class(setting: str, path: Any) -> Any:
    """What a dotted path names. Raises ConfigError, with the extra to install when a client is missing."""
    try:
        return load_object(path)
    except (ImportError, NameError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{setting} names {path!r}, which cannot be loaded: {error}.{_remedy(error)}"
        ) from error


def _remedy(error: Exception) -> str:
    missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    extra = _EXTRAS.get(missing.partition(".")[0])
    return f" Install it with: pip install 'site-spider[{extra}]'" if extra else ""
