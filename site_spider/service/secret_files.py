"""Takes settings that can hold a secret from files, as Docker and Kubernetes hand secrets out.

`NAME_FILE` is the path of a file with what `NAME` would be, as an environment variable or a setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from scrapy.settings import BaseSettings

from site_spider.errors import ConfigError

SECRETS = (
    "SITE_KAFKA_OPTIONS",
    "SITE_ELASTICSEARCH_HOSTS",
    "SITE_ELASTICSEARCH_OPTIONS",
    "SITE_REDIS_URL",
    "SITE_PROXIES",
    "SITE_SPILL_KEY",
    "SITE_CONSOLE_TOKEN",
)
FILES = frozenset(f"{name}_FILE" for name in SECRETS)

_MOST_BYTES = 1_000_000


def take(settings: BaseSettings, environ: Mapping[str, str], priority: int) -> None:
    """Set what stands in the files; a file that cannot be used is left to `check`."""
    for name in SECRETS:
        if path := _path(settings, environ, name):
            with suppress(ConfigError):
                settings.set(name, _content(name, path), priority=priority)


def check(settings: BaseSettings, environ: Mapping[str, str]) -> None:
    """Raise ConfigError for a file that cannot be used, and for a setting that is given twice."""
    for name in SECRETS:
        if path := _path(settings, environ, name):
            _content(name, path)
            if environ.get(name):
                raise ConfigError(f"{name} and {name}_FILE are both in the environment; keep one of them.")


def _path(settings: BaseSettings, environ: Mapping[str, str], name: str) -> str:
    return str(settings.get(f"{name}_FILE") or environ.get(f"{name}_FILE") or "").strip()


def _content(name: str, path: str) -> str:
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
