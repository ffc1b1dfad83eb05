"""Rules and budgets of tasks for links, before the dupefilter notes them."""

from __future__ import annotations

from collections.abc import Callable

from scrapy import Request, Spider

from site_spider import meta_keys
from site_spider.frontier.scheduler import Pages
from site_spider.ledger import completion
from site_spider.ledger.completion import Job
from site_spider.page.url import host_of
from site_spider.tasks.states import TaskState
from site_spider.tasks.tasks import TaskGate


class TaskPages:
    """Fulfils `Pages` of frontier.dispatcher, over what compares pages."""

    def __init__(self, pages: Pages, gate: TaskGate, parked_topic: str, count: Callable[[str], None]) -> None:
        self._pages = pages
        self.begins = pages.begins
        self._gate = gate
        self._parked_topic = parked_topic
        self._count = count  # in Scrapy's statistics
        self._refused: Request | None = None

    def request_seen(self, request: Request) -> bool:
        """As in Pages; a link that its task does not want is as good as seen, and is not remembered."""
        job = completion.job_of(request)
        state = self._gate.states.of(job.seed.task_id) if job is not None and self._gate.is_needed else None
        if state is None or job is None:
            return self._pages.request_seen(request)
        host = host_of(request.url)
        if not self._is_wanted(state, request, job, host):
            self._refused = request
            return True
        if self._pages.request_seen(request):
            return True
        state.count_host(host)
        if state.phase.name == "paused":
            request.meta.setdefault(meta_keys.TO_TOPIC, self._parked_topic)
        return False

    def _is_wanted(self, state: TaskState, request: Request, job: Job, host: str) -> bool:
        if state.phase.is_over:
            state.count_cancelled_link()
        elif not state.rules.takes_link(request.url, job.depth) or not state.has_room_on(host):
            state.count_filtered_link()
        else:
            return True
        return False

    def log(self, request: Request, spider: Spider) -> None:
        """As in Pages."""
        if request is self._refused:
            self._refused = None
            self._count("tasks/links_filtered")
        else:
            self._pages.log(request, spider)

    def sort_seeds(self) -> None:
        """As in Pages. Some come from a look-up, so the gate looks twice."""
        self._gate.sort()
        self._pages.sort_seeds()
        self._gate.sort()
