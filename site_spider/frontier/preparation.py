"""What a request gets right before it is downloaded, and does without while it waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scrapy import Request

from site_spider import meta_keys
from site_spider.engine.cookies import use_jar_of
from site_spider.frontier.sourced import SeedHeaders, prepare
from site_spider.ledger.completion import Job
from site_spider.results.pipeline import Callbacks
from site_spider.sources.library import Library


class Preparation:
    """Headers and cookies of its source, cookies and meta of the seed, callback and errback."""

    def __init__(
        self,
        callbacks: Callbacks,
        seed_meta_keys: Sequence[str],
        library: Callable[[], Library],
        begins: Callable[[Request, Job], None],
        headers: SeedHeaders,
    ) -> None:
        self._headers = headers
        self._begins = begins  # is told of each request
        self._callbacks = callbacks
        self._library = library
        self._seed_meta_keys = seed_meta_keys

    def __call__(self, request: Request, job: Job) -> None:
        """For one of a seed's tree."""
        self._begins(request, job)
        self._headers.add(request, job)
        if library := self._library():
            prepare(library, request)
        use_jar_of(request, job.entry)
        request.meta.pop(meta_keys.ITEMS, None)  # of an earlier attempt
        if self._seed_meta_keys:
            extra = job.root.seed.extra
            for key in self._seed_meta_keys:
                if key in extra:
                    request.meta.setdefault(key, extra[key])
        self._callbacks.complete(request)
