"""What settings and tasks say of the dupefilter, and what this process knows of a store outside it.

Theory of operation. Scrapy asks for one request at a time and cannot wait. So questions and
answers go round it: before requests are handed to the scheduler, `unknown` picks those that
nothing is known of here, somebody asks the store, and `learn` takes in what it knows. From
then on `in` answers at once. What the store does not know needs no note: it counts as new.

Marks (`add`) wait here until somebody has carried them off: `take` hands out a batch, and
`written` says that the store has it. At any moment a mark is pending, under way, or known.

Both sides are bounded. What falls out is asked for again, or fetched again: never lost.

The store's calls wait, so each runs on a thread. There is one question and one batch of marks under way at
a time; what is asked meanwhile goes together in the next question. Both are repeated until they succeed.
`close` waits for what is under way before it asks the store for more.

An outage slows first and never drops. Who asks waits for the answer, up to `wait_seconds` from the
beginning of the outage; after that there are no answers until the store is back, and what only the store
knows is fetched once more. Marks wait in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, Self, TypeVar

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.http import Response
from scrapy.settings import BaseSettings

from site_spider import options, runtime
from site_spider.bounded import BoundedDict
from site_spider.contracts.done_store import DoneStore, DoneUnavailable
from site_spider.engine.background import Background
from site_spider.engine.scrapy_parts import load_class, takes_seeds
from site_spider.errors import ConfigError
from site_spider.outage import Outage, until_there
from site_spider.page.url import UrlForm, form_of

logger = logging.getLogger(__name__)

T = TypeVar("T")
Count = Callable[[str, int], None]
_MEMORY = "memory"

_MARKS_LIMIT = 1_000_000  # that wait for a store that is away: about 150 MB
_RETRY_SECONDS = 0.5
_ANSWER_SECONDS = 0.2  # that a store which is there may take, though nobody is to wait for one that is away
_WRITE_SECONDS = 0.5  # the longest that a mark waits, when all is well
_BATCH = 5000  # marks in one go
_CLOSE_SECONDS = 3.0  # for the last marks; the stop has more to do


class DoneCourier:
    """Fulfils dupefilter.filters.Done for a store that is elsewhere. On the event loop's thread only.

    `known_limit` and `marks_limit` count fingerprints; what the store said counts for its `cache_seconds` of
    the clock `now`.
    """

    def __init__(
        self,
        store: DoneStore,
        wait_seconds: float,
        count: Count,
        background: Background,
        *,
        known_limit: int,
        now: Callable[[], float],
        marks_limit: int = _MARKS_LIMIT,
    ) -> None:
        self.store = store
        self._wait_seconds = wait_seconds
        self._count = count
        self._background = background
        self._marks_limit = marks_limit
        self._now = now
        self._known: BoundedDict[bytes, float] = BoundedDict(known_limit)  # until when
        self._pending: OrderedDict[bytes, None] = OrderedDict()
        self._under_way: dict[bytes, None] = {}
        self._dropped = 0  # marks that found no room
        self._threads = runtime.ThreadPoolExecutor(2, thread_name_prefix="dupefilter")  # to ask, and to write
        self._questions: dict[bytes, None] = {}
        self._answer: asyncio.Future[None] | None = None  # to those
        self._asking: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        who = f"The store of the dupefilter ({store.name})"
        self._reads = Outage(logger, f"{who} gives no answers", f"{who} answers again")
        self._writes = Outage(logger, f"{who} takes no marks", f"{who} takes marks again")

    @property
    def waiting(self) -> int:
        """Marks that the store has not taken."""
        return len(self._pending) + len(self._under_way)

    def __contains__(self, fingerprint: bytes, /) -> bool:
        """Whether it is known here to be done."""
        until = self._known.get(fingerprint)
        if until is not None and until > self._now():
            return True
        return fingerprint in self._pending or fingerprint in self._under_way

    def add(self, fingerprint: bytes, /) -> None:
        """It is done: a mark for the store."""
        self._pending[fingerprint] = None
        if len(self._pending) > self._marks_limit:
            self._pending.popitem(last=False)
            self._dropped += 1

    def unknown(self, fingerprints: Iterable[bytes]) -> list[bytes]:
        """Those of them that the store has to be asked for, each once."""
        return [fingerprint for fingerprint in dict.fromkeys(fingerprints) if fingerprint not in self]

    def learn(self, fingerprints: Iterable[bytes]) -> None:
        until = self._now() + self.store.cache_seconds
        for fingerprint in fingerprints:
            self._known[fingerprint] = until

    def take(self, limit: int) -> list[bytes]:
        """The next marks for the store, at most `limit`; the same ones until they are written."""
        while self._pending and len(self._under_way) < limit:
            fingerprint, _ = self._pending.popitem(last=False)
            self._under_way[fingerprint] = None
        return list(self._under_way)

    def written(self) -> None:
        """The store has what `take` handed out."""
        self._count("dupefilter/marks_written", len(self._under_way))
        if self._dropped:
            self._count("dupefilter/marks_dropped", self._dropped)
        self.learn(self._under_way)
        self._under_way, self._dropped = {}, 0

    # --- the store ------------------------------------------------------------------------

    async def open(self, wait_seconds: float) -> None:
        """Open the store, waiting up to `wait_seconds` for one that is away. Raises DoneUnavailable."""
        await until_there(lambda: self._on_a_thread(self.store.open), DoneUnavailable, wait_seconds, self._reads)
        self._writing = self._background.start(self._write(), "marks for the dupefilter")

    async def ask(self, fingerprints: Collection[bytes]) -> None:
        """Returns when what the store knows of them is known here, or when it is away for too long."""
        unknown = self.unknown(fingerprints)
        if not unknown:
            return
        self._count("dupefilter/asked", len(unknown))
        seconds = self._wait_seconds
        left_seconds = seconds - self._reads.seconds() if self._reads.is_on else max(seconds, _ANSWER_SECONDS)
        if left_seconds > 0:
            answer = self._ask_for(unknown)
            await asyncio.wait([answer], timeout=left_seconds)
            if answer.done():
                return
        self._count("dupefilter/unanswered", len(unknown))

    async def close(self) -> None:
        """Write the marks that wait, as far as the store takes them now. Never raises."""
        self._closing.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)
        under_way = [task for task in (self._asking, self._writing) if task is not None]
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await asyncio.gather(*under_way, return_exceptions=True)
                while batch := self.take(_BATCH):
                    await self._on_a_thread(self.store.add, batch)
                    self.written()
                await self._on_a_thread(self.store.close)
        except TimeoutError:
            self._say_left("no time is left")
        except Exception as error:  # noqa: BLE001 - the crawl has ended well all the same
            self._say_left(error)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ask_for(self, unknown: Sequence[bytes]) -> asyncio.Future[None]:
        self._questions.update(dict.fromkeys(unknown))
        if self._answer is None:
            self._answer = asyncio.get_running_loop().create_future()
        if self._asking is None or self._asking.done():
            self._asking = self._background.start(self._ask(), "questions to the dupefilter")
        return self._answer

    async def _ask(self) -> None:
        while self._answer is not None and not self._closing.is_set():
            answer, questions = self._answer, list(self._questions)
            self._answer, self._questions = None, {}
            try:
                for known in await self._insist(self._reads, self.store.known, questions):
                    self.learn(known)
                    self._count("dupefilter/known_elsewhere", len(known))
            finally:
                if not answer.done():
                    answer.set_result(None)

    async def _write(self) -> None:
        while not self._closing.is_set():
            while batch := self.take(_BATCH):
                if not await self._insist(self._writes, self.store.add, batch):
                    return
                self.written()
            await self._pause(_WRITE_SECONDS)

    def _say_left(self, reason: object) -> None:
        if self.waiting:
            what = "%d marks did not reach the store of the dupefilter; those pages may be fetched again: %s"
            logger.warning(what, self.waiting, reason)

    async def _insist(
        self, outage: Outage, call: Callable[[Sequence[bytes]], T], fingerprints: Sequence[bytes]
    ) -> list[T]:
        """Call until it succeeds, and give its answer; nothing at the end of the crawl."""
        while True:
            with outage.tried(Exception):  # a mistake in a store must not lose anything either
                return [await self._on_a_thread(call, fingerprints)]
            await self._pause(_RETRY_SECONDS)
            if self._closing.is_set():
                return []

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    async def _on_a_thread(self, call: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)


class TaskForms(NamedTuple):
    """What tasks say of the form of URLs that links are compared in."""

    of: Callable[[str | None, UrlForm | None], UrlForm | None]  # a task's own, or the usual one


def usual_form(settings: BaseSettings) -> UrlForm | None:
    """What links are compared as where their task does not say. Raises ConfigError."""
    name = "SITE_DROP_PARAMS"
    try:
        return form_of(options.names(settings, name))
    except ValueError as error:
        raise ConfigError(f"{name} {error}. Write tracking, none, or names with commas between.") from None


def store_class(settings: BaseSettings) -> type[Any] | None:
    """What SITE_DUPEFILTER names; None for Scrapy's own memory. Raises ConfigError."""
    name = options.text(settings, "SITE_DUPEFILTER")
    if name == _MEMORY:
        return None
    classes = options.mapping(settings, "SITE_DUPEFILTER_CLASSES")
    if name not in classes and "." not in name:
        raise ConfigError(
            f"SITE_DUPEFILTER is {name!r}, but must be {', '.join([_MEMORY, *classes])}, or the dotted path of a class."
        )
    loaded: type[Any] = load_class("SITE_DUPEFILTER", classes.get(name, name))
    return loaded


