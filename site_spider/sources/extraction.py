"""Finds the items of a page and the links to follow from it, as a source says. Pure.

What a page can cost is bounded here in number and size only. An XPath can take a minute on a page made
for it, and nothing within the process can stop it: so a crawl has this run by `sources.worker`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from lxml import etree

from site_spider.page.decode import python_codec
from site_spider.page.links import MAX_LINKS, LinkBase, extract_links
from site_spider.sources import selectors
from site_spider.sources.model import ItemField, ItemRule, LinkRule, Selection, Source
from site_spider.sources.patterns import any_matches, sound
from site_spider.sources.patterns import found as found_in
from site_spider.sources.values import absolute, cut, processed, text_of, usable

MAX_PAGE_CHARS = 5_000_000  # what stands behind is not read
MAX_ITEMS = 1_000  # of a page
MAX_VALUES = 1_000  # of a field
MAX_ITEMS_CHARS = 5_000_000  # of all items of a page, as JSON
_MAX_NOTES = 20
_LONGEST_NOTE = 300  # characters
_LONGEST_INTEGER = 300  # digits
_MAX_KINDS = 500  # of notes, from which the most frequent are shown
NEXT_PAGE = -1  # in place of the number of a rule

_inner_text = etree.XPath("string()", smart_strings=False)
_hrefs = etree.XPath("descendant-or-self::a/@href | descendant-or-self::area/@href", smart_strings=False)
_bases = etree.XPath("//base/@href", smart_strings=False)


class FoundLink(NamedTuple):
    """Where to, and the number of the rule that found it."""

    url: str
    rule: int


@dataclass(slots=True)
class Extracted:
    """What a source finds in a page; `lost` says why items are left out, notes what cannot be used."""

    items: list[dict[str, Any]] = field(default_factory=list)
    links: list[FoundLink] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


class SourcePage:
    """A page, parsed when something asks for it."""

    def __init__(
        self, url: str, text: str, encoding: str = "utf-8", *, follow_nofollow: bool = False
    ) -> None:
        self.url = url
        self.text = sound(text[:MAX_PAGE_CHARS])
        self._encoding = encoding
        self._follow_nofollow = follow_nofollow

    @cached_property
    def root(self) -> Any:
        """The HTML tree; without anything to be found when there is none."""
        parser = etree.HTMLParser(encoding="utf-8", recover=True, no_network=True)
        raw = self.text.replace("\0", "").encode("utf-8", "replace")
        root = etree.fromstring(raw, parser) if raw.strip() else None
        return etree.Element("html") if root is None else root

    @cached_property
    def json(self) -> Any:
        """The JSON value; None when it is none."""
        try:
            return json.loads(self.text, parse_int=_integer)
        except (ValueError, RecursionError):
            return None

    @cached_property
    def base(self) -> LinkBase:
        """What its links are joined to."""
        codec = python_codec(self._encoding)
        base = LinkBase.parse(self.url, codec)
        bases = _bases(self.root) if "<base" in self.text.lower() else ()
        joined = absolute(bases[0], base) if bases else None
        return LinkBase.parse(joined, codec) if joined else base

    @cached_property
    def links(self) -> list[str]:
        """All that it links to."""
        return extract_links(
            self.text, self.url, encoding=self._encoding, follow_nofollow=self._follow_nofollow
        ).urls


def _integer(digits: str) -> float | int:
    """A number of thousands of digits, which Python refuses, is one that nothing can be made of."""
    return int(digits) if len(digits) <= _LONGEST_INTEGER else math.inf


def extract(source: Source, page: SourcePage, *, wants_links: bool = True) -> Extracted:
    """All that the source finds. Never raises for what a page holds."""
    result = Extracted()
    notes, lost = _Notes(), _Notes()
    chars = MAX_ITEMS_CHARS
    for rule in source.items:
        if rule.urls and not any_matches(rule.urls, page.url):
            continue
        for context in _contexts(rule, page, notes):
            item = _item(rule, page, context, notes, lost)
            chars -= 0 if item is None else len(json.dumps(item, ensure_ascii=False))
            if chars < 0 or len(result.items) >= MAX_ITEMS:
                lost.add("the page has more items than are taken")
                break
            if item is not None:
                result.items.append(item)
    if wants_links:
        result.links = list(_links(source, page, notes))
    result.notes, result.lost = notes.said(), lost.said()
    return result


class _Notes:
    """What is said of a page, each with how often. Bounded: it holds what stands in the page."""

    def __init__(self) -> None:
        self._counts = Counter[str]()

    def add(self, said: str) -> None:
        """One line of it."""
        if len(self._counts) < _MAX_KINDS:
            self._counts[sound(" ".join(said[: 2 * _LONGEST_NOTE].split()))[:_LONGEST_NOTE]] += 1

    def of(self, name: str) -> Callable[[str], None]:
        """What adds notes of a field."""
        return lambda said: self.add(f"{name}: {said}")

    def said(self) -> list[str]:
        """The most frequent ones."""
        return [
            said if times == 1 else f"{said} ({times} times)"
            for said, times in self._counts.most_common(_MAX_NOTES)
        ]


def _contexts(rule: ItemRule, page: SourcePage, notes: _Notes) -> list[Any]:
    if rule.each is None:
        return [None]
    return _selected(rule.each, page, None, notes.of("each"))[: MAX_ITEMS + 1]


def _item(
    rule: ItemRule, page: SourcePage, context: Any, notes: _Notes, lost: _Notes
) -> dict[str, Any] | None:
    item: dict[str, Any] = {}
    for name, wanted in rule.fields.items():
        values = _values(wanted, page, context, notes.of(name))
        if not values and wanted.required:
            lost.add(f"an item is left out: {name} is missing")
            return None
        if wanted.is_list:
            item[name] = values or ([] if wanted.default is None else wanted.default)
        else:
            item[name] = values[0] if values else wanted.default
    return item


def _values(wanted: ItemField, page: SourcePage, context: Any, note: Callable[[str], None]) -> list[Any]:
    if wanted.is_constant:
        return wanted.constant if wanted.is_list and isinstance(wanted.constant, list) else [wanted.constant]
    is_whole = wanted.type == "any" and wanted.jmespath is not None and not wanted.is_list
    if wanted.ways:
        values = _texts(_selected(wanted, page, context, note, is_whole=is_whole))
    else:
        values = [_source_text(page, context)]
    is_single = not wanted.is_list and not any(step.name == "join" for step in wanted.then)
    most = 1 if is_single else MAX_VALUES
    values = usable(values if wanted.regex is not None else values[:most], note)
    if wanted.regex is not None:
        values = [match for value in values for match in found_in(wanted.regex, text_of(value), most)]
    return processed(wanted, values[:most], page.base, note)


def _selected(
    selection: Selection,
    page: SourcePage,
    context: Any,
    note: Callable[[str], None],
    *,
    is_whole: bool = False,
) -> list[Any]:
    """Elements, texts, numbers or JSON values; none, and a note, where a function gets what it is not for."""
    try:
        value = _evaluated(selection, page, context)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - jmespath raises whatever Python does for a value of another type
        note(str(error)[: 2 * _LONGEST_NOTE])
        return []
    if isinstance(value, list) and not is_whole:
        return [one for one in value if one is not None]
    return [] if value is None else [value]


def _evaluated(selection: Selection, page: SourcePage, context: Any) -> Any:
    if selection.jmespath is not None:
        data = page.json if context is None or etree.iselement(context) else context
        return selectors.jmespath(selection.jmespath).search(data)
    node = context if etree.iselement(context) else page.root
    if selection.css is not None:
        return selectors.css(selection.css)(node)
    return selectors.xpath(selection.xpath)(node)


def _texts(values: Iterable[Any]) -> list[Any]:
    """An element counts as its text; blank texts do not count."""
    texts = (_inner(value) if etree.iselement(value) else value for value in values)
    return [cut(text) if isinstance(text, str) else text for text in texts if not _is_blank(text)]


def _inner(element: Any) -> str:
    return _inner_text(element) if isinstance(element.tag, str) else element.text or ""  # of a comment


def _is_blank(value: Any) -> bool:
    return isinstance(value, str) and not value.strip()


def _source_text(page: SourcePage, context: Any) -> str:
    if context is None:
        return page.text
    if etree.iselement(context):
        return str(etree.tostring(context, encoding="unicode", with_tail=False))
    return text_of(context)


# --- links -------------------------------------------------------------------------------------


def _links(source: Source, page: SourcePage, notes: _Notes) -> Iterator[FoundLink]:
    seen: set[str] = {page.url}
    for number, rule in enumerate(source.follow or ()):
        for url in _met(rule, page, notes.of(f"follow.{number}")):
            if url not in seen and len(seen) <= MAX_LINKS:
                seen.add(url)
                yield FoundLink(url, number)
    if source.pagination is not None:
        for url in _joined(_selected(source.pagination, page, None, notes.of("pagination")), page)[:1]:
            if url != page.url:
                yield FoundLink(url, NEXT_PAGE)


def _met(rule: LinkRule, page: SourcePage, note: Callable[[str], None]) -> Iterator[str]:
    selection = None if rule.css is None else Selection.model_validate({"css": rule.css})
    urls = page.links if selection is None else _joined(_selected(selection, page, None, note), page)
    for url in urls:
        if (not rule.allow or any_matches(rule.allow, url)) and not any_matches(rule.deny, url):
            yield url


def _joined(selected: Iterable[Any], page: SourcePage) -> list[str]:
    """The links inside of what was selected, or that it is itself."""
    written: dict[str, None] = {}
    for one in selected:
        if etree.iselement(one):
            hrefs = _hrefs(one) if isinstance(one.tag, str) else ()
        else:
            hrefs = [one] if isinstance(one, str) else ()
        for href in hrefs:
            if len(written) >= MAX_LINKS:
                break
            written[href] = None
    return list(dict.fromkeys(url for href in written if (url := absolute(href, page.base))))
