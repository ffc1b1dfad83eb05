"""A sink of one's own: writes results as lines of JSON. docs/own-sinks.md explains it.

Run it with SITE_SINKS=local,docs.examples.lines_sink.LinesSink, or copy it and name your copy.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from site_spider.contracts.sink import ACKNOWLEDGED, Answer, Record, Verdict
from site_spider.errors import SinkRejected, SinkUnavailable
from site_spider.options import SettingsView, text
from site_spider.results.document import encode


class LinesSink:
    """Appends to `results-<process>.jsonl` in SITE_DATA_DIR; readers take the last line of a url_id."""

    name = "lines"

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"results-{os.getpid()}.jsonl"

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        """The sink of results in SITE_DATA_DIR. Raises ConfigError."""
        return cls(Path(text(settings, "SITE_DATA_DIR", required=True)))

    async def open(self) -> None:
        """Make the folder. Raises SinkUnavailable."""
        await self._run([])

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        """Append the records; they are on the disk when this returns. Raises SinkUnavailable."""
        lines, verdicts = [], []
        for record in records:
            try:
                lines.append(encode({"url_id": record.key, **record.document}) + b"\n")
                verdicts.append(ACKNOWLEDGED)
            except SinkRejected as error:
                verdicts.append(Verdict(Answer.REJECTED, str(error)))
        await self._run(lines)
        return verdicts

    async def close(self) -> None:
        """Nothing is held between calls."""

    async def _run(self, lines: Sequence[bytes]) -> None:
        try:
            await asyncio.to_thread(self._append, b"".join(lines))
        except OSError as error:
            raise SinkUnavailable(
                f"SITE_DATA_DIR is {str(self._path.parent)!r}, but it cannot be written: {error}."
                " Check its disk and permissions, or set another folder."
            ) from error

    def _append(self, data: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
