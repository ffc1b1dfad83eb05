"""Keeps requests waiting in the frontier until the robots.txt of their origin is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from scrapy import Request

from site_spider.frontier.frontier import Frontier
from site_spider.frontier.robots.cache import Look, State
from site_spider.frontier.robots.fetcher import Robots, Rules


class RobotsGate:
    """Between the frontier and the engine. On the event loop's thread only."""

    def __init__(self, frontier: Frontier[Any], robots: Robots, wake: Callable[[], None]) -> None:
        self._frontier = frontier
        self.robots = robots
        self._wake = wake
        self._loop = asyncio.get_running_loop()

    def look(self, url: str, host: str) -> Look[Rules]:
        """What is known for what the frontier gave last.

        When nothing is, it has been put back: on PENDING its host is closed until the file is
        there, on UNKNOWN there is no place to fetch it at the moment.
        """
        look = self.robots.look(url)
        now = self._loop.time()
        if look.state is State.PENDING:
            self._frontier.put_back(now)
            self._frontier.close(host, "robots", now)
            self.robots.tell(url, partial(self._open, host))
        elif look.state is State.UNKNOWN and not self.robots.has_place():
            self._frontier.put_back(now)
        elif look.state is State.UNKNOWN:
            self._frontier.put_back(now, keeps_turn=True)
            self._frontier.close(host, "robots", now)
            self.robots.fetch(url, partial(self._fetched, host, url, now))
            return Look(State.PENDING)
        return look

    def lets_pass(self, request: Request) -> bool:
        """Whether what the frontier gave last may be made; its host's Crawl-delay begins then."""
        if not self.robots.is_subject(request):
            return True
        look = self.robots.look(request.url)
        if look.state is State.KNOWN and look.rules is not None:
            if not self.robots.allows(request, look.rules):
                return False
            delay = look.rules.delay_seconds(self.robots.agent(request))
            if delay:
                self._frontier.slow_down(delay, self._loop.time())
        return look.state is not State.UNREACHABLE

    def _fetched(self, host: str, url: str, began: float) -> None:
        """The fetching has taken a turn of the host, after which the Crawl-delay holds, too."""
        now = self._loop.time()
        self._frontier.release(host, now)
        rules = self.robots.look(url).rules
        delay = 0.0 if rules is None else rules.delay_seconds(self.robots.agent())
        if delay:
            self._frontier.hold(host, began + delay, "delay", now)
        self._open(host)

    def _open(self, host: str) -> None:
        self._frontier.open(host, self._loop.time())
        self._wake()
