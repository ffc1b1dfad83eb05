"""A store of statistics of one's own: a line of CSV for each document.

    SITE_STATS_TO=elasticsearch,docs.examples.csv_statistics.CsvStatistics ./task_shell/crawl_spider.sh

docs/observability.md explains it piece by piece.
"""

from __future__ import annotations

import asyncio
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from site_spider.contracts.sink import ACKNOWLEDGED, Record, Verdict
from site_spider.errors import SinkUnavailable
from site_spider.options import SettingsView, text

COLUMNS = ("@timestamp", "id", "moment", "total_num", "interval_num", "interval_seconds")


class CsvStatistics:
    """Appends to `statistics-ID.csv` in SITE_DATA_DIR, one file a process; fulfils StatisticsStore."""

    name = "csv"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: set[str] = set()  # keys: a document that is written twice has one line

    @classmethod
    def for_statistics(cls, settings: SettingsView) -> Self:
        """In SITE_DATA_DIR. Raises ConfigError."""
        return cls(Path(text(settings, "SITE_DATA_DIR", required=True)))

    async def open(self) -> None:
        """Make the folder. Raises SinkUnavailable."""
        await asyncio.to_thread(self._guarded_write, [])

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        """Append a line each. Raises SinkUnavailable."""
        await asyncio.to_thread(self._guarded_write, records)
        return [ACKNOWLEDGED] * len(records)

    async def close(self) -> None:
        """Nothing is open between two calls."""

    def _guarded_write(self, records: Sequence[Record]) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for record in records:
                self._write(record)
        except OSError as error:
            raise SinkUnavailable(
                f"SITE_DATA_DIR is {str(self._folder)!r}, but no statistics can be written there: {error}"
            ) from error

    def _write(self, record: Record) -> None:
        if record.key in self._written:
            return
        name = str(record.document.get("process", "unknown")).replace("/", "_")
        path = self._folder / f"statistics-{name}.csv"
        is_new = not path.exists()
        with path.open("a", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            if is_new:
                lines.writerow(["key", *COLUMNS])
            lines.writerow([record.key, *(record.document.get(column) for column in COLUMNS)])
        self._written.add(record.key)
