"""What of a task may begin, and which links are followed at all."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from scrapy import Request, Spider

from site_spider import meta_keys, runtime
from site_spider.bounded import BoundedDict
from site_spider.engine.background import Background, Turns
from site_spider.frontier.scheduler import Pages, Queues
from site_spider.frontier.waiter import Waiter, WaitingLink, is_fenced, source_name
from site_spider.ledger.completion import ATTEMPTS, Job, SeedListener, job_of
from site_spider.ledger.ledger import SeedInFlight
from site_spider.page.sitemap import is_listing
from site_spider.page.url import host_of, pattern_of, without_numbers
from site_spider.seed.seed import Seed
from site_spider.sources.url_rules import UrlRules
from site_spider.tasks.board import Board
from site_spider.tasks.declaration import TaskRules
from site_spider.tasks.parking import Leaving
from site_spider.tasks.states import TaskState, TaskStates

logger = logging.getLogger(__name__)

# --- gate ------------------------------------------------------------------------------------------------
# Lets begin what its task allows; everything else is parked, cancelled or filtered, in its order.
#
# Theory. What waits is looked at where it enters the frontier (`sort`), where its turn comes (`takes`), and
# all of it when the phase or the rules of its task change (`changed`). What is not to begin joins one line,
# which a task of the event loop works off; what a change finds in the frontier is older and goes first.


class TaskAdmission:
    """On the event loop's thread only."""

    def __init__(self, states: TaskStates, queues: Queues, leaving: Leaving, background: Background) -> None:
        self.states = states
        self._states_by_id = states.by_id
        self._queues = queues
        self._leaving = leaving
        self._background = background
        self._line: deque[Waiter] = deque()
        self._kept: dict[str, deque[Waiter]] = {}  # by task, until its claim of pages is read back
        self._sweeps: set[str] = set()  # tasks of which all that waits is to be looked at
        self._work: asyncio.Task[None] | None = None

    # --- what comes ---------------------------------------------------------------------------------

    def sort(self) -> None:
        """Take out of the seed queue what is not to begin."""
        if self._states_by_id and (taken := self._queues.seeds.remove(self._is_unwelcome)):
            self._line.extend(taken)
            self._work_soon()

    def takes(self, waiter: Waiter) -> bool:
        """Whether what was popped is not to begin here; it is this object's then."""
        if not self._states_by_id or (state := self.states.of(_task_id(waiter))) is None:
            return False
        if isinstance(waiter, Request) and meta_keys.STAYS in waiter.meta:
            return False
        if state.phase.name == "running":
            if state.left > 0 or not _is_counted(waiter):
                return False
            self._claim(state)
        if state.phase.name == "running":
            self._kept.setdefault(state.task.task_id, deque()).append(waiter)
        else:
            self._line.append(waiter)
            self._work_soon()
        return True

    def begins(self, request: Request, job: Job) -> None:
        """A request is given out."""
        if not self._states_by_id or (state := self.states.of(job.seed.task_id)) is None:
            return
        if not _is_counted(request):
            return
        state.count("begun")
        if job.parent is None and job.seed.spilled is None:
            state.count_host(host_of(request.url))
        self._claim(state)

    def changed(self, task_ids: Collection[str]) -> None:
        """The phase or the rules of these tasks are others."""
        self._sweeps |= set(task_ids)
        self.heard()
        self._work_soon()

    def heard(self) -> None:
        """Claims were read back: so many may begin of what waits for one, or none."""
        for task_id, kept in list(self._kept.items()):
            state = self.states.of(task_id)
            is_running = state is not None and state.phase.name == "running"
            for _ in range(min(len(kept), state.left) if state is not None and is_running else len(kept)):
                self._line.append(kept.popleft())
            if not kept:
                del self._kept[task_id]
        if self._line:
            self._work_soon()

    def _claim(self, state: TaskState) -> None:
        """Of the budget of pages, in time; when it is spent, the task pauses at once."""
        if state.claim_more():
            self.states.tell_soon()
        if state.left <= 0 and state.look(self.states.board):
            self.changed({state.task.task_id})

    def _is_unwelcome(self, waiting: SeedInFlight) -> bool:
        state = self.states.of(waiting.seed.task_id)
        return state is not None and (state.phase.name != "running" or not state.rules.takes(waiting.seed))

    # --- what leaves ----------------------------------------------------------------------------------

    def _work_soon(self) -> None:
        if self._work is None or self._work.done():
            self._work = self._background.start(self._work_off(), "tasks")

    async def _work_off(self) -> None:
        turns = Turns.of_running_loop()
        while self._sweeps or self._line:
            if self._sweeps:
                await self._sweep(turns)
                continue
            self._deal(self._line.popleft())
            if not turns.has_time():
                await turns.time()
        self._queues.room.wake()

    async def _sweep(self, turns: Turns) -> None:
        swept, self._sweeps = self._sweeps, set()
        for found in self._queues.take_out(lambda waiter: self._has_to_leave(waiter, swept)):
            for waiter in found:
                self._deal(waiter)
                if not turns.has_time():
                    await turns.time()

    def _has_to_leave(self, waiter: Waiter, swept: Collection[str]) -> bool:
        task_id = _task_id(waiter)
        if task_id not in swept or (state := self.states.of(task_id)) is None:
            return False
        if isinstance(waiter, Request) and meta_keys.STAYS in waiter.meta:
            return False
        return state.phase.name != "running" or not _is_allowed(state, waiter)

    def _deal(self, waiter: Waiter) -> None:
        if is_fenced(waiter):
            self._queues.room.drop(waiter)
            return
        task_id = _task_id(waiter)
        state = self.states.of(task_id)
        if isinstance(waiter, SeedInFlight):
            self.states.adopt(waiter, waiter.seed, waiter.message.headers)
        if state is None:
            self._queues.room.put_back(waiter)
        elif state.phase.name == "paused":
            self._leaving.park(waiter, state)
        elif state.phase.is_over:
            self._leaving.cancel(waiter, state)
        elif not _is_allowed(state, waiter):
            self._leaving.filter(waiter, state)
        else:
            self._queues.room.put_back(waiter)


