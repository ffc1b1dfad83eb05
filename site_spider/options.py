"""Reads and checks settings; an error names the setting, its value and the remedy.

`settings` is anything with `get(name)`: Scrapy's Settings, or a dict in tests. Values
may come as text, from the environment or the command line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from site_spider.errors import ConfigError
from site_spider.text import kind

N = TypeVar("N", int, float)

_LONGEST_SECONDS = 1_000_000_000  # 31 years; Python takes no more than 292 as the time limit of a thread
_LONGEST_TOPIC = 249  # characters
_TOPIC = re.compile(rf"[A-Za-z0-9._-]{{1,{_LONGEST_TOPIC}}}", re.ASCII)
_TEXTS = re.compile(r'\[\s*("|\])')  # the beginning of a JSON array of texts
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off", ""}


class SettingsView(Protocol):
    """All that is asked of a settings object."""

    def get(self, name: str, default: Any = None, /) -> Any:
        """The value of a setting, or the default."""


def integer(settings: SettingsView, name: str, minimum: int = 0, maximum: int | None = None) -> int:
    """A whole number within bounds. Raises ConfigError."""
    return _number(settings, name, int, minimum, maximum)


def seconds(settings: SettingsView, name: str, minimum: float = 0, maximum: float = _LONGEST_SECONDS) -> float:
    """A duration or another real number within bounds. Raises ConfigError."""
    return _number(settings, name, float, minimum, maximum)


def _number(settings: SettingsView, name: str, read: Callable[[Any], N], minimum: N, maximum: N | None) -> N:
    value = settings.get(name)
    what = "a whole number" if read is int else "a number"
    bounds = f"{minimum} or more" if maximum is None else f"from {minimum} to {maximum}"
    number: N | None = None
    with suppress(TypeError, ValueError, OverflowError):
        number = read(value)
    is_cut = isinstance(value, float) and number != value
    if number is None or is_cut or not number >= minimum or (maximum is not None and number > maximum):
        raise ConfigError(f"{name} is {value!r}, but must be {what}, {bounds}.")
    return number


def boolean(settings: SettingsView, name: str) -> bool:
    """True or false, also as text (true, false, 1, 0, yes, no, on, off). Raises ConfigError."""
    value = settings.get(name)
    if isinstance(value, bool):
        return value
    text = str(value if value is not None else "").strip().lower()
    if text not in _TRUE | _FALSE:
        raise ConfigError(f"{name} is {value!r}, but must be true or false.")
    return text in _TRUE


def text(settings: SettingsView, name: str, *, required: bool = False) -> str:
    """Text without surrounding blanks; empty when not set. Raises ConfigError when required and empty."""
    value = str(settings.get(name) or "").strip()
    if required and not value:
        raise ConfigError(f"{name} is empty, but must be set.")
    return value


def topic(settings: SettingsView, name: str, default: str = "") -> str:
    """The name of a topic, as Kafka takes them; `default` when not set. Raises ConfigError."""
    value = text(settings, name) or default
    if not _TOPIC.fullmatch(value) or value in (".", ".."):
        raise ConfigError(
            f"{name} is {value!r}, but a topic's name has 1 to {_LONGEST_TOPIC} letters, digits, dots, "
            "underscores and hyphens."
        )
    return value


def choice(settings: SettingsView, name: str, allowed: tuple[str, ...]) -> str:
    """One of the allowed words. Raises ConfigError."""
    value = text(settings, name).lower()
    if value not in allowed:
        raise ConfigError(f"{name} is {settings.get(name)!r}, but must be one of: {', '.join(allowed)}.")
    return value


def names(settings: SettingsView, name: str) -> list[str]:
    """A comma list, or a list, of non-empty words in their order, each once. Raises ConfigError."""
    value = settings.get(name) or []
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, Iterable):
        raise ConfigError(f"{name} is {kind(value)}, but must be words in a list.")
    return list(dict.fromkeys(word for word in (str(word).strip() for word in words) if word))


def texts(settings: SettingsView, name: str) -> list[str]:
    """A list of texts, or a JSON array of them; any other text is the only one. Raises ConfigError."""
    value = settings.get(name) or []
    if isinstance(value, str):
        value = value.strip()
        if not _TEXTS.match(value):
            return [value] if value else []
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{name} must be a JSON array of texts, but cannot be read: {error}.") from None
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise ConfigError(f"{name} is {kind(value)}, but must be texts in a list.")
    return list(value)


def mapping(settings: SettingsView, name: str) -> dict[str, Any]:
    """A dict, or a JSON object as text. Raises ConfigError."""
    value = settings.get(name) or {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{name} must be a JSON object, but cannot be read: {error}.") from None
    if not isinstance(value, Mapping):
        raise ConfigError(f'{name} is {kind(value)}, but must be a JSON object such as {{"name": "value"}}.')
    return dict(value)
