"""Serves the parts of a crawl to objects that Scrapy constructs.

Scrapy makes these from the crawler alone. The wiring makes the parts they work with later, as the
spider opens, and provides them here. Everything else gets its parts by constructor.
"""

from __future__ import annotations

from typing import Final, TypeVar, cast

from scrapy.crawler import Crawler

T = TypeVar("T")
_PARTS: Final = "site_spider_parts"  # an attribute of the crawler: they are looked up five times a page


class _Purpose:
    takes_seeds = True


def take_no_seeds() -> None:
    """No crawl of this process takes seeds, whatever its spider: it only tries something out."""
    _Purpose.takes_seeds = False


def takes_seeds(crawler: Crawler) -> bool:
    """Whether a crawl takes seeds, commits and writes to sinks."""
    return _Purpose.takes_seeds and bool(getattr(crawler.spidercls, "takes_seeds", False))


def provide(crawler: Crawler, *parts: object) -> None:
    """Make parts known under their classes and the bases of these."""
    known: dict[type, object] = vars(crawler).setdefault(_PARTS, {})
    known.update({kind: part for part in parts for kind in type(part).__mro__})


def part_of(crawler: Crawler, kind: type[T]) -> T | None:
    """The part of this class; None before the spider has opened, and for a spider without seeds."""
    known: dict[type, object] | None = getattr(crawler, _PARTS, None)
    return None if known is None else cast("T | None", known.get(kind))
