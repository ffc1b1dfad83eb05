"""What waits in the frontier: a seed, a link or a request, each in the form that takes least memory."""

from __future__ import annotations

from typing import Protocol
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.utils.httpobj import urlparse_cached

from site_spider import meta_keys
from site_spider.frontier.waiting_link import WaitingLink
from site_spider.intake.seed_queue import Waiting
from site_spider.ledger import completion
from site_spider.ledger.ledger import Entry
from site_spider.page.url import host_of, plain_url

Waiter = Request | Waiting | WaitingLink


class Builder(Protocol):
    """Makes requests of what waits in another form."""

    def build_seed(self, waiting: Waiting) -> Request | None:
        """None when there can be none, and the seed is dealt with."""

    def build_link(self, link: WaitingLink) -> Request | None:
        """Its job begins; None likewise."""


def seed_entry(waiter: Waiter) -> Entry | None:
    """The seed that it waits for; None when there is none."""
    if isinstance(waiter, Waiting):
        return waiter.entry
    job = waiter.parent if isinstance(waiter, WaitingLink) else completion.job_of(waiter)
    return None if job is None else job.entry


def built(waiter: Waiter, builder: Builder) -> Request | None:
    """The request that waits, made if it waits in another form; None when there can be none."""
    if isinstance(waiter, Waiting):
        return builder.build_seed(waiter)
    return builder.build_link(waiter) if isinstance(waiter, WaitingLink) else waiter


def host_name(waiter: Waiter) -> str:
    """What politeness goes by, of whatever waits."""
    if isinstance(waiter, Waiting):
        return host_of(waiter.seed.url)
    if not isinstance(waiter, WaitingLink):
        return host_key(waiter)
    plain = plain_url(waiter.url)
    return plain.host if plain else urlsplit(waiter.url).hostname or ""


def is_fenced(waiter: Waiter) -> bool:
    """Whether the seed that it waits for is another process's now."""
    entry = seed_entry(waiter)
    return entry is not None and not entry.live


def host_key(request: Request) -> str:
    """What politeness goes by: the host, or the download slot that a request names."""
    slot = request.meta.get(meta_keys.DOWNLOAD_SLOT)
    if isinstance(slot, str):
        return slot
    plain = plain_url(request.url)
    return plain.host if plain else urlparse_cached(request).hostname or ""
