"""Reads bodies as the spider does, in one call and in slices."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from site_spider.page import links as page
from site_spider.page.decode import BodyLimits, Decoded, Decoding, decode_small, find_encoding

T = TypeVar("T")


def run(steps: Generator[None, None, T]) -> T:
    """What the steps return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def decode_body(body: bytes, content_type: str | None = None) -> Decoded:
    """The text and its encoding, which both ways agree on."""
    encoding, start = run(find_encoding(body, content_type))
    decoding = Decoding(body, encoding, start)
    sliced = Decoded("".join(decoding.pieces()), encoding)
    small = decode_small(body, content_type)
    assert small is None or small == sliced
    text = run(page.read_text(body, content_type, BodyLimits(0), 0))
    assert (text.kept.text, text.encoding) == sliced
    return sliced
