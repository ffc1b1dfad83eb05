"""Output of commands for documents and messages that are not ours, or that somebody has made up."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from site_spider.adapters.local.results import RESULTS, LocalSink, LocalStore
from site_spider.contracts.seed_log import Message, Partition
from site_spider.contracts.sink import ACKNOWLEDGED, Record
from site_spider.dead_letter_replay import Letter
from tests.commands.project import Project

ODD: list[Any] = [
    {},
    {"status": "text", "url": 7, "description": ["list"]},
    {"status": 1e300, "url": None, "description": "\x1b[2J\r\n"},
    {"status": None, "url": {"a": "b"}, "body": "x" * 1_000_000},
    {"status": True, "content_type": "\ud800", "response_size": [1]},
    {"url_id": None, "description": {"deep": [[[]]]}},
]
RAW = ["null", "[1]", "7", "{", "", "[" * 100_000, None, b"\xff\x00", 3.5]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    async def scenario() -> None:
        sink = LocalSink(tmp_path)
        await sink.open()
        assert await sink.write([Record(str(n), one, 10) for n, one in enumerate(ODD)]) == [ACKNOWLEDGED] * 6
        await sink.close()

    asyncio.run(scenario())
    with closing(sqlite3.connect(tmp_path / "results.sqlite")) as file, file:
        for number, text in enumerate(RAW):
            if text is not None:
                file.execute("INSERT INTO results (url_id, document) VALUES (?, ?)", (f"raw{number}", text))
    return tmp_path


@pytest.mark.parametrize("arguments", [(), ("--format", "json"), ("--url-id", "raw5"), ("--status", "none")])
def test_results_that_are_not_ours_are_shown(data: Path, arguments: tuple[str, ...]) -> None:
    """No traceback, and nothing that a terminal obeys."""
    shown = Project(data).scrapy("results", *arguments)
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr == ""
    assert "\x1b" not in shown.stdout
    if arguments == ("--format", "json"):
        assert len([json.loads(line) for line in shown.stdout.splitlines()]) == len(ODD) + len(RAW) - 1


def test_a_row_that_is_no_document_is_replaced(data: Path) -> None:
    """It must not keep the new result from being stored."""
    store = LocalStore(data, RESULTS)
    records = [Record(f"raw{number}", {"status": 200}, 10) for number in range(len(RAW))]
    assert store.write(records) == [ACKNOWLEDGED] * len(RAW)
    store.close()


@pytest.mark.parametrize("timestamp_ms", [-1, 0, 2**62, -(2**62), 253402300800000])
def test_a_dead_letter_of_any_time_is_shown(timestamp_ms: int) -> None:
    """Producers set the time of a message."""
    message = Message(Partition("t", 0), 0, b"\xff", None, (("error", b"\xff"),), timestamp_ms)
    json.dumps(Letter(message, {"error": "\xff"}, replayed=False).document())
