"""The seed queue (level 0): seeds that were polled and wait for their first request.

It stands for the whole seed log: it is created with the scheduler, never reclaimed, and
its length is 1 always, so it is asked whenever no lower level can serve.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scrapy import Request, Spider

from site_spider import meta_keys
from site_spider.contracts.seed_log import Message
from site_spider.engine.scrapy_parts import quick_request
from site_spider.errors import SeedError
from site_spider.ledger.completion import Job
from site_spider.ledger.ledger import SeedInFlight
from site_spider.page.url import check_url, is_safe
from site_spider.seed.fields import read_object
from site_spider.seed.seed import Seed
from site_spider.seed.spilled import Spilled
from site_spider.text import refused, shown


class SeedQueue:
    """Seeds in the order in which they were polled. `wake` has the engine ask for the next request."""

    def __init__(
        self, wake: Callable[[], None], make: OwnRequest | None = None, check: Callable[[Seed], Seed] | None = None
    ) -> None:
        self.wake = wake
        self.is_due = False  # something came since it was sorted
        self._make = make  # of the spider, for seeds without a URL
        self._check = check  # of what is in order, but cannot be done here; raises SeedError
        self._waiting: deque[SeedInFlight] = deque()

    def __len__(self) -> int:
        return 1

    def read(self, entry: SeedInFlight, seed: Seed) -> None:
        """It is in order. Raises SeedError when nothing can be requested for it."""
        seed = seed if self._check is None else self._check(seed)
        if self._make is None or seed.url:
            entry.reads(seed)
        else:
            entry.reads(*own_request(self._make, entry.message, seed))

    def push(self, waiting: SeedInFlight) -> None:
        self._waiting.append(waiting)
        self.is_due = True

    def look(self) -> None:
        """Seeds that were taken out are to be sorted and pushed again."""
        self.is_due = True
        self.wake()

    def begin_sorting(self) -> None:
        """What comes from here on is to be sorted once more."""
        self.is_due = False

    def let_begin(self, waiting: SeedInFlight) -> None:
        """One that was kept elsewhere may begin, unless its partition has left meanwhile."""
        if waiting.live:
            self.push(waiting)
            self.wake()

    def pop(self) -> SeedInFlight | None:
        """The next seed; None when none is here at the moment."""
        return self._waiting.popleft() if self._waiting else None

    def remove(self, unwanted: Callable[[SeedInFlight], bool]) -> list[SeedInFlight]:
        """Take out the seeds that `unwanted` picks."""
        removed: list[SeedInFlight] = []
        kept: deque[SeedInFlight] = deque()
        for waiting in self._waiting:
            (removed if unwanted(waiting) else kept).append(waiting)
        if removed:
            self._waiting = kept
        return removed


def seed_request(waiting: SeedInFlight, spider: Spider) -> tuple[Request, Job]:
    """The first request of a seed, and its job.

    Raises what Scrapy's Request raises for what it refuses: ValueError, TypeError.
    """
    seed = waiting.seed
    if waiting.request is not None:
        request = waiting.request.copy()
        return request, Job(request, waiting)
    request = quick_request(
        seed.url,
        verbatim=seed.encoding == "utf-8" and is_safe(seed.url),
        headers=_headers(seed) if seed.headers else None,
        callback=getattr(spider, seed.callback) if seed.callback else None,
        method=seed.method,
        body=seed.body,
        cookies=(_cookies(seed) or None) if seed.cookies or seed.headers else None,
        meta={"depth": seed.depth, **seed.directives, **(_attempts(seed.spilled) if seed.spilled else {})},
        encoding=seed.encoding,
        priority=seed.priority,
        dont_filter=seed.dont_filter,
    )
    return request, Job(request, waiting)


def _headers(seed: Seed) -> dict[str, Any] | None:
    headers: dict[str, list[str]] = {}
    for name, value in seed.headers:
        if name.lower() != "cookie":
            headers.setdefault(name, []).append(value)
    return headers or None


def _cookies(seed: Seed) -> dict[str, Any] | list[Any]:
    """The cookies of a seed, those of a Cookie header included, which Scrapy would drop; the field wins."""
    sent = [value for name, value in seed.headers if name.lower() == "cookie"]
    pairs = [pair.partition("=")[::2] for value in sent for pair in value.split(";") if "=" in pair]
    written = {name.strip(): value.strip() for name, value in pairs}
    if isinstance(seed.cookies, dict):
        return {**written, **seed.cookies}
    return [*({"name": name, "value": value} for name, value in written.items()), *seed.cookies]


def _attempts(spilled: Spilled) -> dict[str, Any]:
    """Its place in a list, and what Scrapy notes of the attempts that were made before, by another process."""
    meta: dict[str, Any] = {}
    number, run, before_ms = spilled.place
    if number > 1:
        meta[meta_keys.PAGE_NUMBER] = number
    if before_ms:
        meta[meta_keys.KNOWN_RUN] = run, before_ms
    if spilled.is_link:
        return meta
    if not (spilled.retry_times or spilled.redirect_times):  # of these the counts say it
        meta[meta_keys.GIVEN] = True
    if spilled.retry_times:
        meta |= {"retry_times": spilled.retry_times, meta_keys.RETRY_REASONS: list(spilled.retry_reasons)}
    if spilled.redirect_times:
        meta["redirect_times"] = spilled.redirect_times
        meta["redirect_urls"] = list(spilled.redirect_urls)
        meta["redirect_reasons"] = list(spilled.redirect_reasons)
    if spilled.redirect_ttl is not None:
        meta["redirect_ttl"] = spilled.redirect_ttl
    if spilled.unraised_priority is not None:
        meta[meta_keys.UNRAISED_PRIORITY] = spilled.unraised_priority
    return meta


# --- Requests that a spider makes of seeds itself: of a forum's number, say, instead of a URL ------------
# A spider that has `request_from_seed` gets each message that has `meta` and no `url`. The URL of its
# request is checked as that of a seed is, and the request passes the same guards as any other.

METHOD = "request_from_seed"


class SeedMessage(dict[str, Any]):
    """The fields of a message; the most wanted are attributes as well."""

    def __init__(self, fields: dict[str, Any], seed: Seed) -> None:
        super().__init__(fields)
        self.meta: dict[str, Any] = fields["meta"]
        self.url_id, self.task_id, self.depth = seed.url_id, seed.task_id, seed.depth


OwnRequest = Callable[[SeedMessage], Any]


def own_request(make: OwnRequest, message: Message, seed: Seed) -> tuple[Seed, Request]:
    """The seed with what its request says, and the request. Raises SeedError."""
    try:
        request = make(SeedMessage(read_object(message.value), seed))
    except Exception as error:
        raise SeedError(f"{METHOD} of the spider raised {error!r}") from error
    if not isinstance(request, Request):
        raise refused(METHOD, f"the spider gave {shown(request)}, but must give a Request")
    checked = check_url(request.url)
    if checked != request.url:
        request = request.replace(url=checked)
    request.meta.setdefault("depth", seed.depth)
    known = replace(
        seed,
        url=request.url,
        method=request.method,
        priority=request.priority or seed.priority,
        dont_filter=request.dont_filter or seed.dont_filter,
    )
    request.priority, request.dont_filter = known.priority, known.dont_filter
    return known, request
