"""What spiders put into items as values that JSON has words for, within bounds.

Text, numbers, true, false, null, lists and objects stay as they are. Dates and times become ISO 8601,
Decimal and UUID text, sets sorted lists; dataclasses, attrs, pydantic and Scrapy items become objects.
Anything else is refused with the name of its field, and so is what is nested without end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

from itemadapter import ItemAdapter

from site_spider.errors import SinkRejected

MAX_BYTES: Final = 16_000_000  # of one item, about: what a Kafka client takes as one message
MAX_VALUES: Final = 100_000  # each takes about a microsecond of the event loop
MAX_NESTING: Final = 64
_VALUE_BYTES: Final = 8  # a number with its comma; signs around a text or an object


_WORDS: Final[dict[type, Callable[[Any], Any]]] = {
    datetime: datetime.isoformat,
    date: date.isoformat,
    time: time.isoformat,
    Decimal: str,
    UUID: str,
    PurePath: str,
}


class JsonValues:
    """Of one document; `size_bytes` is about what it weighs as JSON."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._values = 0

    def fields(self, item: Mapping[str, Any] | ItemAdapter) -> dict[str, Any]:
        """The fields of an item. Raises SinkRejected."""
        return self._object(item, "", 0)

    def _object(self, found: Mapping[Any, Any], where: str, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, value in found.items():
            name = _name(key, where)
            self.size_bytes += len(name) + _VALUE_BYTES
            made[name] = self._value(value, f"{where}.{name}" if where else name, depth + 1)
        return made

    def _list(self, found: Iterable[Any], where: str, depth: int) -> list[Any]:
        return [self._value(value, where, depth + 1) for value in found]

    def _value(self, value: Any, where: str, depth: int) -> Any:
        self._count(value, where, depth)
        kind = type(value)
        if value is None or kind in (str, int, bool):
            return value
        if kind is float:
            return _finite(value, where)
        if kind is dict:
            return self._object(value, where, depth)
        if kind in (list, tuple):
            return self._list(value, where, depth)
        return self._other(value, where, depth)

    def _count(self, value: Any, where: str, depth: int) -> None:
        self._values += 1
        self.size_bytes += _VALUE_BYTES + (len(value) if isinstance(value, str) else 0)
        if depth > MAX_NESTING:
            raise _refused(where, f"is nested deeper than {MAX_NESTING} levels, or holds itself")
        if self._values > MAX_VALUES:
            raise SinkRejected(f"the item has more than {MAX_VALUES} values")
        if self.size_bytes > MAX_BYTES:
            raise SinkRejected(f"the item has more than {MAX_BYTES} bytes; field {_shown(where)} passes that")

    def _other(self, value: Any, where: str, depth: int) -> Any:
        """Of another class than those of JSON."""
        if isinstance(value, Enum):
            return self._value(value.value, where, depth + 1)
        for kind, word in _WORDS.items():
            if isinstance(value, kind):
                return word(value)
        if isinstance(value, str | int | float):  # of a class of somebody's own
            return _base(value, where)
        if isinstance(value, set | frozenset | list | tuple):
            found = self._list(value, where, depth)
            return found if isinstance(value, list | tuple) else sorted(found, key=repr)
        if isinstance(value, Mapping) or ItemAdapter.is_item(value):
            return self._object(value if isinstance(value, Mapping) else ItemAdapter(value), where, depth)
        raise _refused(where, f"is {_class_of(value)}, which JSON has no words for; make it text or a number")


def _name(key: object, where: str) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, int):
        return str(key)
    raise _refused(where, f"has a key that is {_class_of(key)}; keys must be text")


def _finite(value: float, where: str) -> float:
    if not math.isfinite(value):
        raise _refused(where, f"is {value}, which JSON has no words for; use null")
    return value


def _base(value: str | float, where: str) -> str | float:
    """As the class of JSON that its own class is made of."""
    if isinstance(value, str):
        return str.__str__(value)
    return int(value) if isinstance(value, int) else _finite(float(value), where)


def _class_of(value: object) -> str:
    return f"of the class {type(value).__qualname__}"


def _shown(where: str) -> str:
    return repr(where[:100])


def _refused(where: str, why: str) -> SinkRejected:
    return SinkRejected(f"field {_shown(where)} of the item {why}")
