"""What becomes of the values that a field finds: post-processing, and the field's type. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from site_spider.page.link_base import LinkBase, trimmed
from site_spider.sources.model import ItemField, ValueStep
from site_spider.sources.patterns import compiled, sound

MAX_TEXT_CHARS = 100_000  # of one value; the rest is cut off
_LONGEST_NUMBER = 100  # characters
_LONGEST_DATE = 200
_SHOWN = 60
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
    convert = _TYPES[field.type]
    return list(_each(convert, found, note))


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


def absolute(href: str, base: LinkBase) -> str | None:
    """The URL that a link, as a parser of HTML gives it, leads to; None if it is none of http or https."""
    href = trimmed(href.replace("&", "&amp;"))  # which `trimmed` undoes
    return base.join(href) if href else None


def text_of(value: Any) -> str:
    """A value as text: JSON for what is none and no number."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


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
    except (ValueError, TypeError, OverflowError):
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
    return int(number)


def _real(value: Any) -> float | int:
    if isinstance(value, bool):
        raise BadValue(f"{_shown(text_of(value))} is no number")
    if isinstance(value, int | float):
        return value
    text = text_of(value).strip()
    try:
        number = int(text) if text.lstrip("+-").isdigit() and len(text) <= _LONGEST_NUMBER else float(text)
    except ValueError:
        raise BadValue(f"{_shown(text)} is no number; the step number finds one in a text") from None
    if not math.isfinite(number):
        raise BadValue(f"{_shown(text)} is no number")
    return number


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = text_of(value).strip().lower()
    if word not in _WORDS:
        raise BadValue(f"{_shown(word)} is neither true nor false")
    return _WORDS[word]


def _any(value: Any) -> Any:
    if isinstance(value, dict | list):
        return json.loads(sound(json.dumps(value, ensure_ascii=False)))
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
