"""Patterns of paths with many pages and few different texts: calendars, endless paths, session ids. Pure."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from site_spider.tasks.usage import Trap

_MOST_PATTERNS = 500  # of one task and process
_MOST_TEXTS = 200  # that are told apart, of one pattern
_LONGEST_TEXT = 4_000  # characters that are compared
_LONGEST_PATTERN = 200  # characters
_FEWEST_PAGES = 500
_SHARE = 0.02  # texts of pages: with fewer it is a trap
_NAMED = 10

_HEX = re.compile(r"\b(?=[0-9a-fA-F]*[0-9])(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}\b")
_DIGITS = re.compile(r"[0-9]+")
_REPEATED = re.compile(r"(/[^/]+)\1{2,}")
_WITHOUT_DIGITS = dict.fromkeys(map(ord, "0123456789"))


def pattern_of(url: str) -> str:
    """Host and path with N for digits, H for hexadecimal numbers and ... for what repeats."""
    parts = urlsplit(url)
    path = parts.path[: 4 * _LONGEST_PATTERN]
    text = _DIGITS.sub("N", _HEX.sub("H", path))
    return f"{parts.netloc}{_REPEATED.sub(_ellipsis, text)}"[:_LONGEST_PATTERN]


def _ellipsis(match: re.Match[str]) -> str:
    return f"{match[1]}/..."


def _stands_for_itself(pattern: str, url: str) -> bool:
    parts = urlsplit(url)
    return pattern == f"{parts.netloc}{parts.path}"[:_LONGEST_PATTERN]


def _is_trap(pages: int, texts: int) -> bool:
    """Texts beyond the most are not told apart, so with that many it is none."""
    return pages >= _FEWEST_PAGES and texts < _MOST_TEXTS and texts <= _SHARE * pages


class TrapReport:
    """Of one task in one process."""

    def __init__(self) -> None:
        self._texts: dict[str, set[int]] = {}
        self._pages: dict[str, int] = {}

    def add(self, url: str, text: str) -> None:
        """One more page. A pattern that comes when the report is full is not counted."""
        pattern = pattern_of(url)
        if _stands_for_itself(pattern, url):
            return  # what differs in its query alone, or is one page
        if pattern not in self._pages:
            if len(self._pages) >= _MOST_PATTERNS:
                self._forget_rare()
            self._pages[pattern], self._texts[pattern] = 0, set()
        self._pages[pattern] += 1
        texts = self._texts[pattern]
        if len(texts) < _MOST_TEXTS:
            texts.add(hash(text[:_LONGEST_TEXT].translate(_WITHOUT_DIGITS)))

    def traps(self) -> list[Trap]:
        """The worst, most pages first."""
        found = [
            Trap(pattern=pattern, pages=pages, texts=len(self._texts[pattern]))
            for pattern, pages in self._pages.items()
            if _is_trap(pages, len(self._texts[pattern]))
        ]
        return sorted(found, key=lambda trap: -trap.pages)[:_NAMED]

    def _forget_rare(self) -> None:
        """Half of the patterns, those with the fewest pages."""
        for pattern in sorted(self._pages, key=self._pages.__getitem__)[: _MOST_PATTERNS // 2]:
            del self._pages[pattern], self._texts[pattern]
