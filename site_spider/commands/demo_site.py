"""The pages of the sample site: hosts of ten pages, and the failures of real sites.

Everything is the same at every run. A host is an address of its own on loopback, all on one port.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from html import escape
from typing import NamedTuple

HOSTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "127.0.0.2": (
        "The Harbour Herald",
        (
            "Ferry runs every twenty minutes again",
            "Lighthouse to be painted in its old red",
            "Fish auction moves to the new hall",
            "Harbour bath opens on the first of May",
            "Storm took two moorings, nobody hurt",
            "School orchestra wins the regional prize",
        ),
    ),
    "127.0.0.3": (
        "Town Library",
        (
            "Opening hours",
            "New books this month",
            "Reading circle for beginners",
            "Maps of the old town",
            "How to lend an instrument",
            "Night of the short story",
        ),
    ),
    "127.0.0.4": (
        "Quay Street Market",
        (
            "Bread and pastry",
            "Smoked fish",
            "Apples from the island",
            "Baskets, made here",
            "Second-hand bicycles",
            "Where to park a cart",
        ),
    ),
    "127.0.0.5": (
        "Weather Office",
        (
            "Today at the pier",
            "The week to come",
            "Tides",
            "Sea temperature",
            "Rain since January",
            "How we measure wind",
        ),
    ),
}
NOBODY = "127.0.0.6"  # an address on which nothing listens
SLOW_SECONDS = 1.5
TROUBLE: Mapping[str, tuple[str, ...]] = {  # paths that the first pages link to beside their articles
    "127.0.0.2": ("/moved", "/missing"),
    "127.0.0.3": ("/cafe", "/photo.png"),
    "127.0.0.4": ("/broken", "/missing"),
    "127.0.0.5": ("/slow", "/photo.png"),
}

_STYLE = "body{font-family:sans-serif;max-width:40em;margin:2em auto}"


class DemoPage(NamedTuple):
    """An answer; `delay_seconds` passes before it is sent."""

    status: int
    body: bytes
    content_type: str = "text/html; charset=utf-8"
    location: str | None = None
    delay_seconds: float = 0.0


def page(host: str, path: str) -> DemoPage:
    """The answer of a host to a path."""
    name, articles = HOSTS[host]
    if path == "/":
        return _front(host, name, articles)
    number = path.removeprefix("/article/")
    if number.isascii() and number.isdigit() and 1 <= int(number) <= len(articles):
        return _article(name, articles, int(number))
    return _special(name, path)


def seeds(port: int) -> list[str]:
    """Lines for `scrapy seed`: every front page, some single pages, and an address where nobody is."""
    fronts = [f"http://{host}:{port}/" for host in HOSTS]
    single = (
        f'{{"url": "http://127.0.0.2:{port}/article/1", "method": "HEAD", "meta": {{"url_id": "demo-head"}}}}'
    )
    return [*fronts, single, f"http://127.0.0.3:{port}/no-such-page", f"http://{NOBODY}:{port}/"]


BAD_MESSAGES = (  # what other producers have been seen to send; each becomes a dead letter
    b'{"meta": {"task_id": "demo"}, "link": "http://127.0.0.2/"}',
    b"http://127.0.0.2/ is not JSON",
)


def _front(host: str, name: str, articles: tuple[str, ...]) -> DemoPage:
    links = [(f"/article/{number}", title) for number, title in enumerate(articles, start=1)]
    links += [(path, path.strip("/")) for path in TROUBLE[host]]
    items = "".join(f'<li><a href="{href}">{escape(title)}</a></li>' for href, title in links)
    return _html(name, f"<p>Welcome. Today on our pages:</p><ul>{items}</ul>")


def _article(name: str, articles: tuple[str, ...], number: int) -> DemoPage:
    following = number % len(articles) + 1
    text = f"{articles[number - 1]}. More about it was not made up. " * 20
    links = f'<p><a href="/">{escape(name)}</a> · <a href="/article/{following}">next</a></p>'
    return _html(f"{articles[number - 1]} – {name}", f"<p>{escape(text)}</p>{links}")


def _special(name: str, path: str) -> DemoPage:
    if path == "/moved":
        return DemoPage(301, b"", location="/article/2")
    if path == "/cafe":  # says its encoding in the header only
        text = "<title>Café</title><p>Le café de la bibliothèque est ouvert.</p>"
        return DemoPage(200, text.encode("latin-1"), "text/html; charset=iso-8859-1")
    if path == "/photo.png":
        return DemoPage(200, _picture(), "image/png")
    if path == "/slow":
        return _html(f"The tide comes in – {name}", "<p>It took its time.</p>")._replace(
            delay_seconds=SLOW_SECONDS
        )
    if path == "/broken":
        return _html("Internal error", "<p>The till is jammed.</p>")._replace(status=500)
    return _html("Not found", "<p>There is no such page.</p>")._replace(status=404)


def _html(title: str, body: str) -> DemoPage:
    head = f"<!doctype html><html><head><title>{escape(title)}</title><style>{_STYLE}</style></head>"
    return DemoPage(200, f"{head}<body><h1>{escape(title)}</h1>{body}</body></html>".encode())


def _picture() -> bytes:
    """A blue PNG of 8 x 8 pixels."""
    rows = b"".join(b"\x00" + b"\x30\x60\x90" * 8 for _ in range(8))
    header = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
