"""Reads SITE_PROXIES, follows changes of its file, and logs when a proxy rests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured

from site_spider import options, runtime
from site_spider.download.proxies.patterns import PagePatterns, PatternError
from site_spider.download.proxies.pool import (
    Attempt,
    Proxy,
    ProxyError,
    ProxyOutcome,
    ProxyPool,
    parse_lines,
    parse_list,
)
from site_spider.engine.background import Background
from site_spider.errors import ConfigError
from site_spider.options import SettingsView
from site_spider.results.delivery import LogLimit

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0  # between two looks at the file
_LOG_LINES, _LOG_SECONDS = 10, 60.0
_LARGEST_FILE_BYTES = 10_000_000
_REMEDY = "Set it to http://user:password@host:port, several with commas, or to the path of a file of them."


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """When a download goes to a proxy, and how often."""

    statuses: frozenset[int]
    patterns: PagePatterns
    unanswered: int  # attempts; 0: never for that
    attempts: int  # through proxies, of one page

    @classmethod
    def read(cls, settings: SettingsView) -> Self:
        """Raises ConfigError."""
        name = "SITE_PROXY_BODY_PATTERNS"
        try:
            patterns = PagePatterns(options.texts(settings, name))
        except PatternError as error:
            raise ConfigError(f"{name}: {error}.") from None
        name = "SITE_PROXY_STATUSES"
        codes = options.names(settings, name)
        return cls(
            statuses=frozenset(options.integer({name: code}, name, 100, 599) for code in codes),
            patterns=patterns,
            unanswered=options.integer(settings, "SITE_PROXY_TIMEOUTS"),
            attempts=options.integer(settings, "SITE_PROXY_ATTEMPTS", minimum=1),
        )


class ProxyService:
    """An extension; for spiders that take seeds, where SITE_PROXIES is set."""

    def __init__(self, crawler: Crawler) -> None:
        self.settings = ProxySettings.read(crawler.settings)
        written = options.text(crawler.settings, "SITE_PROXIES")
        self._file = None if "://" in written else _File(Path(written))
        try:
            proxies = parse_list(written) if self._file is None else self._file.first()
        except (ProxyError, OSError, ValueError) as error:
            raise ConfigError(f"SITE_PROXIES{_of(self._file)}: {_said(error)}. {_REMEDY}") from None
        self.pool = ProxyPool(proxies)
        self.outcomes = dict.fromkeys((outcome.value for outcome in ProxyOutcome), 0)
        self._limit = LogLimit(_LOG_LINES, _LOG_SECONDS)
        self._all_rest = False
        self._following: asyncio.Task[None] | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """As Scrapy asks. Raises ConfigError, which never holds a password."""
        takes_seeds = getattr(crawler.spidercls, "takes_seeds", False)
        if not takes_seeds or not options.text(crawler.settings, "SITE_PROXIES"):
            raise NotConfigured
        service = cls(crawler)
        crawler.signals.connect(service._spider_opened, signal=signals.spider_opened)
        crawler.signals.connect(service._spider_closed, signal=signals.spider_closed)
        return service

    @classmethod
    def of(cls, crawler: Crawler) -> Self:
        """The service of a crawl. Raises NotConfigured where there is none."""
        service = crawler.get_extension(cls)
        if service is None:
            raise NotConfigured
        return service

    def take(self, tried: Collection[Proxy]) -> Attempt | None:
        """A proxy for a request that has `tried` some; None when all rest."""
        now = asyncio.get_running_loop().time()
        attempt = self.pool.take(now, tried, runtime.random())  # spreads the load only
        if attempt is None and not self._all_rest:
            seconds = self.pool.next_at(now) - now
            logger.warning("All %d proxies rest; requests that need one wait %.0f s", len(self.pool), seconds)
        self._all_rest = attempt is None
        return attempt

    def end(self, attempt: Attempt, ending: ProxyOutcome, said: str) -> None:
        """An attempt has ended; `said` tells how, in words that follow the proxy's address."""
        now = asyncio.get_running_loop().time()
        self.outcomes[ending.value] += 1
        seconds = self.pool.end(attempt, ending, now)
        if seconds and self._limit.admit(now):
            logger.warning("Proxy %s %s; it rests for %.0f s", attempt.proxy.url, said, seconds)

    def next_at(self) -> float:
        """When `take` may find one, by the event loop's clock."""
        return self.pool.next_at(asyncio.get_running_loop().time())

    def _spider_opened(self, spider: Spider) -> None:
        logger.info("%d proxies for requests that need one", len(self.pool))
        if self._file is not None:
            background = Background.of(spider.crawler)
            self._following = background.start(self._follow(self._file), "file of proxies")

    def _spider_closed(self) -> None:
        if self._following is not None:
            self._following.cancel()

    async def _follow(self, file: _File) -> None:
        """Take what the file says when it has changed; what cannot be used changes nothing."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                proxies = await asyncio.to_thread(file.changed)
            except (ProxyError, OSError) as error:
                logger.warning(
                    "SITE_PROXIES%s: %s; the %d proxies read before stay",
                    _of(file),
                    _said(error),
                    len(self.pool),
                )
                continue
            if proxies is not None:
                self.pool.replace(proxies)
                logger.info("SITE_PROXIES%s: %d proxies from now on", _of(file), len(proxies))


class _File:
    """A file of proxies, which others write at any time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: object = None  # the signature of what was read, or found to be unusable
        self._seen: object = None  # at the last look

    def first(self) -> list[Proxy]:
        """As it is now. Raises ProxyError, OSError."""
        self._read = self._seen = self._signature()
        return self._proxies()

    def changed(self) -> list[Proxy] | None:
        """What it says, if that is new and has not changed since the last look: else it may be half-written.

        Raises ProxyError or OSError, once for each state of the file.
        """
        try:
            signature: object = self._signature()
        except OSError as error:
            signature = type(error)  # one complaint is enough, whatever the message
        settled, self._seen = signature == self._seen, signature
        if not settled or signature == self._read:
            return None
        self._read = signature
        return self._proxies()

    def _signature(self) -> tuple[int, int, int]:
        found = self.path.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _proxies(self) -> list[Proxy]:
        with self.path.open("rb") as file:
            content = file.read(_LARGEST_FILE_BYTES + 1)
        if len(content) > _LARGEST_FILE_BYTES:
            raise ProxyError(f"it has more than {_LARGEST_FILE_BYTES} bytes")
        return parse_lines(content.decode("utf-8", "replace"))


def _of(file: _File | None) -> str:
    """Which file; nothing for what may be a proxy without http://, and hold a password."""
    return "" if file is None or ":" in str(file.path) or "@" in str(file.path) else f" ({file.path})"


def _said(error: ProxyError | OSError | ValueError) -> str:
    """Without the text of the setting or the file, which may hold a password."""
    if isinstance(error, ProxyError):
        return str(error)
    return f"it cannot be read: {error.strerror if isinstance(error, OSError) else 'it is no path'}"
