"""Owns the tasks, callbacks and threads of a crawl; a failure in one ends the crawl.

An exception in one of these reaches nobody: the event loop logs it, perhaps much later, and the crawl
goes on without its part. So each is started here, and its failure ends the crawl
(exit_code.SOFTWARE, with a traceback). tests/engine/test_background.py lists the few that are not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec
from weakref import WeakKeyDictionary

from scrapy.crawler import Crawler

from site_spider import runtime

Fail = Callable[[BaseException], None]
P = ParamSpec("P")

THREAD_PREFIX = "site-"  # of the names of our threads, those of the adapters included

_of_crawlers: WeakKeyDictionary[Crawler, Background] = WeakKeyDictionary()


class Background:
    """Of one crawl. On the event loop's thread only."""

    def __init__(self, fail: Fail) -> None:
        self.fail = fail  # ends the crawl
        self._tasks: set[asyncio.Task[Any]] = set()  # the event loop keeps no strong reference
        self._forget_threads: Callable[[], None] | None = None

    @classmethod
    def for_crawler(cls, crawler: Crawler, fail: Fail) -> Background:
        """Make the one of a crawl."""
        _of_crawlers[crawler] = made = cls(fail)
        return made

    @classmethod
    def of(cls, crawler: Crawler) -> Background:
        """The one of a crawl whose spider takes seeds."""
        return _of_crawlers[crawler]

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a coroutine as a task."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def guarded(self, call: Callable[P, object]) -> Callable[P, None]:
        """The same for a callback of the event loop."""

        def run(*arguments: P.args, **keywords: P.kwargs) -> None:
            try:
                call(*arguments, **keywords)
            except Exception as error:  # noqa: BLE001 - told to who can act on it
                self.fail(error)

        return run

    def watch_threads(self) -> None:
        """From now on an exception that ends one of our threads ends the crawl, see THREAD_PREFIX."""
        loop = asyncio.get_running_loop()

        def tell(ended: runtime.ThreadFailure) -> bool:
            error = ended.exc_value
            if error is None or ended.thread is None or not ended.thread.name.startswith(THREAD_PREFIX):
                return False
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending
                loop.call_soon_threadsafe(self.fail, error)
            return True

        self._forget_threads = runtime.watch_threads(tell)

    def forget_threads(self) -> None:
        """Undo `watch_threads`."""
        if self._forget_threads is not None:
            self._forget_threads()
            self._forget_threads = None
