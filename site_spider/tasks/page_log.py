"""Writes the pages of tasks to the page log before the seeds that asked for them are counted.

What a record says is true however often it is written, so a crash costs nothing here: the repeat of the seed
writes its pages once more, and they are counted once (tasks.page_counts).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from site_spider import runtime
from site_spider.contracts.seed_log import Producer, SeedLog
from site_spider.engine.background import Background
from site_spider.errors import SiteSpiderError
from site_spider.outage import Outage
from site_spider.tasks.counted_page import CountedPage, key_of, written

logger = logging.getLogger(__name__)

_MOST_PAGES = 2_000  # of a record: some 100 kB
_PAUSE_SECONDS = 0.5  # while the log does not answer

Then = Callable[[], None]


@dataclass(slots=True)
class _Unwritten:
    """What waits of one task."""

    pages: dict[int, CountedPage] = field(default_factory=dict)
    thens: list[Then] = field(default_factory=list)


class PageLog:
    """On the event loop's thread only."""

    def __init__(self, log: SeedLog, producer: Producer, topic: str, background: Background) -> None:
        self._log = log
        self._producer = producer
        self._topic = topic
        self._background = background
        self._writer = runtime.token_hex(6)
        self._records = 0
        self._has_topic = False
        self._is_writing = False
        self._waiting: dict[str, _Unwritten] = {}
        self._away = Outage(logger, "The log of pages takes no records, trying again", "It takes them again")

    @property
    def is_writing(self) -> bool:
        """Whether pages are not known to be durable."""
        return self._is_writing or bool(self._waiting)

    def add(self, task_id: str, pages: Collection[CountedPage], then: Then) -> None:
        """Write these pages; `then` is called when they are durable."""
        if not pages:
            then()
            return
        batch = self._waiting.setdefault(task_id, _Unwritten())
        batch.pages.update((page.page, page) for page in pages)
        batch.thens.append(then)

    def look(self) -> None:
        """Write what waits; to be called often."""
        if self._waiting and not self._is_writing:
            self._is_writing = True
            self._background.start(self._write(), "log of pages")

    async def _write(self) -> None:
        batches, self._waiting = self._waiting, {}
        try:
            if not self._has_topic:
                await asyncio.to_thread(self._log.make_topic, self._topic, 1, compacted=True)
                self._has_topic = True
            await asyncio.gather(
                *(self._send(task_id, batch.pages.values()) for task_id, batch in batches.items())
            )
        except SiteSpiderError as error:
            self._away.goes_on(error)
            await asyncio.sleep(_PAUSE_SECONDS)
            self._put_back(batches)
        else:
            self._away.is_over()
            for batch in batches.values():
                for then in batch.thens:
                    then()
        finally:
            self._is_writing = False

    async def _send(self, task_id: str, pages: Collection[CountedPage]) -> None:
        of_all = list(pages)
        for start in range(0, len(of_all), _MOST_PAGES):
            self._records += 1
            key = key_of(task_id, self._writer, self._records)
            value = written(of_all[start : start + _MOST_PAGES])
            await asyncio.wrap_future(self._producer.send(self._topic, key, value))

    def _put_back(self, batches: dict[str, _Unwritten]) -> None:
        """Pages that came meanwhile are newer."""
        for task_id, newer in self._waiting.items():
            older = batches.setdefault(task_id, _Unwritten())
            older.pages.update(newer.pages)
            older.thens += newer.thens
        self._waiting = batches
