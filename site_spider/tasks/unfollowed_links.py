"""Links that are not followed, before the dupefilter notes them: by rules for URLs, out of traps, by tasks.

A trap is a pattern of URLs of a host whose pages hardly differ: a calendar, a path that never ends. It is
found by the pages that were fetched, within what they are compared with others.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from typing import Any

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.spidermiddlewares.depth import DepthMiddleware

from site_spider import meta_keys, runtime
from site_spider.bounded import BoundedDict
from site_spider.engine.scrapy_parts import part_of
from site_spider.frontier.scheduler import Pages
from site_spider.ledger.completion import Job, SeedListener, job_of
from site_spider.page.sitemap import is_listing
from site_spider.page.url import host_of, pattern_of, without_numbers
from site_spider.sources.url_rules import UrlRules
from site_spider.tasks.admission import TaskAdmission, asks_robots, takes_request
from site_spider.tasks.budgets import TaskState, TaskStates
from site_spider.tasks.declaration import TaskRules

logger = logging.getLogger(__name__)

_PAGES = 50  # of a pattern that are looked at, the last ones
_SHARE = 10  # one in so many has to have a text of its own
_MOST_PATTERNS = 2_000  # of all hosts: about 10 MB
_SECONDS = 3_600.0  # then as many pages are fetched anew: a site may have been out of order
_MOST_RULES = 500  # that are counted by name
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

_Place = tuple[str | None, str]  # within what pages are compared, and a pattern


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
        place = job.seed.page_scope, pattern
        pages = self._pages.get(place) or OrderedDict()
        if left := self._rest.get(place, 0 if pages else _FIRST):
            self._rest[place] = left - 1
            if left == 1:
                self._pages.pop(place, None)
            return
        is_link = job.parent is not None or job.seed.spilled is not None
        self._pages[place] = pages  # it was met last
        pages[hash(job.url)] = hash(_content(document, is_link=is_link) or said)
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
        found_at = self._found.get((scope, pattern))
        if found_at is not None and runtime.monotonic() - found_at >= _SECONDS:
            for known in (self._found, self._pages):
                known.pop((scope, pattern), None)
            return None
        return None if found_at is None else pattern


def _content(document: Mapping[str, Any], *, is_link: bool) -> Hashable:
    """A page's text and the forms of its links and images; without a text, its body without dates, and those of links.

    The text of a link has no dates either. None when that cannot be told, or costs too much: of a body that is long, or
    has no date, any difference counts.
    """
    text_hash, text, body = map(document.get, ("text_hash", "text", "body"))
    if not isinstance(body, str) or not (text_hash or (is_link and len(body) <= _LONGEST_BODY)):
        return None
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


class WantedPages:
    """Fulfils `Pages` of frontier.scheduler, over what compares pages. What is refused is not remembered."""

    def __init__(
        self,
        pages: Pages,
        rules: Callable[[], UrlRules],
        traps: Traps,
        gate: TaskAdmission,
        trapped: Callable[[Job, str], None],
        parked_topic: str,
        count: Callable[[str], None],
    ) -> None:
        self._pages = pages
        self.begins = pages.begins
        self._rules = rules
        self._traps = traps
        self._gate = gate
        self._trapped = trapped
        self._parked_topic = parked_topic
        self._count = count  # in Scrapy's statistics
        self._named: set[str] = set()
        self._refused: Request | None = None

    def request_seen(self, request: Request) -> bool:
        """As in Pages; a link that is refused is as good as seen."""
        job = job_of(request)
        if job is None:
            return self._pages.request_seen(request)
        state = None if job.seed.task_id is None else self._gate.states.of(job.seed.task_id)
        if state is not None and not self._is_wanted(state, request, job):
            self._count("tasks/links_filtered")
            self._refused = request
            return True
        if job.parent is not None and self._refuses(request, job):
            self._refused = request
            return True
        if self._pages.request_seen(request):
            return True
        if state is not None:
            if not asks_robots(request):
                state.count_host(host_of(request.url))
            if state.phase.name == "paused":
                request.meta.setdefault(meta_keys.TO_TOPIC, self._parked_topic)
        return False

    def _is_wanted(self, state: TaskState, request: Request, job: Job) -> bool:
        if state.phase.is_over:
            state.count("links_cancelled")
        elif not (takes_request(state.rules, request, job) and state.has_room_on(host_of(request.url))):
            state.count_filtered_link()
        else:
            return True
        return False

    def _refuses(self, request: Request, job: Job) -> bool:
        listed = request.meta.get(meta_keys.SITEMAP) or {}
        if listed.get("robots"):  # asked for by ourselves
            return False
        trap = None
        rule = self._rules().refusal(request.url, needs_allow=not is_listing(listed))  # pages alone need it
        if rule is None:
            if (trap := self._traps.of(request.url, job.seed.page_scope)) is None:
                return False
            rule = "trap"
            self._trapped(job, trap)
        if len(self._named) < _MOST_RULES:
            self._named.add(rule)
        self._count("links/refused")
        self._count(f"links/refused/{rule if rule in self._named else 'other'}")
        if (state := self._gate.states.of(job.seed.task_id)) is not None:
            state.count_filtered_link(trap)
        return True

    def log(self, request: Request, spider: Spider) -> None:
        """As in Pages; what is refused is counted already."""
        if request is self._refused:
            self._refused = None
        else:
            self._pages.log(request, spider)

    def sort_seeds(self) -> None:
        """As in Pages. Some come from a look-up, so the gate looks twice."""
        if self._gate.tasks:
            self._gate.sort()
        self._pages.sort_seeds()
        if self._gate.tasks:
            self._gate.sort()


def rules_of(crawler: Crawler, job: Job) -> TaskRules | None:
    """Those of the task of a job, if that is declared."""
    states = part_of(crawler, TaskStates)
    state = states.of(job.seed.task_id) if states else None
    return None if state is None else state.rules


# --- depth -----------------------------------------------------------------------------------------------
# Scrapy's middleware for the depth, with the limits of tasks, and one depth for the pages of a list.


class TaskDepth(DepthMiddleware):
    """The depth of a declared task counts instead of DEPTH_LIMIT.

    A list of 50 pages, and files of sitemaps, would else end at it; the source's own limit counts for them.
    """

    def get_processed_request(self, request: Request, response: Response | None) -> Request | None:
        """As Scrapy asks; for the next page the depth of this one."""
        if response is not None and (
            request.meta.pop(meta_keys.SAME_DEPTH, False)
            or request.meta.get(meta_keys.PAGE_NUMBER, 1) > response.meta.get(meta_keys.PAGE_NUMBER, 1)
        ):
            request.meta["depth"] = response.meta["depth"]
            return request
        usual, self.maxdepth = self.maxdepth, self._limit(response) or self.maxdepth
        try:
            return super().get_processed_request(request, response)
        finally:
            self.maxdepth = usual

    @cached_property
    def _states(self) -> TaskStates | None:
        return part_of(self.crawler, TaskStates)

    def _limit(self, response: Response | None) -> int | None:
        states = self._states
        if not states or response is None or response.request is None:
            return None
        job = job_of(response.request)
        state = None if job is None else states.of(job.seed.task_id)
        return None if state is None else state.rules.depth
