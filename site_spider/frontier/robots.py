"""robots.txt: fetched once for each origin, cached, and obeyed.

It owns the cache of rules and the requests that fetch them. It never counts such a request as part of a
seed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response
from scrapy.http.request import NO_CALLBACK
from scrapy.robotstxt import RobotParser
from scrapy.utils.misc import load_object

from site_spider import meta_keys, options, runtime
from site_spider.engine import flow as engine_hooks
from site_spider.engine.background import Background
from site_spider.engine.scrapy_parts import count, part_of
from site_spider.frontier.backoff import pause_seconds
from site_spider.frontier.frontier import Frontier
from site_spider.ledger import completion
from site_spider.results.document import describe_status
from site_spider.results.failures import describe_exception

# --- The cache of robots.txt rules, and what they allow (RFC 9309) ---------------------------------------
# Theory of operation. An origin (scheme, host, port) is
#
# - *unknown*: its robots.txt has to be fetched, once, however many requests ask;
# - *pending*: that is under way;
# - *known*: there are rules. They are used for `age_seconds`, and beyond that for as long as
#   the file cannot be fetched anew;
# - *later*: the file could not be fetched and there are no rules; it is tried again after a
#   pause, which doubles;
# - *unreachable*: that has gone on for `wait_seconds`, or waiting cannot help. All is forbidden
#   until the next attempt succeeds.
#
# The origins asked for least recently are forgotten first, beyond a count and a size. Time comes in as an
# argument.

R = TypeVar("R")

_LEAST_PAUSE_SECONDS = 1.0


class State(Enum):
    """Of one origin; see the theory of operation."""

    UNKNOWN = auto()
    PENDING = auto()
    KNOWN = auto()
    LATER = auto()
    UNREACHABLE = auto()


class Look(NamedTuple, Generic[R]):
    """What is known of an origin now."""

    state: State
    rules: R | None = None  # when KNOWN
    until: float = 0.0  # when LATER: the moment of the next attempt
    reason: str = ""  # when LATER or UNREACHABLE: why the file could not be fetched


@dataclass(slots=True)
class _Origin(Generic[R]):
    rules: R | None = None
    size_bytes: int = 0
    is_pending: bool = False
    moment: float = 0.0  # of the next attempt
    attempts: int = 0  # that failed since the last success
    failing_since: float = 0.0
    gave_up: bool = False
    reason: str = ""


@dataclass(eq=False)
class RobotsCache(Generic[R]):
    """The origins; `R` is what rules are. Settings say how long these count, and how long requests wait for them."""

    _most: int  # that are kept
    _age_seconds: float
    _wait_seconds: float
    _first_pause_seconds: float
    _longest_pause_seconds: float
    _most_bytes: int = 100_000_000  # of what is parsed of them
    _origins: OrderedDict[str, _Origin[R]] = field(default_factory=OrderedDict)
    _size_bytes: int = 0

    def look(self, name: str, now: float) -> Look[R]:
        """What is known of an origin; on UNKNOWN the caller fetches, and says so with `begin`."""
        origin = self._origins.get(name)
        if origin is None:
            return Look(State.UNKNOWN)
        self._origins.move_to_end(name)
        if origin.is_pending:
            return Look(State.PENDING)
        if now >= origin.moment:
            return Look(State.UNKNOWN)
        if origin.rules is not None:
            return Look(State.KNOWN, origin.rules)
        if origin.gave_up:
            return Look(State.UNREACHABLE, reason=origin.reason)
        return Look(State.LATER, until=origin.moment, reason=origin.reason)

    def begin(self, name: str) -> None:
        """The file is being fetched."""
        origin = self._origins.setdefault(name, _Origin())
        origin.is_pending = True

    def found(self, name: str, rules: R, size_bytes: int, now: float) -> None:
        """The file was fetched, or there is none; the rules replace what was known."""
        origin = self._ended(name)
        self._size_bytes += size_bytes - origin.size_bytes
        origin.rules, origin.size_bytes = rules, size_bytes
        origin.moment = now + self._age_seconds
        origin.attempts, origin.gave_up = 0, False
        self._shrink(name)

    def failed(self, name: str, reason: str, now: float, jitter: float, *, may_pass: bool) -> None:
        """The file could not be fetched; `may_pass` when another attempt may find it."""
        origin = self._ended(name)
        if not origin.attempts:
            origin.failing_since = now
        origin.attempts += 1
        origin.reason = reason
        pause = pause_seconds(origin.attempts, self._first_pause_seconds, self._longest_pause_seconds, jitter)
        last = origin.failing_since + self._wait_seconds
        origin.gave_up = not may_pass or now >= last
        if origin.gave_up or not pause:  # else what waits would ask again before it is told
            pause = max(pause, _LEAST_PAUSE_SECONDS)
        origin.moment = now + pause if origin.gave_up or origin.rules is not None else min(now + pause, last)
        self._shrink(name)

    def _ended(self, name: str) -> _Origin[R]:
        origin = self._origins.setdefault(name, _Origin())
        self._origins.move_to_end(name)
        origin.is_pending = False
        return origin

    def _shrink(self, newest: str) -> None:
        """Forget the oldest; what is being fetched is asked for, and stays, as does the newest."""
        while len(self._origins) > self._most or self._size_bytes > self._most_bytes:
            oldest = next((name for name, origin in self._origins.items() if not origin.is_pending), newest)
            if oldest == newest:
                return
            self._size_bytes -= self._origins.pop(oldest).size_bytes


# --- text: bounds the text of a robots.txt before it is parsed -------------------------------------------
# Parsers keep each rule once for every user agent of its group: of half a megabyte, the first half names of
# agents and the second half rules, they make hundreds of millions. And a rule with `*` is tried on every
# URL. What is kept of a file is weighed: in 9 KB, 300 agents may have 300 rules each, which take 8 to 75 MB.

LARGEST_BYTES = 500 * 1024  # RFC 9309: at least so much is to be parsed
_MOST_RULES = 100_000  # counted once for every agent of the group
_MOST_WILDCARDS = 2_000  # rules with `*`: all of them cost 26 ms for a URL of 8,000 characters
_AGENT_BYTES, _PATTERN_BYTES = 600, 300  # of each
_RULE_BYTES, _DOUBLED_BYTES = 80, 800  # for each agent of its group; one with "$" or "index.html" becomes several
_OF_NOTHING = "Allow: /%00"  # in place of one beyond them: it ends the lines of agents before it, too
_ENDS_GROUP = ("allow", "dis", "dia", "crawl")  # beginnings of rules, misspelt ones included


def bounded(body: bytes) -> tuple[bytes, int]:
    """The part of a robots.txt that is parsed, in UTF-8: whole lines from its beginning; and its weight when it is."""
    if len(body) > LARGEST_BYTES:
        body = body[:LARGEST_BYTES]
        body = body[: max(body.rfind(b"\n"), body.rfind(b"\r")) + 1]
    lines, size_bytes = _bearable(body.decode("utf-8-sig", "ignore").splitlines())
    return "\n".join(lines).encode(), size_bytes + len(body)


def _bearable(lines: list[str]) -> tuple[list[str], int]:
    """Up to the bound on rules, without the rules with `*` beyond theirs; and what they weigh."""
    agents = rules = wildcards = size_bytes = 0
    is_rule = True
    kept = []
    for line in lines:
        text = line.strip().lower()
        if text.startswith("user"):
            agents = 1 if is_rule else agents + 1
            is_rule = False
            size_bytes += _AGENT_BYTES
        elif text and not text.startswith("#"):
            ends_group = text.startswith(_ENDS_GROUP)
            is_rule = is_rule or ends_group
            rules += max(1, agents)
            of_agent = _DOUBLED_BYTES if "$" in text or "index.html" in text else _RULE_BYTES
            size_bytes += _PATTERN_BYTES + of_agent * agents
            wildcards += "*" in text
            if rules > _MOST_RULES:
                break
            if "*" in text and wildcards > _MOST_WILDCARDS:
                kept += [_OF_NOTHING] if ends_group else []
                continue
        kept.append(line)
    return kept, size_bytes


# --- Fetches robots.txt once for each origin and decides what a request may do ---------------------------
# The file is asked for past the frontier: it belongs to no seed, and no seed waits for its end. It goes
# through the downloader as every request does, so the guard against private hosts, the limits of time and
# size and the redirects count for it.

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
        """Whether this user agent may fetch this URL; yes when the parser cannot tell, and for robots.txt."""
        if self.parser is None or urlsplit(url).path == "/robots.txt":  # RFC 9309, 2.2.2
            return True
        try:
            return self.parser.allowed(url, agent)
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
    """Between the frontier and the engine: requests wait in the frontier until the robots.txt of their origin
    is known. On the event loop's thread only.
    """

    def __init__(
        self, crawler: Crawler, frontier: Frontier[Any], wake: Callable[[], None], is_free: Callable[[str], bool]
    ) -> None:
        """`is_free` says for which URLs robots.txt does not count. Raises ConfigError."""
        self._frontier = frontier
        self._wake = wake
        self._is_free = is_free
        self._crawler = crawler
        settings = crawler.settings
        seconds = partial(options.seconds, settings)
        self._cache: RobotsCache[Rules] = RobotsCache(
            options.integer(settings, "SITE_ROBOTS_CACHE", minimum=1),
            seconds("SITE_ROBOTS_MAX_AGE_SECONDS", minimum=1, maximum=_LONGEST_AGE_SECONDS),
            seconds("SITE_ROBOTS_WAIT_SECONDS"),
            seconds("SITE_RETRY_PAUSE_SECONDS"),
            seconds("SITE_RETRY_LONGEST_PAUSE_SECONDS"),
        )
        self._all_allowed = Rules(None, seconds("SITE_CRAWL_DELAY_MAX_SECONDS"))
        self._parser: type[RobotParser] = load_object(settings["ROBOTSTXT_PARSER"])
        self._own_agent: str | None = settings["ROBOTSTXT_USER_AGENT"]
        self._usual_agent: str = settings["USER_AGENT"]
        self._passing = tuple(map(load_object, settings.getlist("RETRY_EXCEPTIONS")))  # failures that may pass
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[str, asyncio.Task[None]] = {}  # that fetch, by origin
        self._starting = 0  # fetches that the downloader does not know of yet

    def count_for(self, url: str, meta: Mapping[str, Any] | None = None) -> bool:
        """Whether robots.txt counts for a URL, and a request with this meta."""
        obeys = not (meta and meta.get(meta_keys.DONT_OBEY_ROBOTSTXT))
        return obeys and url.startswith("http") and not self._is_free(url)

    def look(self, url: str) -> Look[Rules]:
        """What is known for this URL now."""
        return self._cache.look(_origin_of(url), self._loop.time())

    def allows(self, request: Request, rules: Rules) -> bool:
        """Whether a request may be made by these rules."""
        return rules.allows(request.url, self._agent(request))

    def _agent(self, request: Request | None = None) -> str:
        """The user agent that a request goes by; without one the usual."""
        own = None if request is None else request.headers.get("User-Agent")
        return self._own_agent or (own.decode("latin-1") if own else self._usual_agent)

    def _fetching(self, url: str) -> asyncio.Task[None]:
        """Fetches the robots.txt of an origin, once however many ask."""
        origin = _origin_of(url)
        if (task := self._tasks.get(origin)) is None:
            self._cache.begin(origin)
            self._starting += 1
            background = Background.of(self._crawler)
            task = self._tasks[origin] = background.start(self._fetch(origin), f"{origin}/robots.txt")
            task.add_done_callback(lambda _: self._tasks.pop(origin))
        return task

    def _when_fetched(self, url: str, call: Callable[[], None]) -> None:
        guarded = Background.of(self._crawler).guarded(call)
        self._fetching(url).add_done_callback(lambda _task: guarded())

    async def learn(self, url: str) -> Look[Rules]:
        """What is known for this URL once it is known; for requests that the frontier did not see."""
        look = self.look(url)
        if look.state in (State.UNKNOWN, State.PENDING):
            await asyncio.wait([self._fetching(url)])
            look = self.look(url)
        return look

    def close(self) -> None:
        """Fetch nothing any more."""
        for task in self._tasks.values():
            task.cancel()

    def ask(self, url: str, host: str) -> Look[Rules]:
        """What is known for what the frontier gave last.

        When nothing is, it has been put back: on PENDING its host is closed until the file is
        there, on UNKNOWN there is no place to fetch it at the moment.
        """
        look, now = self.look(url), self._loop.time()
        if look.state is State.PENDING:
            self._frontier.put_back(now)
            self._frontier.close(host, "robots", now)
            self._when_fetched(url, partial(self._open, host))
        elif look.state is State.UNKNOWN and engine_hooks.free_places(self._crawler.engine) <= self._starting:
            self._frontier.put_back(now)
        elif look.state is State.UNKNOWN:
            self._frontier.put_back(now, keeps_turn=True)
            self._frontier.close(host, "robots", now)
            self._when_fetched(url, partial(self._fetched, host, url, now))
            return Look(State.PENDING)
        return look

    def lets_pass(self, request: Request) -> bool:
        """Whether what the frontier gave last may be made; its host's Crawl-delay begins then."""
        if not self.count_for(request.url, request.meta):
            return True
        look = self.look(request.url)
        if look.rules is not None:
            if not self.allows(request, look.rules):
                return False
            delay = look.rules.delay_seconds(self._agent(request))
            if delay:
                now = self._loop.time()
                self._frontier.hold(self._frontier.last_host, now + delay, "delay", now)
        return look.state is not State.UNREACHABLE

    def _fetched(self, host: str, url: str, began: float) -> None:
        """The fetching has taken a turn of the host, after which the Crawl-delay holds, too."""
        now = self._loop.time()
        self._frontier.release(host, now)
        rules = self.look(url).rules
        delay = 0.0 if rules is None else rules.delay_seconds(self._agent())
        if delay:
            self._frontier.hold(host, began + delay, "delay", now)
        self._open(host)

    def _open(self, host: str) -> None:
        self._frontier.open(host, self._loop.time())
        self._wake()

    async def _fetch(self, origin: str) -> None:
        completion.work_on(None)
        self._starting -= 1
        count(self._crawler, "robotstxt/request_count")
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
            count(self._crawler, "robotstxt/unanswered")
            self._found(origin, self._all_allowed, 0)
        except Exception as error:  # noqa: BLE001 - whatever it is, the file is not there
            count(self._crawler, "robotstxt/unanswered")
            count(self._crawler, f"robotstxt/exception_count/{type(error)}")
            self._failed(origin, describe_exception(error, request), may_pass=isinstance(error, self._passing))

    async def _answered(self, origin: str, response: Response) -> None:
        count(self._crawler, "robotstxt/response_count")
        count(self._crawler, f"robotstxt/response_status_count/{response.status}")
        if response.status >= 500 or response.status == _TOO_MANY_REQUESTS:
            self._failed(origin, describe_status(response.status) or "", may_pass=True)
        elif 200 <= response.status < 300:
            await self._parse(origin, *bounded(response.body), response.request)
        else:
            self._found(origin, self._all_allowed, 0)

    async def _parse(self, origin: str, body: bytes, size_bytes: int, request: Request | None) -> None:
        parse = partial(self._parser.from_crawler, self._crawler, body)
        try:
            parser = parse() if len(body) < _THREAD_BYTES else await asyncio.to_thread(parse)
        except Exception:
            logger.exception("%s/robots.txt cannot be parsed; all is allowed", origin)
            self._found(origin, self._all_allowed, 0)
            return
        self._found(origin, self._all_allowed._replace(parser=parser), size_bytes)
        self._crawler.signals.send_catch_log(signals.robots_parsed, robotparser=parser, request=request)

    def _found(self, origin: str, rules: Rules, size_bytes: int) -> None:
        self._cache.found(origin, rules, size_bytes, self._loop.time())

    def _failed(self, origin: str, reason: str, *, may_pass: bool) -> None:
        logger.debug("%s/robots.txt could not be fetched: %s", origin, reason)
        jitter = runtime.random()  # spreads attempts only
        self._cache.failed(origin, reason, self._loop.time(), jitter, may_pass=may_pass)


def _origin_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}"


# --- middleware: Scrapy's robots.txt middleware, which drops what the rules forbid -----------------------


class FrontierRobotsMiddleware(RobotsTxtMiddleware):
    """Drops what is forbidden. For a spider that takes no seeds it is Scrapy's own."""

    async def process_request(  # type: ignore[override] # without the spider argument, which is on its way out
        self, request: Request
    ) -> None:
        """Raises IgnoreRequest for what robots.txt forbids, or when it cannot be fetched."""
        robots = part_of(self.crawler, Robots)
        if robots is None:
            await super().process_request(request)
            return
        if not robots.count_for(request.url, request.meta):
            return
        look = await robots.learn(request.url)
        if look.rules is None:
            raise IgnoreRequest(f"robots.txt could not be fetched: {look.reason}")
        if not robots.allows(request, look.rules):
            count(self.crawler, "robotstxt/forbidden")
            raise IgnoreRequest("Forbidden by robots.txt")
