"""A pytest plugin for Scrapy's own tests: they run with our classes in the place of Scrapy's.

It stands apart from our packages of tests, because Scrapy's are called `tests` as well.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from types import ModuleType
from typing import Any

import pytest
from scrapy.downloadermiddlewares import redirect, retry
from scrapy.settings import default_settings
from scrapy.utils.misc import load_object

from site_spider import settings as ours
from site_spider.frontier import retry_and_redirect as our_retry
from site_spider.frontier.retry_and_redirect import CheckedRedirectMiddleware, PatientRetryMiddleware

SETTINGS = ("SCHEDULER", "DOWNLOADER", "ITEM_PROCESSOR", "DUPEFILTER_CLASS")
MIDDLEWARES = (
    (retry, "RetryMiddleware", PatientRetryMiddleware),
    (redirect, "RedirectMiddleware", CheckedRedirectMiddleware),
)


class AsyncioWithSpareLoop(ModuleType):
    """Scrapy's tests of middlewares call them outside of a loop, where no engine ever does."""

    def __init__(self) -> None:
        super().__init__("asyncio")
        self._spare: asyncio.AbstractEventLoop | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(asyncio, name)

    def get_running_loop(self) -> asyncio.AbstractEventLoop:
        """The loop that runs, or one whose clock can be read."""
        try:
            return asyncio.get_running_loop()
        except RuntimeError:
            self._spare = self._spare or asyncio.new_event_loop()
            return self._spare


def pytest_configure() -> None:
    """Before any test module is imported: these take the classes by name."""
    for name in SETTINGS:
        setattr(default_settings, name, getattr(ours, name))
    for name, value in vars(ours).items():
        if name.startswith("SITE_"):
            setattr(default_settings, name, value)
    for module, name, kind in MIDDLEWARES:
        setattr(module, name, kind)
    our_retry.asyncio = AsyncioWithSpareLoop()  # type: ignore[assignment]
    for kind in [load_object(getattr(ours, name)) for name in SETTINGS] + [kind for _, _, kind in MIDDLEWARES]:
        _count_objects_of(kind)


_used: Counter[str] = Counter()


def _count_objects_of(kind: type) -> None:
    """So that the run can say that it was ours that were tested."""
    made: Any = kind.__init__

    def counted(self: Any, *arguments: Any, **keywords: Any) -> None:
        _used[kind.__name__] += 1
        made(self, *arguments, **keywords)

    _used[kind.__name__] = 0
    kind.__init__ = counted  # type: ignore[method-assign]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many objects of each class of ours were made."""
    for name, count in _used.items():
        terminalreporter.write_line(f"used {name} {count}")
