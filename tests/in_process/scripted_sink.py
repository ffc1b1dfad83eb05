"""A sink that does what a test says, in the place of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Self

from site_spider.contracts.sink import ACKNOWLEDGED, Record, Verdict
from site_spider.errors import SinkUnavailable


class ScriptedSink:
    """Remembers what was written; `answer` and the flags decide what happens."""

    name = "scripted"

    def __init__(self) -> None:
        self.answer: Callable[[Record], Verdict] = lambda record: ACKNOWLEDGED
        self.away = False
        self.hanging = False
        self.failure: BaseException | None = None
        self.written: list[list[str]] = []
        self.attempts = 0
        self.open_attempts = 0
        self.opened_after = 0  # how many attempts to open fail
        self.closed = 0
        self.under_way = 0
        self.most_under_way = 0
        self.hold: asyncio.Event | None = None  # writes wait for it

    @classmethod
    def from_settings(cls, settings: Any) -> Self:
        return cls()

    async def open(self) -> None:
        self.open_attempts += 1
        if self.open_attempts <= self.opened_after:
            raise SinkUnavailable("SITE_SCRIPTED_HOSTS is 'nowhere:1', which does not answer.")

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        self.attempts += 1
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if self.hanging:
                await asyncio.Event().wait()
            if self.hold:
                await self.hold.wait()
            if self.failure:
                raise self.failure
            if self.away:
                raise SinkUnavailable("connection refused")
            self.written.append([record.key for record in records])
            return [self.answer(record) for record in records]
        finally:
            self.under_way -= 1

    async def close(self) -> None:
        self.closed += 1
