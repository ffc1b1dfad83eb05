"""Finds the items of a page and the links to follow from it, as a source says. Pure.

What a page can cost is bounded here in number and size only. An XPath can take a minute on a page made
for it, and nothing within the process can stop it: so a crawl has this run by `sources.extraction_process`.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cached_property, partial
from itertools import chain, islice
from typing import Any, NamedTuple

from lxml import etree

from site_spider.page.decode import python_codec
from site_spider.page.directives import absolute
from site_spider.page.links import MAX_LINKS, MAX_PAGE_CHARS, LinkBase, forbids_following, link_slices, said_to_robots
from site_spider.sources import model
from site_spider.sources.model import ItemField, ItemRule, Selection, Source, ValueStep, any_matches, compiled, sound
from site_spider.sources.model import found as found_in

# --- What becomes of the values that a field finds: post-processing, and the field's type. Pure ----------

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


def processed(field: ItemField, values: Iterable[Any], base: LinkBase, note: Callable[[str], None]) -> list[Any]:
    """The values after all steps and with the field's type; what does not fit is noted and left out."""
    found = list(values)
    for step in field.then:
        if step.name == "join" and found:
            found = [cut((" " if step.join is None else step.join).join(map(text_of, found)))]
        else:
            found = _kept(step, found, base, note)
    return list(_each(_TYPES[field.type], found, note))


def _finite(note: Callable[[str], None], value: Any) -> Any:
    """Without numbers that JSON does not have; inside of lists and objects null stands for them."""
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


