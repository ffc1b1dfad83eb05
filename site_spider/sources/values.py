"""What becomes of the values that a field finds: post-processing, and the field's type. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from site_spider.page.links import LinkBase, trimmed
from site_spider.sources.model import ItemField, ValueStep
from site_spider.sources.patterns import compiled, sound

MAX_TEXT_CHARS = 100_000  # of one value; the rest is cut off
_LONGEST_NUMBER = 100  # characters
_LONGEST_DATE = 200
_SHOWN = 60
_INTEGERS = range(-(2**63), 2**63)  # what the stores of results hold
_MAX_DEPTH = 50  # of a JSON value
_DIGITS = r"[-+]?\d[\d\s.,'\x{2019}\x{a0}\x{202f}]*"
_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class BadValue(Exception):
    """A value is not what the field asks for."""


def processed(
    field: ItemField, values: Iterable[Any], base: LinkBase, note: Callable[[str], None]
) -> list[Any]:
    """The values after all steps and with the field's type; what does not fit is noted and left out."""
    found = list(values)
    for step in field.then:
        found = [_joined(step, found)] if step.name == "join" and found else _kept(step, found, base, note)
    return list(_each(_TYPES[field.type], found, note))


def usable(values: Iterable[Any], note: Callable[[str], None]) -> list[Any]:
    """Without numbers that JSON does not have; inside of lists and objects null stands for them."""
    return list(_each(lambda value: _finite(value, note), values, note))


def _finite(value: Any, note: Callable[[str], None]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise BadValue(f"{value} is no number that can be used")
    if not isinstance(value, dict | list):
        return value
    if _is_deeper(value, _MAX_DEPTH):
        raise BadValue(f"a value is nested deeper than {_MAX_DEPTH}")
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        note("a value holds numbers that cannot be used; null stands for them")
        text = json.dumps(value, ensure_ascii=False)
    return json.loads(sound(text), parse_constant=lambda _: None)


def _is_deeper(value: dict[str, Any] | list[Any], most: int) -> bool:
    level: list[Any] = [value]
    for _ in range(most):
        parts = [one.values() if isinstance(one, dict) else one for one in level]
        level = [one for part in parts for one in part if isinstance(one, dict | list)]
        if not level:
            return False
    return True


def _joined(step: ValueStep, values: list[Any]) -> str:
    between = " " if step.join is None else step.join
    return cut(between.join(map(text_of, values)))


def _kept(step: ValueStep, values: list[Any], base: LinkBase, note: Callable[[str], None]) -> list[Any]:
    if step.name == "absolute_url":
        return [url for value in values if (url := absolute(text_of(value), base))]
    return list(_each(lambda value: _STEPS[step.name](value, step), values, note))


def _each(convert: Callable[[Any], Any], values: Iterable[Any], note: Callable[[str], None]) -> Iterable[Any]:
    for value in values:
        try:
            yield convert(value)
        except BadValue as error:
            note(str(error))
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            note(f"{_shown(str(value)[:_SHOWN])} cannot be used: {error}")


def absolute(href: str, base: LinkBase) -> str | None:
    """The URL that a link, as a parser of HTML gives it, leads to; None if it is none of http or https."""
    href = trimmed(href.replace("&", "&amp;"))  # which `trimmed` undoes
    return base.join(href) if href else None


def text_of(value: Any) -> str:
    """A value as text: JSON for what is none and no number."""
    return sound(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def cut(text: str) -> str:
    """At most MAX_TEXT_CHARS, and nothing that UTF-8 cannot hold."""
    return sound(text[:MAX_TEXT_CHARS])


def _strip(value: Any, step: ValueStep) -> Any:  # noqa: ARG001 - as the other steps
    return value.strip() if isinstance(value, str) else value


def _number(value: Any, step: ValueStep) -> float | int:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    text = text_of(value)
    match = compiled(_DIGITS).search(text[:MAX_TEXT_CHARS])
    if match is None or len(match.group()) > _LONGEST_NUMBER:
        raise BadValue(f"no number in {_shown(text)}")
    mark = step.number or "."
    kept = "".join(c for c in match.group() if c.isdigit() or c in "+-" or c == mark).rstrip(mark)
    kept = kept.replace(mark, ".")
    try:
        return float(kept) if "." in kept else int(kept)
    except ValueError:
        raise BadValue(f"no number in {_shown(text)}") from None


def _date(value: Any, step: ValueStep) -> str:
    text = text_of(value).strip()
    if len(text) > _LONGEST_DATE:
        raise BadValue(f"{_shown(text)} is no date")
    try:
        moment = datetime.strptime(text, step.date) if step.date else _usual_date(text)
    except (ValueError, TypeError, ArithmeticError, LookupError):
        raise BadValue(f"{_shown(text)} is no date" + (f" like {step.date}" if step.date else "")) from None
    has_time = step.date is None and len(text) > len("2024-01-01")
    is_day = not has_time and moment.time() == datetime.min.time()
    return moment.date().isoformat() if is_day else moment.isoformat()


def _usual_date(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return parsedate_to_datetime(text)


_STEPS: dict[str, Callable[[Any, ValueStep], Any]] = {"strip": _strip, "number": _number, "date": _date}


def _integer(value: Any) -> int:
    number = _real(value)
    if number != int(number):
        raise BadValue(f"{_shown(text_of(value))} is no integer")
    if int(number) not in _INTEGERS:
        raise BadValue(f"{_shown(text_of(value))} is too large for an integer of 64 bits")
    return int(number)


def _real(value: Any) -> float | int:
    if isinstance(value, bool):
        raise BadValue(f"{_shown(text_of(value))} is no number")
    if isinstance(value, int | float):
        return _sized(value)
    text = text_of(value).strip()
    try:
        number = int(text) if text.lstrip("+-").isdigit() and len(text) <= _LONGEST_NUMBER else float(text)
    except ValueError:
        raise BadValue(f"{_shown(text)} is no number; the step number finds one in a text") from None
    if not math.isfinite(number):
        raise BadValue(f"{_shown(text)} is no number that can be used")
    return _sized(number)


def _sized(number: float | int) -> float | int:
    return number if isinstance(number, float) or number in _INTEGERS else float(number)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = text_of(value).strip().lower()
    if word not in _WORDS:
        raise BadValue(f"{_shown(word)} is neither true nor false")
    return _WORDS[word]


def _any(value: Any) -> Any:
    return cut(value) if isinstance(value, str) else value


_TYPES: dict[str, Callable[[Any], Any]] = {
    "text": lambda value: cut(text_of(value)),
    "integer": _integer,
    "number": _real,
    "boolean": _boolean,
    "any": _any,
}


def _shown(text: str) -> str:
    return ascii(text[:_SHOWN])
