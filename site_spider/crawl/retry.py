"""Retries that wait: in the frontier, not in the downloader, and not all at once.

Scrapy's own middleware decides what is retried and how often (RETRY_TIMES, RETRY_HTTP_CODES,
RETRY_EXCEPTIONS); this one adds when, and keeps the reasons for the final description.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Self

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.retry import RetryMiddleware
from scrapy.http import Response

from site_spider.core import options
from site_spider.core.retry import pause_seconds, retry_after_seconds

NOT_BEFORE = "site_not_before"  # key in Request.meta: event-loop time
REASONS = "site_retry_reasons"  # likewise: why each earlier attempt failed
_BACK_OFF_STATUSES = frozenset({429, 503})


class PatientRetryMiddleware(RetryMiddleware):
    """Gives each retry the moment before which it is not to be made."""

    first_seconds: float
    longest_seconds: float

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """As Scrapy asks. Raises ConfigError."""
        middleware = super().from_crawler(crawler)
        middleware.first_seconds = options.seconds(crawler.settings, "SITE_RETRY_PAUSE_SECONDS")
        middleware.longest_seconds = options.seconds(crawler.settings, "SITE_RETRY_LONGEST_PAUSE_SECONDS")
        return middleware

    def process_response(  # type: ignore[override] # without the spider argument, which is on its way out
        self, request: Request, response: Response
    ) -> Request | Response:
        """As Scrapy's; a Retry-After header is kept to, and a host that is overloaded is left alone."""
        result = super().process_response(request, response)
        if isinstance(result, Request):
            asked = self._asked_seconds(response)
            pause = self._pause(result, asked)
            if response.status in _BACK_OFF_STATUSES:
                self._hold_host(request, pause)
        return result

    def process_exception(  # type: ignore[override] # likewise
        self, request: Request, exception: Exception
    ) -> Request | Response | None:
        """As Scrapy's."""
        result = super().process_exception(request, exception)
        if isinstance(result, Request):
            self._pause(result, None)
        return result

    def _retry(self, request: Request, reason: str | Exception | type[Exception]) -> Request | None:
        retry = super()._retry(request, reason)
        if retry is not None:
            said = reason if isinstance(reason, str) else type(reason).__name__
            retry.meta[REASONS] = [*request.meta.get(REASONS, ()), said]
        return retry

    def _asked_seconds(self, response: Response) -> float | None:
        value = response.headers.get("Retry-After") if response.headers else None
        if value is None:
            return None
        return retry_after_seconds(value.decode("latin-1"), time.time(), self.longest_seconds)

    def _pause(self, retry: Request, asked_seconds: float | None) -> float:
        jitter = random.random()  # noqa: S311 - spreads retries only
        attempt = retry.meta.get("retry_times", 1)
        pause = pause_seconds(attempt, self.first_seconds, self.longest_seconds, jitter)
        if asked_seconds is not None:
            pause = max(asked_seconds, min(pause, self.first_seconds))
        retry.meta[NOT_BEFORE] = asyncio.get_running_loop().time() + pause
        return pause

    def _hold_host(self, request: Request, seconds: float) -> None:
        from site_spider.crawl.assembly import SeedService  # noqa: PLC0415 - the service imports this module

        service = SeedService.of(self.crawler)
        if service is not None and service.room is not None:
            service.room.hold_host(request, seconds, "back-off")
