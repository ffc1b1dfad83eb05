"""Reads text, title, language and what else a page says of itself, by Resiliparse.

For the process that extracts alone (sources/extraction_process.py): Resiliparse lets no other thread run, and takes
minutes for pages made to be slow: 30,000 attributes of an element, 200,000 elements in each other.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import DocumentNode, HTMLTree
from resiliparse.parse.lang import detect_fast

from site_spider.page.directives import absolute, text_hash
from site_spider.page.links import LinkBase
from site_spider.page.sitemap import parse_lastmod

MAX_TEXT_CHARS: Final = 200_000  # of `text`; Kafka takes messages of 1 MB
_MAX_TITLE_CHARS, _MAX_DESCRIPTION_CHARS = 1_000, 2_000
_LANGUAGE_CHARS, _FEWEST_CHARS = 20_000, 50  # that a language is told from
_SURE_CHARS, _ALIKE = 1_000, 3  # that tell it surely, but for so many: Spanish may read as Galician
_NAMES = {"nb": "no", "nn": "no"}  # the detector knows Norwegian alone
_MAX_SCRIPTS, _MAX_NODES = 20, 1_000  # looked at for a date, or a canonical URL
_OTHERS = frozenset(("review", "reviews", "comment", "citation", "itemListElement"))  # with dates of their own
_MAX_DEPTH = 100  # looked at, above an element
_CONTROLS = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\x7f]")  # six bytes each in JSON
_PRIMARY = re.compile(r"\s*([a-zA-Z]{2,3})(?=[-_\s]|$)")
_SAID_IN = 'script[type^="application/ld+json" i]'


def read_page(text: str, url: str | None, *, main_only: bool = False, now: datetime | None = None) -> dict[str, Any]:
    """Fields of a result, and notes; `url` is None for a page without mark-up."""
    if url is None:
        return _of_text(text, None)
    tree = HTMLTree.parse(text)
    document = tree.document
    assert document is not None  # of a tree that was parsed
    root = document.query_selector("html")
    return {
        "title": _cut(tree.title or "", _MAX_TITLE_CHARS),
        **_of_text(_plain(tree, main_only=main_only), None if root is None else root.getattr("lang")),
        "canonical": _canonical(document, url),
        "meta_description": _meta_description(document),
        "published_at": _published(document, now),
        # Of a list: from one node to the next such a result counts from its beginning.
        "links_out": len({node.getattr("href") for node in document.query_selector_all("a[href]")[:]}),
    }


def _plain(tree: HTMLTree, *, main_only: bool) -> str:
    """Its text, without navigation and the like where that can be told."""
    main = extract_plain_text(tree, main_content=True, list_bullets=False) if main_only else ""
    return main if main and not main.isspace() else extract_plain_text(tree, list_bullets=False) or ""


def _of_text(text: str, declared: str | None) -> dict[str, Any]:
    text = _CONTROLS.sub("", text).strip()
    notes = []
    if len(text) > MAX_TEXT_CHARS:
        notes.append(f"text: the first {MAX_TEXT_CHARS} of {len(text)} characters")
    return {
        "text": text[:MAX_TEXT_CHARS] or None,
        "language": _language(text, declared),
        "text_hash": text_hash(text),
        "notes": notes,
    }


def _language(text: str, declared: str | None) -> str | None:
    """As the page says, unless its text is long and reads as another one."""
    primary = _PRIMARY.match(declared or "")
    said = str(primary[1]).lower() if primary else None
    sample = unicodedata.normalize("NFC", text[:_LANGUAGE_CHARS])
    if len(sample) < (_SURE_CHARS if said else _FEWEST_CHARS):
        return said
    found: Any = detect_fast(sample, n_results=_ALIKE)
    best = [str(name) for name, _rank in found]
    return said if not best or (said and _NAMES.get(said, said) in best) else best[0]


def _cut(text: str, most: int) -> str | None:
    return " ".join(_CONTROLS.sub("", text[: 4 * most]).split())[:most] or None


def _meta_description(document: DocumentNode) -> str | None:
    for selector in ('meta[name="description" i]', 'meta[property="og:description"]'):
        node = document.query_selector(selector)
        if node is not None and (found := _cut(node.getattr("content") or "", _MAX_DESCRIPTION_CHARS)):
            return found
    return None


def _canonical(document: DocumentNode, url: str) -> str | None:
    base = LinkBase.parse(url, "utf-8")
    node = document.query_selector("base[href]")
    if node is not None and (based := absolute(node.getattr("href") or "", base)):
        base = LinkBase.parse(based, "utf-8")
    for link in document.query_selector_all("link[rel][href]")[:_MAX_NODES]:
        if "canonical" in (link.getattr("rel") or "").lower().split():
            return absolute(link.getattr("href") or "", base)
    return None


def _published(document: DocumentNode, now: datetime | None) -> str | None:
    """The first date that the page says it by, or its only time if that is not to come; in ISO 8601 and UTC."""
    found = next(filter(None, map(_date, _dates(document))), None)
    if found is None and len(times := document.query_selector_all("time")) == 1 and not _is_of_another(times[0]):
        said = _date(times[0].getattr("datetime"))
        found = said if said and (now is None or said <= now) else None
    return None if found is None else found.isoformat()


def _date(written: str | None) -> datetime | None:
    return parse_lastmod((written or "").strip()[:100])


def _dates(document: DocumentNode) -> Iterator[str | None]:
    for selector in ('meta[property="article:published_time"]', 'meta[itemprop="datePublished"]'):
        for node in document.query_selector_all(selector)[:_MAX_SCRIPTS]:
            yield None if _is_of_another(node) else node.getattr("content")
    for script in document.query_selector_all(_SAID_IN)[:_MAX_SCRIPTS]:
        yield from _dates_of_json(script.text or "")
    for node in document.query_selector_all('[itemprop~="datePublished"], time[pubdate]')[:_MAX_SCRIPTS]:
        yield None if _is_of_another(node) else node.getattr("content") or node.getattr("datetime") or node.text


def _is_of_another(node: Any) -> bool:
    """Whether it stands in a review, say, of what the page is about."""
    for _ in range(_MAX_DEPTH):
        node = node.parent
        if node is None or isinstance(node, DocumentNode):
            return False
        if node.getattr("itemprop") in _OTHERS:
            return True
    return False


def _dates_of_json(text: str) -> Iterator[str]:
    """`datePublished`, wherever it stands in an object of JSON-LD, but in a review and the like."""
    try:
        waiting = [json.loads(text, strict=False)]  # with line feeds in texts
    except (ValueError, RecursionError):
        return
    for _ in range(_MAX_NODES):
        if not waiting:
            return
        one = waiting.pop(0)
        if isinstance(one, dict):
            if isinstance(date := one.get("datePublished"), str):
                yield date
            waiting += [value for key, value in one.items() if key not in _OTHERS]
        elif isinstance(one, list):
            waiting += one[:_MAX_NODES]
