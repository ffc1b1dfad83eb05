"""Which fields of a result are written, and under which names: SITE_RESULT_FIELDS."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from site_spider import options
from site_spider.errors import ConfigError
from site_spider.options import SettingsView
from site_spider.results.nulls import ALWAYS, MARK
from site_spider.results.result import Result

SETTING: Final = "SITE_RESULT_FIELDS"
Fields = Mapping[str, str]  # to their names in a document; empty: all as they are
_CHOICE: Final = tuple(field.name for field in fields(Result) if field.name not in ALWAYS)

_NAME: Final = re.compile(r"[^\W_][\w.-]*")
_OURS: Final = frozenset(_CHOICE)


def result_fields(settings: SettingsView) -> Fields:
    """The setting: a list of names, or a mapping to other names. Raises ConfigError."""
    value = settings.get(SETTING)
    is_mapping = isinstance(value, Mapping) or (isinstance(value, str) and value.lstrip().startswith("{"))
    chosen = options.mapping(settings, SETTING) if is_mapping else {name: name for name in _names(settings)}
    if not chosen:
        return {}
    for name in sorted(chosen.keys() - ALWAYS - set(_CHOICE)):
        raise ConfigError(f"{SETTING} names {name!r}, but a result has: {', '.join(_CHOICE)}.")
    for name, target in chosen.items():
        _check(name, target)
    written = {**{name: name for name in ALWAYS}, **chosen}
    if len(set(written.values())) < len(written):
        raise ConfigError(f"{SETTING} gives two fields one name; give each a name of its own.")
    return written


def _names(settings: SettingsView) -> list[str]:
    value = settings.get(SETTING)
    is_json = isinstance(value, str) and value.lstrip().startswith("[")
    return options.texts(settings, SETTING) if is_json else options.names(settings, SETTING)


def _check(name: str, target: object) -> None:
    said = f"{SETTING} maps {name} to {target!r}, but"
    if not isinstance(target, str) or target == MARK or not _NAME.fullmatch(target):
        raise ConfigError(
            f"{said} a name has letters, digits, _, - and dots, begins without _, is not {MARK}."
        )
    if name in ALWAYS and target != name:
        raise ConfigError(f"{said} the name of this field is fixed; leave it out.")


def written(document: Mapping[str, Any], names: Fields) -> dict[str, Any]:
    """The fields of a document that are written, under their names; what no result has stays as it is."""
    if not names:
        return dict(document)
    dropped = _OURS - names.keys()
    return {names.get(name, name): value for name, value in document.items() if name not in dropped}
