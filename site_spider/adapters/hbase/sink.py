"""Writes documents to an HBase table, through its Thrift server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

from site_spider import runtime
from site_spider.adapters.hbase.options import HBaseOptions
from site_spider.adapters.hbase.table import HBaseTable
from site_spider.contracts.sink import Record, Verdict
from site_spider.errors import SinkUnavailable
from site_spider.options import SettingsView

T = TypeVar("T")

WRITE_SECONDS = 35.0  # no call is begun later: with its own time it must end within the delivery's 60 s
CLOSE_SECONDS = 2.0


class HBaseSink:
    """Writes on a thread of its own: the client blocks, and a connection is good for one thread only."""

    name = "hbase"

    def __init__(self, options: HBaseOptions) -> None:
        self._options = options
        self._table: HBaseTable | None = None
        self._thread: runtime.ThreadPoolExecutor | None = None

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        """The sink of results, SITE_HBASE_TABLE. Raises ConfigError."""
        return cls(HBaseOptions.from_settings(settings))

    @classmethod
    def for_items(cls, settings: SettingsView) -> Self:
        """The sink of items, SITE_HBASE_ITEMS_TABLE. Raises ConfigError."""
        return cls(HBaseOptions.for_items(settings))

    async def open(self) -> None:
        """Connect, and create the table if it is missing. Raises SinkUnavailable, ConfigError."""
        await self.close()
        self._table = HBaseTable(self._options)
        self._thread = runtime.ThreadPoolExecutor(max_workers=1, thread_name_prefix="hbase-sink")
        await self._run(self._table.open)

    async def check(self) -> str:
        """What `open` would find. Raises SinkUnavailable."""
        return await asyncio.to_thread(HBaseTable(self._options).check)

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        """Write the records in as few calls as the server takes. Raises SinkUnavailable."""
        table, deadline = self._table, runtime.monotonic() + WRITE_SECONDS
        if table is None:
            raise SinkUnavailable("The HBase sink is not open.")
        return await self._run(lambda: table.write(records, deadline))

    async def close(self) -> None:
        """Close the connection, in whatever it is. Never raises."""
        thread, self._thread = self._thread, None
        table, self._table = self._table, None
        if thread is None or table is None:
            return
        table.hang_up()
        closing = asyncio.get_running_loop().run_in_executor(thread, table.close)
        thread.shutdown(wait=False)
        await asyncio.wait([closing], timeout=CLOSE_SECONDS)  # longer only while it connects

    async def _run(self, action: Callable[[], T]) -> T:
        if self._thread is None:
            raise SinkUnavailable("The HBase sink is not open.")
        return await asyncio.get_running_loop().run_in_executor(self._thread, action)
