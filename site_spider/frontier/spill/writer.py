"""Writes a request as the message of a seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from scrapy import Request, Spider

from site_spider import meta_keys
from site_spider.engine.guard import unguarded
from site_spider.errors import SeedError
from site_spider.frontier.sourced import KEY as SOURCE
from site_spider.frontier.sourced import source_name
from site_spider.ledger.completion import Job
from site_spider.ledger.ledger import Entry
from site_spider.page.url import host_of
from site_spider.seed import spilled
from site_spider.seed.seed import DIRECTIVES, parse_seed
from site_spider.seed.spilled import Spilled, signed

CookiesOf = Callable[[Request, Entry], dict[str, str]]

# Keys of Request.meta that mean nothing elsewhere, or that the message says in its own words.
_OF_LINKS = frozenset({
    "depth", meta_keys.JOB, meta_keys.COOKIEJAR, meta_keys.TO_TOPIC, meta_keys.LEAF, "link_text",
}) | DIRECTIVES  # fmt: skip
_OF_ATTEMPTS = _OF_LINKS | {
    meta_keys.DOWNLOAD_SLOT, "download_latency", "retry_times",
    "redirect_times", "redirect_ttl", "redirect_urls", "redirect_reasons",
}  # fmt: skip


class SeedWriter:
    """Knows what a seed can say of a request: what has something else of its own stays where it is."""

    def __init__(
        self,
        spider: Spider,
        cookies_of: CookiesOf,
        keys: Sequence[bytes] = (),
        add_headers: Callable[[Request, Job], None] | None = None,  # of its seed, to a link's
    ) -> None:
        self._add_headers = add_headers
        self._keys = keys  # the first signs
        self._spider = spider
        self._cookies_of = cookies_of
        names = getattr(spider, "seed_callbacks", ())
        self._callbacks = frozenset(names)
        self._names = {getattr(spider, name): name for name in names} | {None: None}
        self._errbacks = (None, getattr(spider, "failed", None))

    def write(self, request: Request, job: Job, *, is_link: bool) -> tuple[bytes | None, bytes] | None:
        """Key (the host) and value; None when a seed cannot say it all.

        A link is a job that nobody has asked for yet; anything else is an attempt that goes on elsewhere.
        """
        try:
            if not self._is_sayable(request, job, is_link=is_link):
                return None
            if self._add_headers is not None:
                self._add_headers(request, job)
            fields = self._fields(request, job, is_link=is_link)
            if self._keys:
                fields = signed(fields, self._keys[0])
            value = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
            if parse_seed(value, self._callbacks, self._keys).body != (request.body or None):
                return None
        except (SeedError, ValueError, TypeError, RecursionError):  # whatever JSON or a seed cannot hold
            return None
        return host_of(request.url).encode() or None, value

    def _is_sayable(self, request: Request, job: Job, *, is_link: bool) -> bool:
        meta = request.meta
        return (
            all(_is_known(key, is_link=is_link) for key in meta)
            and meta.get(meta_keys.COOKIEJAR, job.entry) is job.entry
            and meta.get(meta_keys.DOWNLOAD_SLOT, host_of(request.url)) == host_of(request.url)
            and unguarded(request.callback) in self._names
            and unguarded(request.errback) in self._errbacks
            and not (request.cb_kwargs or request.flags or request.cookies)
        )

    def _fields(self, request: Request, job: Job, *, is_link: bool) -> dict[str, Any]:
        name = self._names[unguarded(request.callback)]
        body = request.body.decode(request.encoding) if request.body else None
        said: dict[str, Any] = {
            "callback": None if name == "parse" else name,
            "_encoding": None if request.encoding == "utf-8" else request.encoding,
            "headers": _headers(request),
            "cookies": self._cookies_of(request, job.entry),
            "body": body,
            "dont_filter": request.dont_filter,
            spilled.HOPS: 0 if is_link else _hops(job),
        }
        return {
            "url": request.url,
            "method": request.method,
            "priority": request.priority,
            "meta": _meta(request, job, is_link=is_link),
            **{key: value for key, value in said.items() if value},
        }


def _is_known(key: str, *, is_link: bool) -> bool:
    return key in _OF_LINKS if is_link else key in _OF_ATTEMPTS or str(key).startswith(meta_keys.PREFIX)


def _headers(request: Request) -> dict[str, list[str]]:
    charset = request.encoding
    return {
        name.decode("ascii"): [value.decode(charset) for value in values]
        for name, values in request.headers.items()
        if name != b"Cookie"
    }


def _meta(request: Request, job: Job, *, is_link: bool) -> dict[str, Any]:
    root = job.root
    seed = root.seed
    said: dict[str, Any] = {
        "task_id": seed.task_id,
        **{key: request.meta[key] for key in DIRECTIVES & request.meta.keys()},
        "NotExtract": seed.not_extract or request.meta.get(meta_keys.LEAF) or None,
        SOURCE: source_name(seed),
    }
    if job.parent is None:
        said |= {"parent_url_id": seed.parent_url_id, "seed_url_id": seed.seed_url_id}
    else:
        said |= {"parent_url_id": job.parent.url_id, "seed_url_id": seed.seed_url_id or root.url_id}
    return {
        **seed.extra,
        "url_id": job.url_id,
        "depth": job.depth,
        **{key: value for key, value in said.items() if value is not None},
        spilled.KEY: _spilled(request, job, is_link=is_link).fields(),
    }


def _spilled(request: Request, job: Job, *, is_link: bool) -> Spilled:
    anchor_host = job.root.anchor_host
    if is_link:
        return Spilled(anchor_host=anchor_host)
    get = request.meta.get
    return Spilled(
        url=job.url,
        method=job.method,
        anchor_host=anchor_host,
        retry_times=get("retry_times", 0),
        retry_reasons=tuple(get(meta_keys.RETRY_REASONS, ())),
        redirect_times=get("redirect_times", 0),
        redirect_ttl=get("redirect_ttl"),
        redirect_urls=tuple(get("redirect_urls", ())),
        redirect_reasons=tuple(get("redirect_reasons", ())),
        unraised_priority=get(meta_keys.UNRAISED_PRIORITY),
    )


def _hops(job: Job) -> int:
    """Of one page; a seed refuses more than there may be, and then it stays."""
    before = job.root.seed.spilled if job is job.root else None
    return 0 if before is None else before.hops + 1
