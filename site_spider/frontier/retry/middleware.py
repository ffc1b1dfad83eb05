"""Scrapy's retry middleware, with retries that wait in the frontier and limits by reason.

Scrapy's own middleware decides what is retried (RETRY_TIMES, RETRY_HTTP_CODES,
RETRY_EXCEPTIONS); this one adds limits by reason and the moment, and keeps the reasons for the
final description. A host that says it is overloaded is left alone as a whole.
"""

from __future__ import annotations

import asyncio
from typing import Self

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.retry import get_retry_request
from scrapy.http import Response

from site_spider import meta_keys, options, runtime
from site_spider.engine.bases import RetryBase
from site_spider.engine.parts import part_of
from site_spider.frontier.retry.descriptions import name_of, name_of_class, retried_exceptions
from site_spider.frontier.retry.hosts import HostAnswers
from site_spider.frontier.retry.rules import may_retry, pause_seconds, read_limits, retry_after_seconds
from site_spider.results.failures import reason_of

_OVERLOADED = frozenset({429, 503})
_NO_LIMIT = 1_000_000
BACKOFFS_COUNTED = "backoff/"  # stands before the status of the answer in the statistics
RETRIES_COUNTED = "retry/by_reason/"  # stands before one of results.reasons.REASONS in the statistics


class PatientRetryMiddleware(RetryBase):
    """Gives each retry the moment before which it is not to be made."""

    first_seconds: float
    longest_seconds: float
    limits: dict[str, int]  # retries by reason

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """As Scrapy asks. Raises ConfigError."""
        middleware = super().from_crawler(crawler)
        settings = crawler.settings
        middleware.first_seconds = options.seconds(settings, "SITE_RETRY_PAUSE_SECONDS")
        middleware.longest_seconds = options.seconds(settings, "SITE_RETRY_LONGEST_PAUSE_SECONDS")
        names = {name_of_class(kind) for kind in retried_exceptions(settings)}
        middleware.limits = read_limits(settings, "SITE_RETRY_TIMES_BY_REASON", names)
        middleware.retry_http_codes |= {
            int(reason[5:]) for reason in middleware.limits if reason.startswith("HTTP ")
        }
        return middleware

    def process_response(  # type: ignore[override] # without the spider argument, which is on its way out
        self, request: Request, response: Response
    ) -> Request | Response:
        """As Scrapy's; a Retry-After header is kept to, and a host that is overloaded is left alone."""
        result = super().process_response(request, response)
        asked = self._asked_seconds(response)
        if isinstance(result, Request):
            self._pause(result, asked)
        self._tell_host(request, response.status, asked or 0.0)
        return result

    def process_exception(  # type: ignore[override] # likewise
        self, request: Request, exception: Exception
    ) -> Request | Response | None:
        """As Scrapy's."""
        result = super().process_exception(request, exception)
        if isinstance(result, Request):
            self._pause(result, None)
        return result

    def retry(self, request: Request, reason: str | Exception | type[Exception]) -> Request | None:
        """As Scrapy's, within the limits by reason."""
        said = f"HTTP {reason.split()[0]}" if isinstance(reason, str) else name_of(reason)
        earlier = request.meta.get(meta_keys.RETRY_REASONS, ())
        assert self.crawler.spider
        retry = get_retry_request(
            request,
            reason=reason,
            spider=self.crawler.spider,
            max_retry_times=_NO_LIMIT if self._may_retry(request, said, earlier) else 0,
            priority_adjust=request.meta.get("priority_adjust", self.priority_adjust),
            give_up_log_level=request.meta.get("give_up_log_level", self.give_up_log_level),
        )
        if retry is not None:
            retry.meta[meta_keys.RETRY_REASONS] = (*earlier, said)
            because = reason_of(said if isinstance(reason, str) else f"{said}: {reason}")
            self._count_as(f"{RETRIES_COUNTED}{because}")
        return retry

    def _count_as(self, key: str) -> None:
        assert self.crawler.stats is not None
        self.crawler.stats.inc_value(key)

    def _may_retry(self, request: Request, said: str, earlier: tuple[str, ...]) -> bool:
        retries, wanted = request.meta.get("retry_times", 0), request.meta.get("max_retry_times")
        if wanted is not None:  # by the seed or the spider, for this request
            return bool(retries < wanted)
        return may_retry(said, earlier, retries, self.max_retry_times, self.limits)

    def _asked_seconds(self, response: Response) -> float | None:
        value = response.headers.get("Retry-After") if response.headers else None
        if value is None:
            return None
        return retry_after_seconds(value.decode("latin-1"), runtime.time(), self.longest_seconds)

    def _pause(self, retry: Request, asked_seconds: float | None) -> None:
        jitter = runtime.random()  # spreads retries only
        attempt = retry.meta.get("retry_times", 1)
        pause = pause_seconds(attempt, self.first_seconds, self.longest_seconds, jitter)
        if asked_seconds is not None:
            pause = max(asked_seconds, min(pause, self.first_seconds))
        retry.meta[meta_keys.NOT_BEFORE] = asyncio.get_running_loop().time() + pause

    def _tell_host(self, request: Request, status: int, asked_seconds: float) -> None:
        hosts = part_of(self.crawler, HostAnswers)  # type: ignore[type-abstract]
        if hosts is None:
            return
        if status in _OVERLOADED:
            self._count_as(f"{BACKOFFS_COUNTED}{status}")
            hosts.host_overloaded(request, asked_seconds)
        elif status < 500:
            hosts.host_answered(request)
