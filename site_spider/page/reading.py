"""Reads a body: decodes it, finds its links, cuts it.

Theory of operation. Reading is a generator that yields after each step of some milliseconds at most, so
that whoever runs it can do other things in between. A small body that is sound is one step. Of
another one, text is decoded only as far as it is kept or read for links: a body of 31 MB can be
124 MB of text, and nobody asks for the end of it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import NamedTuple

from site_spider.page.body import BodyLimits, KeptBody, KeptText, keep_binary, keep_text
from site_spider.page.codec import Decoding
from site_spider.page.decode import decode_small, find_encoding, is_html, is_text
from site_spider.page.links import link_slices
from site_spider.page.markup import MAX_PAGE_CHARS

_BLOCK_CHARS = 500_000  # many small texts would leave the memory in pieces


class Page(NamedTuple):
    """What was read from a body; `encoding` is None for binary content."""

    kept: KeptBody
    encoding: str | None
    links: tuple[list[str], ...]  # in slices


class PageText(NamedTuple):
    """What is kept of a text, and what is read of it for links."""

    kept: KeptBody
    read: str
    encoding: str


def read_page(
    body: bytes,
    content_type: str | None,
    base_url: str,
    *,
    wants_links: bool,
    follow_nofollow: bool = False,
    limits: BodyLimits = BodyLimits(),  # noqa: B008 - immutable
) -> Generator[None, None, Page]:
    """Decode a body and find its links, also in the part that is not kept."""
    if body and not is_text(body, content_type):
        return Page((yield from keep_binary(body, limits)), None, ())
    wants_links = wants_links and is_html(body, content_type)
    text = yield from read_text(body, content_type, limits, MAX_PAGE_CHARS if wants_links else 0)
    if not wants_links:
        return Page(text.kept, text.encoding, ())
    links: list[list[str]] = []
    for some in link_slices(text.read, base_url, encoding=text.encoding, follow_nofollow=follow_nofollow):
        if some:
            links.append(some)
        yield
    return Page(text.kept, text.encoding, tuple(links))


def read_text(
    body: bytes, content_type: str | None, limits: BodyLimits, read_chars: int
) -> Generator[None, None, PageText]:
    """Decode what is kept of a body, and at least `read_chars` of it."""
    small = decode_small(body, content_type)
    if small is not None:
        return PageText(keep_text(small.text, limits), small.text, small.encoding)
    encoding, start = yield from find_encoding(body, content_type)
    decoding, text = Decoding(body, encoding, start), KeptText(limits, read_chars)
    for block in _blocks(decoding.pieces()):
        if block:
            text.add(block)
            if text.is_enough:
                break
        yield
    kept = text.body(is_whole=decoding.is_whole)
    return PageText(kept, text.read_text(kept.text or ""), encoding)


def _blocks(pieces: Iterator[str]) -> Iterator[str]:
    """The pieces joined to larger ones; in between, empty ones."""
    waiting: list[str] = []
    chars = 0
    for piece in pieces:
        waiting.append(piece)
        chars += len(piece)
        if chars < _BLOCK_CHARS:
            yield ""
            continue
        yield "".join(waiting)
        waiting, chars = [], 0
    yield "".join(waiting)
