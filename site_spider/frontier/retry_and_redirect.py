"""Retries and redirects: whether, when and how often a download is tried again.

It never waits itself: a retry waits in the frontier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Self

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.redirect import RedirectMiddleware
from scrapy.downloadermiddlewares.retry import get_retry_request
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response
from scrapy.utils.httpobj import urlparse_cached

from site_spider import meta_keys, options, runtime
from site_spider.engine.scrapy_parts import RetryBase, count, part_of
from site_spider.errors import ConfigError, SeedError
from site_spider.frontier.backoff import pause_seconds, retry_after_seconds
from site_spider.frontier.politeness import PoliteFrontier
from site_spider.options import SettingsView
from site_spider.page.url import check_url
from site_spider.results.failures import name_of, reason_of

# --- Whether and when a request is retried: limits by reason, growing pauses, Retry-After ----------------

_MOST_RETRIES = 100


def read_limits(settings: SettingsView, name: str, exceptions: Collection[str]) -> dict[str, int]:
    """A JSON object from reasons (statuses, or some of `exceptions`) to retries; `HTTP 503` for 503.

    Raises ConfigError.
    """
    limits = {}
    for given, value in options.mapping(settings, name).items():
        key = str(given)
        is_status = key.isascii() and key.isdigit() and 100 <= int(key) <= 599
        if not is_status and key not in exceptions:
            raise ConfigError(
                f"{name} has the key {key!r}, but a reason is a status from 100 to 599 or one of: "
                f"{', '.join(sorted(exceptions))}."
            )
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_RETRIES:
            raise ConfigError(
                f"{name} has {value!r} for {key}, but must have a whole number from 0 to {_MOST_RETRIES}."
            )
        limits[f"HTTP {key}" if is_status else key] = value
    return limits


# --- middleware: Scrapy's retry middleware, with retries that wait in the frontier and limits by reason --
# Scrapy's own middleware decides what is retried (RETRY_TIMES, RETRY_HTTP_CODES, RETRY_EXCEPTIONS); this
# one adds limits by reason and the moment, and keeps the reasons for the final description. A host that
# says it is overloaded is left alone as a whole.

_OVERLOADED = frozenset({429, 503})
_NO_LIMIT = 1_000_000
BACKOFFS_COUNTED = "backoff/"  # stands before the status of the answer in the statistics
RETRIES_COUNTED = "retry/by_reason/"  # stands before one of results.failures.REASONS in the statistics


class PatientRetryMiddleware(RetryBase):
    """Gives each retry the moment before which it is not to be made."""

    first_seconds: float
    longest_seconds: float
    limits: dict[str, int]  # retries by reason

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Raises ConfigError."""
        middleware = super().from_crawler(crawler)
        settings = crawler.settings
        middleware.first_seconds = options.seconds(settings, "SITE_RETRY_PAUSE_SECONDS")
        middleware.longest_seconds = options.seconds(settings, "SITE_RETRY_LONGEST_PAUSE_SECONDS")
        names = {name_of(kind) for kind in middleware.exceptions_to_retry}
        middleware.limits = read_limits(settings, "SITE_RETRY_TIMES_BY_REASON", names)
        middleware.retry_http_codes |= {int(reason[5:]) for reason in middleware.limits if reason.startswith("HTTP ")}
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
            count(self.crawler, f"{RETRIES_COUNTED}{because}")
        return retry

    def _may_retry(self, request: Request, said: str, earlier: tuple[str, ...]) -> bool:
        """A reason that has a limit of its own counts by itself; for the others all retries count."""
        retries, wanted = request.meta.get("retry_times", 0), request.meta.get("max_retry_times")
        if wanted is not None:  # by the seed or the spider, for this request
            return bool(retries < wanted)
        own = self.limits.get(said)
        return bool(retries < self.max_retry_times) if own is None else earlier.count(said) < own

    def _asked_seconds(self, response: Response) -> float | None:
        headers = response.headers
        value = headers.get("Retry-After") if headers else None
        if value is None:
            return None
        date = headers.get("Date") or b""
        texts = value.decode("latin-1"), date.decode("latin-1")
        return retry_after_seconds(*texts, runtime.time(), self.longest_seconds)

    def _pause(self, retry: Request, asked_seconds: float | None) -> None:
        jitter = runtime.random()  # spreads retries only
        attempt = retry.meta.get("retry_times", 1)
        pause = pause_seconds(attempt, self.first_seconds, self.longest_seconds, jitter)
        if asked_seconds is not None:
            pause = max(asked_seconds, min(pause, self.first_seconds))
        retry.meta[meta_keys.NOT_BEFORE] = asyncio.get_running_loop().time() + pause

    def _tell_host(self, request: Request, status: int, asked_seconds: float) -> None:
        hosts = part_of(self.crawler, PoliteFrontier)
        if hosts is None:
            return
        if status in _OVERLOADED:
            count(self.crawler, f"{BACKOFFS_COUNTED}{status}")
            hosts.host_overloaded(request, asked_seconds)
        elif status < 500:
            hosts.host_answered(request)


# --- Scrapy's redirect middleware, which leaves a redirect to an invalid URL as it is and says why -------

REDIRECTS_COUNTED = "redirects/"  # stands before what became of a redirect in the statistics


class CheckedRedirectMiddleware(RedirectMiddleware):
    """Follows a redirect only to a URL that a seed could have, and the spider does not refuse."""

    def process_response(  # type: ignore[override] # without the spider argument, which is on its way out
        self, request: Request, response: Response
    ) -> Request | Response:
        """As Scrapy's. A target that is no valid URL leaves the response as it is."""
        try:
            result = super().process_response(request, response)
            if isinstance(result, Request):
                self._check(result)
                # Scrapy copies it with the meta: the new host would be visited at the old one's pace
                if result.meta.get(meta_keys.DOWNLOAD_SLOT) == urlparse_cached(request).hostname:
                    del result.meta[meta_keys.DOWNLOAD_SLOT]
                count(self.crawler, f"{REDIRECTS_COUNTED}followed")
        except IgnoreRequest:
            count(self.crawler, f"{REDIRECTS_COUNTED}too_many")
            raise
        except (SeedError, ValueError) as error:
            count(self.crawler, f"{REDIRECTS_COUNTED}invalid")
            reason = error.reason if isinstance(error, SeedError) else "the Location is no valid URL"
            request.meta[meta_keys.NOT_FOLLOWED] = reason
            return response
        return result

    def _check(self, redirected: Request) -> None:
        """Raises SeedError."""
        check_url(redirected.url)
        leads_out = getattr(self.crawler.spider, "leads_out", None)
        if leads_out is not None and leads_out(redirected):
            raise SeedError("it leads a sitemap out of the link scope")
