"""Pages and JSON of one document. Secrets of the settings are removed from both."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from site_spider.console.model.pace import duration
from site_spider.resources import resource
from site_spider.text import escaped

_CLOCK = len("2026-01-02 03:04:05")
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


class Rendering:
    """`redact` removes secrets from a text."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact
        self._templates = Environment(
            loader=FileSystemLoader(resource("console") / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(
            number=number, size=size, duration=_duration, clock=clock, words=words, plain=plain
        )

    def page(self, name: str, document: Mapping[str, Any], **more: object) -> web.Response:
        """HTML. Every value is escaped; `more` is not part of the document, such as the form's token."""
        text = self._templates.get_template(f"{name}.html").render(d=self._clean(document), **more)
        return web.Response(text=text, content_type="text/html", charset="utf-8")

    def json(self, document: Mapping[str, Any]) -> web.Response:
        """The same for programs."""
        text = json.dumps(self._clean(document), ensure_ascii=True) + "\n"
        return web.Response(text=text, content_type="application/json", charset="utf-8")

    def _clean(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._redact(value)
        if isinstance(value, Mapping):
            return {self._clean(name): self._clean(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._clean(each) for each in value]
        return value


def number(value: float | None) -> str:
    """With separators; a small fraction is kept."""
    if value is None:
        return "-"
    return f"{value:,.1f}" if isinstance(value, float) and value < 100 else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Bytes in the unit that fits."""
    if value is None:
        return "-"
    for unit in _UNITS:
        if value < 1000 or unit == _UNITS[-1]:
            break
        value /= 1000
    return f"{value:,.0f} {unit}" if unit == "B" or value >= 100 else f"{value:,.1f} {unit}"


def clock(value: str | None) -> str:
    """A moment for people, in UTC."""
    return "-" if not value else value.replace("T", " ")[:_CLOCK]


def words(value: str) -> str:
    """A name of ours for people."""
    return value.replace("_", " ")


def plain(value: object) -> str:
    """Text of the web: control characters and marks that turn the direction of text become visible."""
    return "-" if value is None else escaped(str(value))


def _duration(value: float | None) -> str:
    return "-" if value is None else duration(value)
