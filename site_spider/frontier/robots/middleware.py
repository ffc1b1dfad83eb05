"""Scrapy's robots.txt middleware, which drops what the rules forbid."""

from __future__ import annotations

from scrapy import Request
from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware
from scrapy.exceptions import IgnoreRequest

from site_spider.engine.parts import part_of
from site_spider.frontier.robots.cache import State
from site_spider.frontier.robots.fetcher import unreachable
from site_spider.frontier.robots.gate import RobotsGate


class FrontierRobotsMiddleware(RobotsTxtMiddleware):
    """Drops what is forbidden. For a spider that takes no seeds it is Scrapy's own."""

    async def process_request(  # type: ignore[override] # without the spider argument, which is on its way out
        self, request: Request
    ) -> None:
        """Raises IgnoreRequest for what robots.txt forbids, or when it cannot be fetched."""
        gate = part_of(self.crawler, RobotsGate)
        if gate is None:
            await super().process_request(request)
            return
        if not gate.robots.is_subject(request):
            return
        look = await gate.robots.learn(request.url)
        if look.state is not State.KNOWN or look.rules is None:
            raise IgnoreRequest(unreachable(look.reason))
        if not gate.robots.allows(request, look.rules):
            assert self.crawler.stats is not None
            self.crawler.stats.inc_value("robotstxt/forbidden")
            raise IgnoreRequest("Forbidden by robots.txt")
