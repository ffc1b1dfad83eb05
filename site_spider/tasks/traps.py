"""Traps: patterns of URLs of a host whose pages hardly differ, as a calendar's, or a path's that never ends.

They are found by the pages that were fetched, within what they are compared with others.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any, cast

from site_spider import runtime
from site_spider.bounded import BoundedDict
from site_spider.ledger.completion import Job, SeedListener
from site_spider.page.url import pattern_of, without_numbers

logger = logging.getLogger(__name__)

_PAGES = 50  # of a pattern that are looked at, the last ones
_SHARE = 10  # one in so many has to have a text of its own
_MOST_PATTERNS = 2_000  # of all hosts: about 10 MB
_SECONDS = 3_600.0  # then as many pages are fetched anew: a site may have been out of order
_FIRST = 10  # pages that are not looked at: most patterns have no more, and a look at one takes 5 % of its time
_REST = 2_000  # the same, after many had texts of their own
_LONGEST_BODY = 50_000  # characters, or of links; 20,000 take less than a millisecond
_MOST_SEARCHED = 200_000  # characters, for links alone
# A date is found by signs that are rare, as expressions that may begin with many take milliseconds a page.
_LINK, _IMAGE = (re.compile(rf"""{name}=(?:"[^"]*"|'[^']*'|[^\s>"']*)""") for name in ("href", "src"))
_NAMED = re.compile(
    r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?(?:\s+\d{1,2}(?:st|nd|rd|th)?\b)?(?:,?\s+\d{4})?"
    r"|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
)
_NUMBERS = re.compile(  # the zero stands for what was found by its name
    r"\d(?:\d{3}[-/]\d{1,2}(?:[-/]\d{1,2})?|\d?[-/.]\d{1,2}[-/.]\d{4}|\d?(?:st|nd|rd|th)?\.?\s+\0)"
)

# Within what pages are compared, a pattern, and whether they are pages of links: as a seed, a page of a calendar
# differs by its date from all others, so that a recrawl would end each trap.
_Place = tuple[str | None, str, bool]


class Traps(SeedListener):
    """On the event loop's thread only."""

    def __init__(self) -> None:
        # by pattern: of each page what its text is known by
        self._pages: BoundedDict[_Place, OrderedDict[int, int]] = BoundedDict(_MOST_PATTERNS)
        self._found: BoundedDict[_Place, float] = BoundedDict(_MOST_PATTERNS)  # when
        self._rest: BoundedDict[_Place, int] = BoundedDict(_MOST_PATTERNS)  # pages

    def written(self, job: Job, document: Mapping[str, Any]) -> None:
        said = document.get("text_hash") or document.get("body_hash")
        is_well = said is not None and 200 <= (document.get("status") or 0) < 300
        if not is_well or document.get("method") == "HEAD" or (pattern := pattern_of(job.url)) is None:
            return
        place = job.seed.page_scope, pattern, job.is_link
        pages = self._pages.get(place) or OrderedDict()
        if left := self._rest.get(place, 0 if pages else _FIRST):
            self._rest[place] = left - 1
            if left == 1:
                self._pages.pop(place, None)
            return
        self._pages[place] = pages  # it was met last
        pages[hash(job.url)] = hash(_content(document, is_link=job.is_link) or said)
        if len(pages) > _PAGES:
            pages.popitem(last=False)
        elif len(pages) < _PAGES:
            return
        self._judge(place, len(set(pages.values())))

    def _judge(self, place: _Place, texts: int) -> None:
        if texts * _SHARE >= _PAGES:
            self._found.pop(place, None)
            if texts * 2 > _PAGES:
                self._rest[place] = _REST
        elif place not in self._found:
            self._found[place] = runtime.monotonic()
            said = "Links like %s are not followed for %.0f s: its last %d pages have %d different texts"
            logger.info(said, place[1], _SECONDS, _PAGES, texts)

    def of(self, url: str, scope: str | None) -> str | None:
        """The pattern of the trap that a link would lead into."""
        if not self._found or (pattern := pattern_of(url)) is None:
            return None
        for place in ((scope, pattern, True), (scope, pattern, False)):
            if (found_at := self._found.get(place)) is None:
                continue
            if runtime.monotonic() - found_at < _SECONDS:
                return pattern
            for known in (self._found, self._pages):
                known.pop(place, None)
        return None


def _content(document: Mapping[str, Any], *, is_link: bool) -> Hashable:
    """A page's text and the forms of its links and images; without a text, its body without dates, and those of links.

    The text of a link has no dates either. None when that cannot be told, or costs too much: of a body that is long, or
    has no date, or is kept in part, any difference counts.
    """
    text_hash, text, body = map(document.get, ("text_hash", "text", "body"))
    if not isinstance(body, str) or not (text_hash or (is_link and len(body) <= _LONGEST_BODY)):
        return None
    if document.get("body_truncated") and len(body) < _MOST_SEARCHED:  # links behind that may differ
        return cast(Hashable, document.get("body_hash"))
    images = _IMAGE.findall(body, 0, _MOST_SEARCHED) if text_hash else []
    if not text_hash:
        text, dates = _undated(_LINK.sub("", body))
        if not dates:
            return None
    else:
        text = _undated(text)[0] if is_link and text and len(text) <= _LONGEST_BODY else text_hash
    found = _LINK.findall(body, 0, _MOST_SEARCHED) + images
    return text, frozenset(without_numbers("\n".join(found)[:_LONGEST_BODY]).split("\n"))


def _undated(text: str) -> tuple[str, int]:
    """And how many dates it had."""
    text, named = _NAMED.subn("\0", text)
    text, numbers = _NUMBERS.subn("", text)
    return text, named + numbers
