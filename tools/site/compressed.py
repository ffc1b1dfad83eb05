"""Pages with a Content-Encoding."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable
from functools import lru_cache

import brotli

from tools.site.exchange import Answer, Ask, page
from tools.site.pages import HTML
from tools.site.text import ordinary


def _deflate_raw(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "deflate": zlib.compress,
    "deflate-raw": _deflate_raw,
    "br": brotli.compress,
}


@lru_cache(maxsize=4096)
def _packed(name: str, text: str) -> bytes:
    return PACKERS[name](text.encode())


@page("compressed")
def compressed(ask: Ask) -> Answer:
    """/compressed/br/x; deflate-raw lacks the zlib header, as some servers send it."""
    name, text = ask.parts[1], ordinary(ask.target)
    lines = (*HTML, ("Content-Encoding", name.removesuffix("-raw")), ("Vary", "Accept-Encoding"))
    return Answer(headers=lines, body=_packed(name, text), text=text, size=len(text))


@page("cut-gzip")
def cut_gzip(ask: Ask) -> Answer:
    """A gzip body that ends too early: what can be unpacked is stored."""
    text = ordinary(ask.target)
    body = _packed("gzip", text)
    lenient = {
        "body": None,
        "body_pattern": "^" + re.escape(text[:100]),
        "description": r"",
        "response_size": None,
    }
    return Answer(
        headers=(*HTML, ("Content-Encoding", "gzip")),
        body=body[: len(body) * 2 // 3],
        text=text,
        lenient=lenient,
    )
