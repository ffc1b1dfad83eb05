"""How a crawl that cannot start or go on ends: the exit code, and the reason in the log."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import NoReturn

from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider

from site_spider.engine.background import Background
from site_spider.secrets import Redaction, secrets_of
from site_spider.service import exit_code
from site_spider.text import for_log

logger = logging.getLogger(__name__)


class Ending:
    """Of one crawl. On the event loop's thread only."""

    def __init__(self, crawler: Crawler, leave_at_once: Callable[[], None]) -> None:
        self.background = Background.for_crawler(crawler, self.fail)
        self.is_death = False  # by an error of our own: some seed may be at fault
        self._leave_at_once = leave_at_once  # ends the process, where it is ours
        self._crawler = crawler
        self._closing: asyncio.Task[None] | None = None

    @property
    def exit_code(self) -> int:
        """0 until something went wrong."""
        return getattr(self._crawler.spider, "exit_code", 0)

    def refuse_to_start(self, error: Exception) -> NoReturn:
        """Say why, in one line if a setting or a server is to blame, and close.

        For handlers of spider_opened. A crawl that has failed meanwhile is closing: what the start then does
        not find is no reason of its own.
        """
        if self._closing is not None:
            raise CloseSpider("failed") from error
        code = exit_code.of(error, exit_code.SETUP)
        reason = repr(error) if code == exit_code.SETUP else str(error)
        logger.error("Cannot start: %s", reason, exc_info=error if code == exit_code.SETUP else None)
        if self._crawler.settings.get("LOG_FILE"):
            # for whoever started it: the log is elsewhere
            shown = Redaction(secrets_of(self._crawler.settings))(f"Cannot start: {reason}")
            print(for_log(shown, one_line=True), file=sys.stderr)
        self._set_exit_code(code)
        raise CloseSpider("cannot_start")

    def fail(self, error: BaseException) -> None:
        """The crawl cannot go on: close it, with an exit code that has it started again."""
        code = exit_code.of(error, exit_code.SOFTWARE)
        if code == exit_code.SOFTWARE:
            logger.error("The crawl cannot go on: %r", error, exc_info=error)
            self.is_death = True
        else:
            logger.error("The crawl cannot go on: %s", error)
        if self._closing is None:
            self._set_exit_code(code)
            self._closing = self.background.start(self._close(), "closing")

    async def _close(self) -> None:
        try:
            await self._crawler.engine.close_spider_async(reason="failed")
        except Exception:
            logger.exception("The crawl could not be closed in order")
            self._leave_at_once()

    def _set_exit_code(self, code: int) -> None:
        assert self._crawler.spider is not None
        self._crawler.spider.exit_code = code  # type: ignore[attr-defined]
