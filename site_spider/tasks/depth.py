"""Scrapy's middleware for the depth, with the limits of tasks."""

from __future__ import annotations

from functools import cached_property

from scrapy import Request
from scrapy.http import Response

from site_spider.engine.scrapy_parts import part_of
from site_spider.frontier.scheduler import PageDepth
from site_spider.ledger.completion import job_of
from site_spider.tasks.states import TaskStates


class TaskDepth(PageDepth):
    """The depth of a declared task counts instead of DEPTH_LIMIT."""

    def get_processed_request(self, request: Request, response: Response | None) -> Request | None:
        """As Scrapy asks."""
        limit = self._limit(response)
        if not limit:
            return super().get_processed_request(request, response)
        usual, self.maxdepth = self.maxdepth, limit
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
        state = None if job is None else states.of(job.root.seed.task_id)
        return None if state is None else state.rules.depth
