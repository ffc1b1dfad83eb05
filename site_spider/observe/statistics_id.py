"""The name that statistics documents give their spider: SITE_STATS_ID."""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Formatter
from typing import Any, Final

from site_spider import options
from site_spider.engine.scrapy_parts import load_class
from site_spider.errors import ConfigError
from site_spider.observe.identity import Identity
from site_spider.options import SettingsView

SETTING: Final = "SITE_STATS_ID"
LONGEST: Final = 300  # characters

_PATH: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)


def statistics_id(settings: SettingsView, identity: Identity) -> str:
    """A format of names in braces, or what the callable of a dotted path returns. Raises ConfigError."""
    value = options.text(settings, SETTING, required=True)
    names = {
        "spider": identity.spider,
        "host": identity.host_name,
        "process": identity.pid,
        "start": int(identity.started_at),
        "group": identity.group,
        "topic": identity.topic,
    }
    found = _called(value, names) if _PATH.fullmatch(value) else _formatted(value, names)
    return found[:LONGEST]


def _formatted(value: str, names: Mapping[str, Any]) -> str:
    said = f"{SETTING} is {value!r}, but"
    try:
        fields = [(name, spec, turn) for _, name, spec, turn in Formatter().parse(value) if name is not None]
    except ValueError as error:
        raise ConfigError(f"{said} is no format: {error}. Such as {{spider}}-{{host}}-{{process}}.") from None
    for name, spec, conversion in fields:
        if name not in names or spec or conversion:
            known = ", ".join(f"{{{one}}}" for one in names)
            raise ConfigError(f"{said} a format has {known}, and nothing else in braces.")
    return value.format_map(names)


def _called(path: str, names: Mapping[str, Any]) -> str:
    made = load_class(SETTING, path)
    try:
        found = made(**names)
    except Exception as error:
        raise ConfigError(
            f"{SETTING} names {path}, which cannot be called with {', '.join(names)}: {error!r}."
        ) from error
    if not isinstance(found, str) or not found.strip():
        raise ConfigError(f"{SETTING} names {path}, which returns {found!r:.100}, but must return a name.")
    return found