def is_elsewhere(settings: BaseSettings) -> bool:
    """Whether the store of SITE_DUPEFILTER has to be asked in advance. Raises ConfigError."""
    store = store_class(settings)
    return store is not None and issubclass(store, DoneStore)


# --- lookup: looks the links of a page up in advance, for a store outside the process --------------------
# A spider middleware, so that it works for every callback. It is the last before the engine, so that only
# what the others let pass is looked up. What does not come this way (the output of errbacks) is compared
# with what this process knows, and at worst fetched once more.

_HELD_LIMIT = 500  # requests held back at most: a page seldom has more links


class SeenLookup:
    """Works with any DUPEFILTER_CLASS that has a coroutine method `prefetch(requests)`."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        if not takes_seeds(crawler) or not is_elsewhere(crawler.settings):
            raise NotConfigured
        return cls(crawler)

    async def process_spider_output(
        self,
        response: Response,  # noqa: ARG002 - as Scrapy calls it
        result: AsyncIterator[Any],
    ) -> AsyncIterator[Any]:
        """Items pass at once, requests in batches."""
        held: list[Request] = []
        try:
            async for output in result:
                if not isinstance(output, Request):
                    yield output
                    continue
                held.append(output)
                if len(held) >= _HELD_LIMIT:
                    requests, held = held, []
                    for request in await self._looked_up(requests):
                        yield request
        except Exception:
            # what the callback had yielded before it failed counts, as everywhere in Scrapy
            for request in await self._looked_up(held):
                yield request
            raise
        for request in await self._looked_up(held):
            yield request

    async def _looked_up(self, requests: list[Request]) -> list[Request]:
        prefetch = getattr(getattr(self._crawler.engine.scheduler, "df", None), "prefetch", None)
        try:
            if prefetch is not None and requests:
                await prefetch(requests)
        except Exception:  # the requests go on all the same
            logger.exception("Links could not be looked up in the dupefilter")
        return requests
