"""A link that waits, as a small tuple from which its Request is built later.

A page has more links than its crawl can fetch at once, so most of what waits is links, and
nearly all of them are plain: found by the spider, without a callback of their own. They wait
as tuples at a fraction of a Request's size. Everything else waits as the Request that it is.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from scrapy import Request

from site_spider import meta_keys
from site_spider.engine.requests import quick_request
from site_spider.ledger.completion import Job

_REFERER = "Referer"
_META = frozenset({"depth", meta_keys.JOB})
_ENCODING = "utf-8"


class WaitingLink(NamedTuple):
    """Holds its seed as a request does; its job begins with its request."""

    url: str
    parent: Job
    depth: int
    priority: int
    referer: str | None


def as_link(request: Request, job: Job) -> WaitingLink | None:
    """A request that has just begun its job, as a tuple; None when it has something of its own."""
    if (
        job.parent is None
        or request.callback is not None
        or request.errback is not None
        or request.body
        or request.method != "GET"
        or request.dont_filter
        or request.encoding != _ENCODING
        or type(request) is not Request
        or request.meta.keys() != _META
        or request.cookies
        or request.flags
        or request.cb_kwargs
    ):
        return None
    headers = request.headers
    values = headers.getlist(_REFERER)
    if len(values) != len(headers) or not all(value.isascii() for value in values):
        return None
    # interned: all links of a page have the same
    referer = sys.intern(values[0].decode()) if values else None
    return WaitingLink(request.url, job.parent, job.depth, request.priority, referer)


def as_request(link: WaitingLink) -> tuple[Request, Job]:
    """The request of a link, with a job of its own in its meta."""
    request = quick_request(
        link.url,
        verbatim=True,  # it stood in a Request already
        headers=None if link.referer is None else {_REFERER: link.referer},
        meta={"depth": link.depth},
        priority=link.priority,
    )
    job = Job(request, link.parent)
    request.meta[meta_keys.JOB] = job
    return request, job
