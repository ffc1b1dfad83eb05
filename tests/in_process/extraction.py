"""Pages extracted by a thread of this process; tests/sources/test_extraction_process.py has the process of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from site_spider.sources import extraction_process
from site_spider.sources.model import Source


class _Worker(extraction_process._Worker):
    """No page is too slow for it. It has no connection, for which a crawl would wait in real time."""

    def __init__(self) -> None:
        self._known: dict[str, Source] = {}
        self._sources: dict[str, Source] = {}

    async def ask(self, head: dict[str, Any], body: bytes) -> dict[str, Any]:
        given, sources = json.loads(json.dumps(head)), self._sources
        answer = await asyncio.to_thread(extraction_process.answer_to, given, body, sources)
        return dict(json.loads(json.dumps(answer)))

    async def end(self) -> int:
        return 0


async def _started() -> _Worker:
    return _Worker()


@contextmanager
def in_a_thread() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extraction_process._Worker, "start", _started)
        patch.setattr(extraction_process, "_WALL_SECONDS", 300.0)  # on a machine that stands still
        yield
