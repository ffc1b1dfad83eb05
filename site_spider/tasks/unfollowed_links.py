"""Links that are not followed, before the dupefilter notes them: by rules for URLs, out of traps, by tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.spidermiddlewares.depth import DepthMiddleware

from site_spider import meta_keys
from site_spider.engine.scrapy_parts import part_of
from site_spider.frontier.scheduler import Pages
from site_spider.ledger.completion import Job, job_of
from site_spider.page.sitemap import is_listing
from site_spider.page.url import host_of
from site_spider.sources.url_rules import UrlRules
from site_spider.tasks.admission import TaskAdmission, asks_robots, takes_request
from site_spider.tasks.budgets import TaskState, TaskStates
from site_spider.tasks.declaration import TaskRules
from site_spider.tasks.traps import Traps

_MOST_RULES = 500  # that are counted by name


@dataclass
class WantedPages:
    """Fulfils `Pages` of frontier.scheduler, over what compares pages. What is refused is not remembered."""

    _pages: Pages
    _rules: Callable[[], UrlRules]
    _traps: Traps
    _gate: TaskAdmission
    _trapped: Callable[[Job, str], None]
    _parked_topic: str
    _count: Callable[[str], None]  # in Scrapy's statistics
    _named: set[str] = field(default_factory=set)
    _refused: Request | None = None

    def __post_init__(self) -> None:
        self.begins = self._pages.begins

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
