"""Loads the classes that settings name by dotted path."""

from __future__ import annotations

from typing import Any

from scrapy.utils.misc import load_object

from site_spider.errors import ConfigError

# module > what to install: the extra of this package that has it, as in pyproject.toml
_HBASE = "'happybase>=1.3' 'thriftpy2>=0.7.1'"
_INSTALLS = {"redis": "'redis>=8.1'", "happybase": _HBASE, "thriftpy2": _HBASE}


def load_class(setting: str, path: Any) -> Any:
    """What a dotted path names. Raises ConfigError, with what to install when a client is missing."""
    try:
        return load_object(path)
    except (ImportError, NameError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{setting} names {path!r}, which cannot be loaded: {error}.{_remedy(error)}"
        ) from error


def _remedy(error: Exception) -> str:
    missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    needed = _INSTALLS.get(missing.partition(".")[0])
    return f" Install it with: pip install {needed}" if needed else ""
