"""Requests that a spider makes of seeds itself: of a forum's number, say, instead of a URL.

A spider that has `request_from_seed` gets each message that has `meta` and no `url`. The URL of its request
is checked as that of a seed is, and the request passes the same guards as any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scrapy import Request, Spider

from site_spider.contracts.seed_log import Message
from site_spider.errors import SeedError
from site_spider.page.url import check_url
from site_spider.seed.fields import read_object
from site_spider.seed.seed import Seed
from site_spider.text import refused, shown

METHOD = "request_from_seed"


class SeedMessage(dict[str, Any]):
    """The fields of a message; the most wanted are attributes as well."""

    def __init__(self, fields: dict[str, Any], seed: Seed) -> None:
        super().__init__(fields)
        self.meta: dict[str, Any] = fields["meta"]
        self.url_id, self.task_id, self.depth = seed.url_id, seed.task_id, seed.depth


class OwnRequests:
    """Of one spider. On the event loop's thread only."""

    def __init__(self, spider: Spider) -> None:
        self._make: Callable[[SeedMessage], Any] | None = getattr(spider, METHOD, None)

    @property
    def are_made(self) -> bool:
        """Whether the spider makes any."""
        return self._make is not None

    def request(self, message: Message, seed: Seed) -> tuple[Seed, Request | None]:
        """The seed with what its request says, and the request; None for a seed with a URL.

        Raises SeedError.
        """
        if seed.url or self._make is None:
            return seed, None
        try:
            request = self._make(SeedMessage(read_object(message.value), seed))
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