def _task_id(waiter: Waiter) -> str | None:
    if isinstance(waiter, SeedInFlight):
        return waiter.seed.task_id
    job = waiter.parent if isinstance(waiter, WaitingLink) else job_of(waiter)
    return None if job is None else job.seed.task_id


def _is_first_attempt(waiter: Waiter) -> bool:
    if isinstance(waiter, SeedInFlight):
        return waiter.seed.spilled is None or waiter.seed.spilled.is_link
    if isinstance(waiter, WaitingLink):
        return True
    return not any(map(waiter.meta.get, ATTEMPTS))


def _is_counted(waiter: Waiter) -> bool:
    """Whether it spends the budget of pages."""
    return _is_first_attempt(waiter) and not _asks_robots(waiter)


def _asks_robots(waiter: Waiter) -> bool:
    """Whether it fetches a robots.txt for its sitemaps, for the first time or as it was spilled."""
    if isinstance(waiter, WaitingLink):
        return False
    listed = None if isinstance(waiter, SeedInFlight) else waiter.meta.get(meta_keys.SITEMAP)
    if listed is None:
        job = job_of(waiter) if isinstance(waiter, Request) else None
        seed = waiter.seed if isinstance(waiter, SeedInFlight) else job.seed if job and job.parent is None else None
        is_spilled = seed is not None and seed.spilled is not None and b'"robots"' in seed.extra_json
        listed = seed.extra.get("sitemap") if seed is not None and is_spilled else None
    return isinstance(listed, dict) and listed.get("robots") is True


def _is_allowed(state: TaskState, waiter: Waiter) -> bool:
    if isinstance(waiter, SeedInFlight):
        return state.rules.takes(waiter.seed)
    if isinstance(waiter, WaitingLink):
        return state.rules.takes_link(waiter.url, waiter.depth)
    job = job_of(waiter)
    if job is None or job.parent is None or not _is_first_attempt(waiter):
        return True  # it has begun
    return takes_request(state.rules, waiter, job)


def takes_request(rules: TaskRules, request: Request, job: Job) -> bool:
    """Whether the rules of a task take the request of a link."""
    return rules.takes_link(request.url, job.depth, partial(request.meta.get, meta_keys.SITEMAP))


def with_source(seed: Seed, board: Board) -> Seed:
    """The seed, with the source of its task where it names none itself. Any thread may ask."""
    if not board.tasks:
        return seed
    task = board.task(seed.task_id)
    if task is None or task.source is None or source_name(seed) is not None:
        return seed
    return replace(seed, task_source=task.source)


# --- links -----------------------------------------------------------------------------------------------
# Links that are not followed, before the dupefilter notes them: by rules for URLs, out of traps, by tasks.
#
# A trap is a pattern of URLs of a host whose pages hardly differ: a calendar, a path that never ends. It is
# found by the pages that were fetched, within what they are compared with others.

_PAGES = 50  # of a pattern that are looked at, the last ones
_SHARE = 10  # one in so many has to have a text of its own
_MOST_PATTERNS = 2_000  # of all hosts: about 10 MB
_SECONDS = 3_600.0  # then as many pages are fetched anew: a site may have been out of order
_MOST_RULES = 500  # that are counted by name
_REST = 2_000  # pages that are not looked at after many had texts of their own
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
        """As in SeedListener."""
        said = document.get("text_hash") or document.get("body_hash")
        is_well = said is not None and 200 <= (document.get("status") or 0) < 300
        if not is_well or document.get("method") == "HEAD" or (pattern := pattern_of(job.url)) is None:
            return
        place = job.seed.page_scope, pattern
        if left := self._rest.get(place, 0):
            self._rest[place] = left - 1
            if left == 1:
                self._pages.pop(place, None)
            return
        is_link = job.parent is not None or job.seed.spilled is not None
        self._pages[place] = pages = self._pages.get(place) or OrderedDict()  # it was met last
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
            if not _asks_robots(request):
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
        self._gate.states.refused(job.seed.task_id, trap)
        return True

    def log(self, request: Request, spider: Spider) -> None:
        """As in Pages; what is refused is counted already."""
        if request is self._refused:
            self._refused = None
        else:
            self._pages.log(request, spider)

    def sort_seeds(self) -> None:
        """As in Pages. Some come from a look-up, so the gate looks twice."""
        self._gate.sort()
        self._pages.sort_seeds()
        self._gate.sort()
