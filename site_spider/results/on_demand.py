"""A sink that is opened by its first batch: a crawl without items needs no index, table or topic for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Self

from site_spider.contracts.sink import Record, Sink, Verdict


class OnDemand:
    """Fulfils Sink with another one, whose settings have been checked."""

    def __init__(self, sink: Sink) -> None:
        self.name = f"{sink.name} (items)"
        self._sink = sink
        self.is_used = False  # whether there was a first batch
        self._is_open = False
        self._opening = asyncio.Lock()

    @classmethod
    def from_settings(cls, settings: Any) -> Self:
        """It is made of a sink, not of settings."""
        raise NotImplementedError

    async def check(self) -> str:
        """As the sink does, where it can say."""
        check = getattr(self._sink, "check", None)
        return str(await check()) if check is not None else ""

    async def open(self) -> None:
        """Nothing yet."""

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        """As the sink does. Raises SinkUnavailable, and ConfigError when the sink cannot be opened."""
        self.is_used = True
        if not self._is_open:
            async with self._opening:
                await self._open_once()
        return await self._sink.write(records)

    async def close(self) -> None:
        """Close it if it is open. Never raises."""
        if self._is_open:
            self._is_open = False
            await self._sink.close()

    async def _open_once(self) -> None:
        if not self._is_open:
            await self._sink.open()
            self._is_open = True
