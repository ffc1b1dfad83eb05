"""Which source a request or page belongs to, and how the source's host is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scrapy import Request

from site_spider.frontier.host_queue import HostPolicy
from site_spider.ledger.completion import Job, job_of
from site_spider.page.url import host_of
from site_spider.seed.seed import Seed
from site_spider.sources.library import Library
from site_spider.sources.model import Source
from site_spider.text import refused, shown

KEY = "source"  # of a seed's meta
_MENTIONED = b'"source"'
_OF_ITS_OWN = ("content-", "if-", "range")  # of a seed's body, and of what somebody knows of its page
_SECRET = frozenset({"authorization", "cookie", "proxy-authorization"})


def source_name(seed: Seed) -> object:
    """What the seed names as its source, else its task; None when neither does."""
    named = seed.extra.get(KEY) if _MENTIONED in seed.extra_json else None
    return seed.task_source if named is None else named


def source_of(library: Library, job: Job | None, url: str) -> Source | None:
    """The one that the seed names, for all of its tree; else the one whose hosts and URLs fit."""
    name = None if job is None else source_name(job.root.seed)
    return library.named(name) if isinstance(name, str) else library.match(url, host_of(url))


def checked(seed: Seed, library: Library) -> Seed:
    """The seed. Raises SeedError when it names a source that there is not.

    Without sources no name counts, and what is no text is none: other producers have a `source` of their own.
    """
    name = source_name(seed) if library else None
    if isinstance(name, str) and library.named(name) is None:
        known = ", ".join(source.name for source in library)
        raise refused("meta.source", f"{shown(name)} is not the name of a source; known: {known}")
    return seed


def prepare(library: Library, request: Request) -> None:
    """Headers and cookies of its source, where the request has none of its own.

    Cookies are for the seed's own page: all requests of a seed share its cookies.
    """
    job = job_of(request)
    source = source_of(library, job, request.url)
    if source is None:
        return
    for name, value in source.request.headers.items():
        request.headers.setdefault(name, value)
    if source.request.cookies and job is not None and job is job.root:
        request.cookies = _cookies(source, request)


class SeedHeaders:
    """Headers of a seed that go with requests for its links: where a setting or the link's source says so."""

    def __init__(self, library: Callable[[], Library], *, everywhere: bool) -> None:
        self._library = library
        self._everywhere = everywhere

    def add(self, request: Request, job: Job) -> None:
        """To the first request for a link; what it has of its own stays. Secrets stay at its origin."""
        headers = job.root.seed.headers
        is_first = job is not job.root and not request.meta.get("redirect_times")
        if not (headers and is_first and self._wants(request, job)):
            return
        is_elsewhere = request.url.split("/", 3)[:3] != job.root.url.split("/", 3)[:3]
        values: dict[str, list[str]] = {}
        for name, value in headers:
            low = name.lower()
            if not (low.startswith(_OF_ITS_OWN) or (is_elsewhere and low in _SECRET)):
                values.setdefault(name, []).append(value)
        for name, all_values in values.items():
            request.headers.setdefault(name, all_values)

    def _wants(self, request: Request, job: Job) -> bool:
        if self._everywhere:
            return True
        library = self._library()
        source = source_of(library, job, request.url) if library else None
        return source is not None and bool(source.request.seed_headers)


def _cookies(source: Source, request: Request) -> list[Any]:
    """Those of the source are for the whole host."""
    own = request.cookies
    given = [{"name": name, "value": value} for name, value in own.items()] if isinstance(own, dict) else own
    known = {cookie.get("name") for cookie in given}
    wanted = source.request.cookies.items()
    return [{"name": name, "value": value, "path": "/"} for name, value in wanted if name not in known] + [
        *given
    ]


def policy_of(
    library: Callable[[], Library], own: dict[str, HostPolicy], usual: HostPolicy
) -> Callable[[str], HostPolicy]:
    """How often a host may be asked: by DOWNLOAD_SLOTS, else by its sources, else as all others."""

    def policy(host: str) -> HostPolicy:
        if host in own:
            return own[host]
        concurrency, delay_seconds = usual
        for source in reversed(library().of_host(host)):  # the nearest counts most
            wanted = source.request
            concurrency = concurrency if wanted.concurrency is None else wanted.concurrency
            delay_seconds = delay_seconds if wanted.delay is None else wanted.delay
        return HostPolicy(concurrency, delay_seconds)

    return policy


def robots_free(library: Callable[[], Library], *, by_default: bool) -> Callable[[str], bool]:
    """Whether robots.txt does not count for a URL: as its host's nearest source says, else as by default."""

    def is_free(url: str) -> bool:
        said = (source.request.robots for source in library().of_host(host_of(url)))
        return next((not robots for robots in said if robots is not None), by_default)

    return is_free
