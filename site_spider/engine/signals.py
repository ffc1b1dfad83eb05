"""Scrapy's signals at no cost when nobody listens, and without a task when no receiver waits."""

from __future__ import annotations

import inspect
import logging
from typing import Any

from pydispatch import dispatcher
from pydispatch.robustapply import robustApply
from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.signalmanager import SignalManager
from scrapy.utils.defer import ensure_awaitable

from site_spider.engine.stats import QuickCoreStats

logger = logging.getLogger(__name__)

_ANY_SENDER = id(dispatcher.Any)


def is_heard(sender: Any, signal: Any) -> bool:
    """Whether there may be a receiver."""
    connected = dispatcher.connections.get(id(sender))
    if connected and (signal in connected or dispatcher.Any in connected):
        return True
    connected = dispatcher.connections.get(_ANY_SENDER)
    return bool(connected) and (signal in connected or dispatcher.Any in connected)


class QuickSignals(SignalManager):
    """Scrapy's signals of one crawl: the same receivers, whoever they were connected through.

    What QuickCoreStats would only count is counted here, without a call.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        assert crawler.stats is not None
        self._count = crawler.stats.inc_value
        counter = crawler.get_extension(QuickCoreStats)
        self._counted = {} if counter is None else counter.hand_over(crawler.signals)

    def send_catch_log(self, signal: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """As Scrapy's."""
        if signal in self._counted:
            self._count(self._counted[signal])
        return super().send_catch_log(signal, **kwargs) if is_heard(self.sender, signal) else []

    async def send_catch_log_async(self, signal: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """As Scrapy's; for `item_scraped` receivers that are plain functions are called one by one."""
        if signal is not signals.item_scraped:
            return await super().send_catch_log_async(signal, **kwargs)
        if signal in self._counted:
            self._count(self._counted[signal])
        if not is_heard(self.sender, signal):
            return []
        receivers = list(dispatcher.liveReceivers(dispatcher.getAllReceivers(self.sender, signal)))
        if any(map(inspect.iscoroutinefunction, receivers)):
            return await super().send_catch_log_async(signal, **kwargs)
        return [(receiver, await self._call(receiver, signal, kwargs)) for receiver in receivers]

    async def _call(self, receiver: Any, signal: Any, arguments: dict[str, Any]) -> Any:
        try:
            result = robustApply(receiver, signal=signal, sender=self.sender, **arguments)
            return result if result is None else await ensure_awaitable(result)
        except Exception as error:
            logger.exception(
                "Error caught on signal handler: %s", receiver, extra={"spider": arguments.get("spider")}
            )
            return error
