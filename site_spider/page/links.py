"""Finds the links of a page.

What counts: `<a href>`, `<area href>`, and `<frame src>` and `<iframe src>`, which
browsers navigate to by themselves. Forms, scripts, images and `<link>` do not.

A page decides how many links it has, how long and how odd they are. So they are found in
slices, each of which takes a few milliseconds at the most.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from itertools import islice
from typing import NamedTuple

from site_spider.page.decode import python_codec
from site_spider.page.link_base import LinkBase, trimmed
from site_spider.page.markup import tags
from site_spider.page.url import MAX_HOST_CHARACTERS

MAX_LINKS = 10_000
MAX_TOTAL_CHARS = 2_097_152  # of all links as written and joined: a long <base href> multiplies
SLICE_LINKS = 100  # joined in one go
SLICE_CHARS = 10_000  # likewise, counted as those of MAX_TOTAL_CHARS
SLICE_TAGS = 300  # tags and their attributes, read in one go
NEW_HOST_FACTOR = 100  # so many times its length an international host costs when first met: IDNA is slow

_LINK_ATTRIBUTE = {"a": "href", "area": "href", "frame": "src", "iframe": "src"}


class Links(NamedTuple):
    """Absolute http and https URLs without fragment, each once, in the order of the page.

    `dropped` counts the links, distinct as written, that a limit left out.
    """

    urls: list[str]
    dropped: int


Slices = Generator[list[str], None, int]


def extract_links(
    text: str,
    base_url: str,
    *,
    encoding: str = "utf-8",
    follow_nofollow: bool = False,
    limit: int = MAX_LINKS,
) -> Links:
    """All links of a page in one go; see `link_slices`."""
    slices = link_slices(text, base_url, encoding=encoding, follow_nofollow=follow_nofollow, limit=limit)
    urls: list[str] = []
    while True:
        try:
            urls += next(slices)
        except StopIteration as end:
            return Links(urls, end.value)


def link_slices(
    text: str,
    base_url: str,
    *,
    encoding: str = "utf-8",
    follow_nofollow: bool = False,
    limit: int = MAX_LINKS,
) -> Slices:
    """The links of an HTML page that was found at `base_url`, some at a time; some slices are empty.

    `encoding` is the page's (as `decode_body` names it): queries are percent-encoded in
    it, as browsers do. Links that the page marks nofollow, one by one or with a robots
    meta tag for all, are left out unless `follow_nofollow`. Malformed links, and those that
    `check_url` would refuse in a seed (too long, with a password), are passed over. Never
    raises. Returns `Links.dropped`.
    """
    hrefs, base_href = yield from _read(text, follow_nofollow)
    codec = python_codec(encoding)
    page = LinkBase.parse(base_url, codec)
    if base_href is not None and (href := trimmed(base_href)) and (based := page.join(href)):
        page = LinkBase.parse(based, codec)
    return (yield from _joined(hrefs, page, limit))


def _read(text: str, follow_nofollow: bool) -> Generator[list[str], None, tuple[Collection[str], str | None]]:
    """What stands in the page: distinct links as written, and the first base."""
    found: dict[str, None] = {}
    base: str | None = None
    left = SLICE_TAGS
    for tag in tags(text):
        if tag is None:
            yield []
            continue
        name, attributes = tag
        attribute = _LINK_ATTRIBUTE.get(name)
        if attribute is None:
            if name == "base":
                base = attributes.get("href") if base is None else base
            elif not follow_nofollow and _forbids_following(attributes):  # a meta tag
                return (), base
        elif (href := attributes.get(attribute)) and (
            "rel" not in attributes or follow_nofollow or "nofollow" not in attributes["rel"].lower().split()
        ):
            found[href] = None
        left -= 1 + len(attributes)
        if left <= 0:
            left = SLICE_TAGS
            yield []
    return found, base


def _forbids_following(meta: Mapping[str, str]) -> bool:
    if meta.get("name", "").strip().lower() != "robots":
        return False
    words = meta.get("content", "").lower().replace(",", " ").split()
    return "nofollow" in words or "none" in words


def _joined(hrefs: Collection[str], page: LinkBase, limit: int) -> Slices:
    urls: dict[str, None] = {}
    seen: set[str] = set()
    hosts: set[str] = set()
    chars = MAX_TOTAL_CHARS
    given, until_links, until_chars = 0, SLICE_LINKS, chars - SLICE_CHARS
    for index, written in enumerate(hrefs):
        # Counted by attempts, not by results: malformed links are the slow ones.
        if len(seen) >= until_links or chars <= until_chars:
            yield list(islice(urls, given, None))
            given, until_links, until_chars = len(urls), len(seen) + SLICE_LINKS, chars - SLICE_CHARS
        if len(seen) >= limit or chars <= 0:
            yield list(islice(urls, given, None))
            return len(hrefs) - index
        chars -= len(written)
        short = page.find_short(written)
        href = trimmed(written) if short is None else short[0]
        if href and href not in seen:
            seen.add(href)
            url = page.join(href) if short is None else short[1]
            if url:
                urls[url] = None
                chars -= len(url)
            if short is None and not href.isascii() and _met_new_host(url, hosts):
                chars -= NEW_HOST_FACTOR * min(len(href), MAX_HOST_CHARACTERS)
    yield list(islice(urls, given, None))
    return 0


def _met_new_host(url: str | None, hosts: set[str]) -> bool:
    """Whether joining had to spell an international host, or failed to; adds it to `hosts`."""
    host = url.split("/", 3)[2] if url else ""
    if url and ("xn--" not in host or host in hosts):
        return False
    hosts.add(host)
    return True
