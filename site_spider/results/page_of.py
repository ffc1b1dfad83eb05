"""What is known of a page besides its response: the seed it belongs to, and where it stands in its tree."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from scrapy import Request
from scrapy.http import Response

from site_spider.ledger.completion import Job, job_of
from site_spider.page.url import url_id

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class SeedPage(NamedTuple):
    """A page of a crawl; `meta` holds the fields of the seed's meta that are data."""

    url: str  # as asked for
    url_id: str  # the `_id` of its result
    task_id: str | None = None
    depth: int = 0  # hops from the seed
    parent_url_id: str | None = None  # the page it was found on
    seed_url_id: str | None = None  # the seed that it descends from; None for a seed's own page
    meta: Mapping[str, Any] = _NOTHING

    @property
    def parent(self) -> str | None:
        """The same as `parent_url_id`."""
        return self.parent_url_id


def page_of(response: Response | Request) -> SeedPage:
    """What is known of a response, or of a request. One that descends from no seed has its URL alone."""
    request = response if isinstance(response, Request) else response.request
    job = None if request is None else job_of(request)
    if job is not None:
        return page_of_job(job)
    url = response.url if request is None else request.url
    depth = 0 if request is None else request.meta.get("depth", 0)
    return SeedPage(url, url_id(url), depth=depth)


def page_of_job(job: Job) -> SeedPage:
    """The page whose document a job writes."""
    root = job.root
    seed = root.seed
    is_seed = job is root
    return SeedPage(
        url=job.url,
        url_id=job.url_id,
        task_id=seed.task_id,
        depth=job.depth,
        parent_url_id=seed.parent_url_id if job.parent is None else job.parent.url_id,
        seed_url_id=seed.seed_url_id if is_seed else seed.seed_url_id or root.url_id,
        meta=seed.extra,
    )
