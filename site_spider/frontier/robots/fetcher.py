"""Fetches robots.txt once for each origin and decides what a request may do.

The file is asked for past the frontier: it belongs to no seed, and no seed waits for its end.
It goes through the downloader as every request does, so the guard against private hosts, the
limits of time and size and the redirects count for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response
from scrapy.http.request import NO_CALLBACK
from scrapy.robotstxt import RobotParser
from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object

from site_spider import meta_keys, options, runtime
from site_spider.engine import hooks as engine_hooks
from site_spider.engine.background import Background
from site_spider.frontier.retry.descriptions import describe_exception, describe_status, retried_exceptions
from site_spider.frontier.robots.cache import Look, RobotsCache, RobotsLimits, State
from site_spider.frontier.robots.text import bounded
from site_spider.ledger import completion

logger = logging.getLogger(__name__)

_MOST_REDIRECTS = 5  # RFC 9309: then the file may be taken for unavailable
_LARGEST_DOWNLOAD_BYTES = 4 * 1024 * 1024
_THREAD_BYTES = 20_000  # from here on parsed in a thread
_TOO_MANY_REQUESTS = 429  # asks to be left alone, which "all is allowed" would not be
_LONGEST_AGE_SECONDS = 86_400.0  # RFC 9309


class Rules(NamedTuple):
    """What a robots.txt says; without a parser all is allowed."""

    parser: RobotParser | None
    longest_delay_seconds: float

    def allows(self, url: str, agent: str) -> bool:
        """Whether this user agent may fetch this URL; yes, when the parser cannot tell."""
        try:
            return self.parser is None or self.parser.allowed(url, agent)
        except Exception:
            logger.exception("%s was not checked against robots.txt", url)
            return True

    def delay_seconds(self, agent: str) -> float:
        """The Crawl-delay, up to the longest that is kept to; 0 when the parser cannot tell."""
        try:
            asked = None if self.parser is None else self.parser.crawl_delay(agent)
        except Exception:
            logger.exception("A Crawl-delay could not be read")
            return 0.0
        return min(asked or 0.0, self.longest_delay_seconds)


class Robots:
    """Of one crawl. On the event loop's thread only."""

    def __init__(
        self,
        crawler: Crawler,
        limits: RobotsLimits,
        longest_delay_seconds: float,
        is_free: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._is_free = is_free
        self._crawler = crawler
        self._cache: RobotsCache[Rules] = RobotsCache(limits)
        self._all_allowed = Rules(None, longest_delay_seconds)
        self._parser: type[RobotParser] = load_object(crawler.settings["ROBOTSTXT_PARSER"])
        self._own_agent: str | None = crawler.settings["ROBOTSTXT_USER_AGENT"]
        self._usual_agent: str = crawler.settings["USER_AGENT"]
        self._passing = retried_exceptions(crawler.settings)
        self._loop = asyncio.get_running_loop()
        self._then: dict[str, list[Callable[[], None]]] = {}  # by origin: whom to tell
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting = 0  # fetches that the downloader does not know of yet

    @classmethod
    def from_crawler(cls, crawler: Crawler, is_free: Callable[[str], bool] = lambda _: False) -> Self | None:
        """None where robots.txt is not obeyed; `is_free` says for which URLs not. Raises ConfigError."""
        settings = crawler.settings
        if not options.boolean(settings, "ROBOTSTXT_OBEY"):
            return None
        longest = options.seconds(settings, "SITE_CRAWL_DELAY_MAX_SECONDS")
        return cls(crawler, _limits(settings), longest, is_free)

    def is_subject(self, request: Request) -> bool:
        """Whether robots.txt counts for a request."""
        return is_subject(request) and not self._is_free(request.url)

    def counts_for(self, url: str) -> bool:
        """The same for what is no request yet."""
        return not self._is_free(url)

    def look(self, url: str) -> Look[Rules]:
        """What is known for this URL now."""
        return self._cache.look(_origin_of(url), self._loop.time())

    def allows(self, request: Request, rules: Rules) -> bool:
        """Whether a request may be made by these rules."""
        return rules.allows(request.url, self.agent(request))

    def agent(self, request: Request | None = None) -> str:
        """The user agent that a request goes by; without one the usual."""
        own = None if request is None else request.headers.get("User-Agent")
        return self._own_agent or (own.decode("latin-1") if own else self._usual_agent)

    def has_place(self) -> bool:
        """Whether one more download fits into CONCURRENT_REQUESTS."""
        return engine_hooks.free_places(self._crawler.engine) > self._starting

    def fetch(self, url: str, then: Callable[[], None]) -> None:
        """Fetch the robots.txt of an origin that is unknown, and call."""
        origin = _origin_of(url)
        self._cache.begin(origin)
        self._then[origin] = [then]
        self._starting += 1
        task = Background.of(self._crawler).start(self._fetch(origin), f"{origin}/robots.txt")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def tell(self, url: str, then: Callable[[], None]) -> None:
        """Call when the fetching of an origin that is pending has ended."""
        self._then.setdefault(_origin_of(url), []).append(then)

    async def learn(self, url: str) -> Look[Rules]:
        """What is known for this URL once it is known; for requests that the frontier did not see."""
        look = self.look(url)
        if look.state in (State.UNKNOWN, State.PENDING):
            known = self._loop.create_future()
            begin = self.fetch if look.state is State.UNKNOWN else self.tell
            begin(url, partial(_resolve, known))
            await known
            look = self.look(url)
        return look

    def close(self) -> None:
        """Fetch nothing any more."""
        for task in self._tasks:
            task.cancel()

    async def _fetch(self, origin: str) -> None:
        completion.work_on(None)
        self._starting -= 1
        self._count("request_count")
        request = Request(
            f"{origin}/robots.txt",
            callback=NO_CALLBACK,
            meta={
                meta_keys.DONT_OBEY_ROBOTSTXT: True,
                meta_keys.FOR_ROBOTS: True,
                "dont_retry": True,
                "dont_merge_cookies": True,
                "redirect_ttl": _MOST_REDIRECTS,
                "download_maxsize": _LARGEST_DOWNLOAD_BYTES,
            },
        )
        try:
            await self._answered(origin, await self._crawler.engine.download_async(request))
        except IgnoreRequest:  # too many redirects, or a middleware that wants none of it
            self._found(origin, self._all_allowed, 0)
        except Exception as error:  # noqa: BLE001 - whatever it is, the file is not there
            self._count(f"exception_count/{type(error)}")
            self._failed(
                origin, describe_exception(error, request), may_pass=isinstance(error, self._passing)
            )
        finally:
            for then in self._then.pop(origin, ()):
                then()

    async def _answered(self, origin: str, response: Response) -> None:
        self._count("response_count")
        self._count(f"response_status_count/{response.status}")
        if response.status >= 500 or response.status == _TOO_MANY_REQUESTS:
            self._failed(origin, describe_status(response.status) or "", may_pass=True)
        elif 200 <= response.status < 300:
            await self._parse(origin, bounded(response.body), response.request)
        else:
            self._found(origin, self._all_allowed, 0)

    async def _parse(self, origin: str, body: bytes, request: Request | None) -> None:
        parse = partial(self._parser.from_crawler, self._crawler, body)
        try:
            parser = parse() if len(body) < _THREAD_BYTES else await asyncio.to_thread(parse)
        except Exception:
            logger.exception("%s/robots.txt cannot be parsed; all is allowed", origin)
            self._found(origin, self._all_allowed, 0)
            return
        self._found(origin, self._all_allowed._replace(parser=parser), len(body))
        self._crawler.signals.send_catch_log(signals.robots_parsed, robotparser=parser, request=request)

    def _found(self, origin: str, rules: Rules, size_bytes: int) -> None:
        self._cache.found(origin, rules, size_bytes, self._loop.time())

    def _failed(self, origin: str, reason: str, *, may_pass: bool) -> None:
        logger.debug("%s/robots.txt could not be fetched: %s", origin, reason)
        jitter = runtime.random()  # spreads attempts only
        self._cache.failed(origin, reason, self._loop.time(), jitter, may_pass=may_pass)

    def _count(self, key: str) -> None:
        assert self._crawler.stats is not None
        self._crawler.stats.inc_value(f"robotstxt/{key}")


def unreachable(reason: str) -> str:
    """Why a request is dropped when its robots.txt cannot be fetched."""
    return f"robots.txt could not be fetched: {reason}"


def is_subject(request: Request) -> bool:
    """Whether robots.txt counts for a request."""
    return not request.meta.get(meta_keys.DONT_OBEY_ROBOTSTXT) and request.url.startswith("http")


def _origin_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}"


def _limits(settings: BaseSettings) -> RobotsLimits:
    return RobotsLimits(
        count=options.integer(settings, "SITE_ROBOTS_CACHE", minimum=1),
        age_seconds=options.seconds(
            settings, "SITE_ROBOTS_MAX_AGE_SECONDS", minimum=1, maximum=_LONGEST_AGE_SECONDS
        ),
        wait_seconds=options.seconds(settings, "SITE_ROBOTS_WAIT_SECONDS"),
        first_pause_seconds=options.seconds(settings, "SITE_RETRY_PAUSE_SECONDS"),
        longest_pause_seconds=options.seconds(settings, "SITE_RETRY_LONGEST_PAUSE_SECONDS"),
    )


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