def text_of(value: Any) -> str:
    """A value as text: JSON for what is none and no number."""
    return sound(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def cut(text: str) -> str:
    """At most MAX_TEXT_CHARS, and nothing that UTF-8 cannot hold."""
    return sound(text[:MAX_TEXT_CHARS])


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


_STEPS: dict[str, Callable[[Any, ValueStep], Any]] = {
    "strip": lambda value, _: value.strip() if isinstance(value, str) else value,
    "number": _number,
    "date": _date,
}


def _integer_of(value: Any) -> int:
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


_TYPES: dict[str, Callable[[Any], Any]] = {
    "text": lambda value: cut(text_of(value)),
    "integer": _integer_of,
    "number": _real,
    "boolean": _boolean,
    "any": lambda value: cut(value) if isinstance(value, str) else value,
}


def _shown(text: str) -> str:
    return ascii(text[:_SHOWN])


MAX_ITEMS = 1_000  # of a page
MAX_VALUES = 1_000  # of a field
MAX_ITEMS_CHARS = 5_000_000  # of all items of a page, as JSON
_MAX_NOTES = 20
_LONGEST_NOTE = 300  # characters
_LONGEST_INTEGER = 300  # digits
_MAX_KINDS = 500  # of notes, from which the most frequent are shown
NEXT_PAGE = -1  # in place of the number of a rule
_MAX_SCRIPTS = 200  # of a page, and assignments in one of them
_MAX_SCRIPT_CHARS = 2_000_000  # of all scripts of a page
_WRAPPED = re.compile(r"\s*(?:<!--|(?://|/\*)?<!\[CDATA\[(?:\*/)?)(.*?)(?:-->|(?://|/\*)?\]\]>(?:\*/)?)\s*", re.DOTALL)
_ASSIGNED = re.compile(
    r"""(?:\b(?:var|let|const)\s{1,9}|\bwindow\.|\bwindow\[["'])([\w$]{1,100})(?:["']\])?\s{0,9}=\s{0,9}(?=[\[{])"""
)

_inner_text = etree.XPath("string()", smart_strings=False)
_NOFOLLOW = "contains(concat(' ', normalize-space(translate(@rel, 'NOFLW', 'noflw')), ' '), ' nofollow ')"
_marked = etree.XPath(f"//*[@rel][{_NOFOLLOW}]/@href", smart_strings=False)
_LINKS = f"descendant-or-self::*[self::a or self::area][$marked or not({_NOFOLLOW})]/@href"
_hrefs = etree.XPath(_LINKS, smart_strings=False)
_bases = etree.XPath("//base/@href", smart_strings=False)


class FoundLink(NamedTuple):
    """Where to, and the number of the rule that found it."""

    url: str
    rule: int


@dataclass
class Extracted:
    """What a source finds in a page; `lost` says why items are left out, notes what cannot be used."""

    items: list[dict[str, Any]] = field(default_factory=list)
    links: list[FoundLink] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


class SourcePage:
    """A page, parsed when something asks for it."""

    def __init__(self, url: str, text: str, encoding: str = "utf-8", *, follow_nofollow: bool = False) -> None:
        self.url = url
        self.text = sound(text[:MAX_PAGE_CHARS])
        self._encoding = encoding
        self.follow_nofollow = follow_nofollow

    @cached_property
    def root(self) -> Any:
        """The HTML tree; without anything to be found when there is none."""
        parser = etree.HTMLParser(encoding="utf-8", recover=True, no_network=True, huge_tree=True)
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
    def scripts(self) -> Scripts:
        """The JSON in its scripts."""
        return Scripts(self.root)

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
        follow = self.follow_nofollow
        slices = link_slices(self.text, self.url, encoding=self._encoding, follow_nofollow=follow)
        return [*chain.from_iterable(slices)]

    @cached_property
    def nofollow(self) -> set[str] | None:
        """Links as written that are nofollow wherever they stand; None: a meta tag says so of all."""
        if self.follow_nofollow:
            return set()
        if any(forbids_following(said_to_robots(meta)) for meta in self.root.iter("meta")):
            return None
        marked = {*_marked(self.root)}
        return marked and marked.difference(_hrefs(self.root, marked=False))

    def hrefs(self, selected: Any) -> list[str]:
        """The links inside of what was selected, or that it is itself, but for nofollow ones."""
        if self.nofollow is None:
            return []
        if isinstance(selected, str):
            return [] if selected in self.nofollow else [selected]
        is_tag = isinstance(getattr(selected, "tag", None), str)  # not so of a comment
        return _hrefs(selected, marked=self.follow_nofollow) if is_tag else []


class Scripts:
    """JSON in the scripts of a page; what cannot be read is one of the `faults`."""

    def __init__(self, root: Any) -> None:
        self.linked: list[Any] = []  # objects of JSON-LD, those of lists and of @graph too
        self.named: dict[str, Any] = {}  # by the id of the script, or the name that a value is assigned to
        self.faults: list[str] = []
        chars = _MAX_SCRIPT_CHARS
        for script in islice(root.iter("script"), _MAX_SCRIPTS):
            text, kind = script.text or "", (script.get("type") or "").partition(";")[0].strip().lower()
            chars -= len(text)
            if chars < 0:
                self.faults.append(f"scripts have more than {_MAX_SCRIPT_CHARS} characters; the rest is not read")
                break
            if kind == "application/ld+json":
                self._link(self._read(text, "JSON-LD"))
            elif kind.endswith("json"):
                self.named.setdefault(script.get("id") or "", self._read(text, "a script of JSON"))
            else:
                self._take_assigned(text)

    def _link(self, value: Any) -> None:
        waiting = [value]
        while waiting:
            one = waiting.pop()
            if isinstance(one, list):
                waiting += reversed(one)
            elif isinstance(one, dict) and isinstance(graph := one.get("@graph"), list | dict):
                waiting.append(graph)
                if one.keys() - {"@context", "@id", "@graph"}:
                    self.linked.append({key: value for key, value in one.items() if key != "@graph"})
            elif one is not None:
                self.linked.append(one)

    def _read(self, text: str, what: str) -> Any:
        match = _WRAPPED.fullmatch(text)
        try:
            return _scripts_json.decode(match[1] if match else text)
        except (ValueError, RecursionError) as error:
            self.faults.append(f"{what} cannot be read: {error}")
            return None

    def _take_assigned(self, text: str) -> None:
        end = 0
        for match in islice(_ASSIGNED.finditer(text), _MAX_SCRIPTS):
            if match.start() < end or match[1] in self.named:
                continue  # it stands inside of the one before
            try:
                self.named[match[1]], end = _scripts_json.raw_decode(text, match.end())
            except (ValueError, RecursionError):
                self.faults.append(f"what is assigned to {match[1]} in a script is no JSON")


def _integer(digits: str) -> float | int:
    """A number of thousands of digits, which Python refuses, is one that nothing can be made of."""
    return int(digits) if len(digits) <= _LONGEST_INTEGER else math.inf


_scripts_json = json.JSONDecoder(parse_int=_integer, strict=False)  # with line feeds in texts


def extract(source: Source, page: SourcePage, *, wants_links: bool = True) -> Extracted:
    """All that the source finds. Never raises for what a page holds."""
    result = Extracted()
    notes, lost = _Notes(), _Notes()
    chars = MAX_ITEMS_CHARS
    for rule in source.items:
        if rule.urls and not any_matches(rule.urls, page.url):
            continue
        each = rule.each
        contexts = [None] if each is None else _selected(each, page, None, notes.of("each"))[: MAX_ITEMS + 1]
        for context in contexts:
            item = _item(rule, page, context, notes, lost)
            chars -= 0 if item is None else len(json.dumps(item, ensure_ascii=False))
            if chars < 0 or len(result.items) >= MAX_ITEMS:
                lost.add("the page has more items than are taken")
                break
            if item is not None:
                result.items.append(item)
    if wants_links:
        result.links = list(_links(source, page, notes))
    for said in page.scripts.faults if "scripts" in vars(page) else ():
        notes.add(said)
    result.notes, result.lost = notes.said(), lost.said()
    return result


class _Notes:
    """What is said of a page, each with how often. Bounded: it holds what stands in the page."""

    def __init__(self) -> None:
        self._counts = Counter[str]()

    def add(self, said: str) -> None:
        if len(self._counts) < _MAX_KINDS:
            self._counts[sound(" ".join(said[: 2 * _LONGEST_NOTE].split()))[:_LONGEST_NOTE]] += 1

    def of(self, name: str) -> Callable[[str], None]:
        """What adds notes of a field."""
        return lambda said: self.add(f"{name}: {said}")

    def said(self) -> list[str]:
        """The most frequent ones."""
        return [
            said if times == 1 else f"{said} ({times} times)" for said, times in self._counts.most_common(_MAX_NOTES)
        ]


def _item(rule: ItemRule, page: SourcePage, context: Any, notes: _Notes, lost: _Notes) -> dict[str, Any] | None:
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
    is_whole = wanted.type == "any" and not wanted.is_list and not {"css", "xpath"} & {*wanted.ways}
    if wanted.ways:
        values = _texts(_selected(wanted, page, context, note, is_whole=is_whole))
    else:
        values = [_source_text(page, context)]
    is_single = not wanted.is_list and not any(step.name == "join" for step in wanted.then)
    most = 1 if is_single else MAX_VALUES
    values = [*_each(partial(_finite, note), values if wanted.regex is not None else values[:most], note)]
    if wanted.regex is not None:
        values = [match for value in values for match in found_in(wanted.regex, text_of(value), most)]
    return processed(wanted, values[:most], page.base, note)


def _selected(
    selection: Selection, page: SourcePage, context: Any, note: Callable[[str], None], *, is_whole: bool = False
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
        return model.jmespath(selection.jmespath).search(data)
    if selection.jsonld is not None:
        return model.jmespath(selection.jsonld).search(page.scripts.linked)
    if selection.script is not None:
        return model.jmespath(selection.script).search(page.scripts.named)
    node = context if etree.iselement(context) else page.root
    if selection.css is not None:
        return model.css(selection.css)(node)
    return model.xpath(selection.xpath)(node)


def _texts(values: Iterable[Any]) -> list[Any]:
    """An element counts as its text; blank texts do not count."""
    texts = (_inner(value) if etree.iselement(value) else value for value in values)
    return [cut(text) if isinstance(text, str) else text for text in texts if not isinstance(text, str) or text.strip()]


def _inner(element: Any) -> str:
    return _inner_text(element) if isinstance(element.tag, str) else element.text or ""  # of a comment


def _source_text(page: SourcePage, context: Any) -> str:
    if context is None:
        return page.text
    if etree.iselement(context):
        return str(etree.tostring(context, encoding="unicode", with_tail=False))
    return text_of(context)


def _links(source: Source, page: SourcePage, notes: _Notes) -> Iterator[FoundLink]:
    pages = [] if source.pagination is None else _joined(source.pagination, page, notes.of("pagination"))[:1]
    seen: set[str] = {page.url, *pages}  # the next page of a list is that, whatever rule finds it, too
    for number, rule in enumerate(source.follow or ()):
        selection = None if rule.css is None else Selection.model_validate({"css": rule.css})
        urls = page.links if selection is None else _joined(selection, page, notes.of(f"follow.{number}"))
        for url in filter(rule.takes, urls):
            if url not in seen and len(seen) <= MAX_LINKS:
                seen.add(url)
                yield FoundLink(url, number)
    yield from (FoundLink(url, NEXT_PAGE) for url in pages if url != page.url)


def _joined(selection: Selection, page: SourcePage, note: Callable[[str], None]) -> list[str]:
    """The links that are selected. JSON pages have no marks of HTML."""
    hrefs = page.hrefs if selection.jmespath is None else lambda one: [one] if isinstance(one, str) else []
    written = dict.fromkeys(chain.from_iterable(map(hrefs, _selected(selection, page, None, note))))
    urls = (absolute(href, page.base) for href in islice(written, MAX_LINKS))
    return list(dict.fromkeys(url for url in urls if url))
