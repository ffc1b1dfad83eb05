"""A server of HBase that is killed, or stands still."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from site_spider.adapters.hbase.results import HBaseResults
from site_spider.adapters.hbase.sink import HBaseSink
from site_spider.contracts.sink import Answer
from tests.contracts.sinks import hbase_settings
from tests.contracts.trials import (
    TRIES_IN_VAIN,
    answers,
    assert_loop_stays_free,
    outlast_an_outage,
    page,
    pids,
)
from tests.real_servers import servers, variable


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("hbase")
    servers(folder, "start", "hbase")
    yield folder
    servers(folder, "kill", "hbase")


@pytest.fixture
def own_settings(own_server: Path) -> dict[str, Any]:
    return hbase_settings(f"127.0.0.1:{variable(own_server, 'SITE_HBASE_PORT', 'hbase')}")


@pytest.mark.servers
@pytest.mark.parametrize(("role", "tries_in_vain"), [("thrift", TRIES_IN_VAIN), ("master", 0)])
def test_nothing_is_lost_when_a_server_is_killed(
    own_server: Path, own_settings: dict[str, Any], role: str, tries_in_vain: int
) -> None:
    """The Thrift server, or HBase behind it, by -9 in mid-stream: every record is acknowledged once."""

    def kill() -> None:
        for process in pids(own_server / "hbase", role):
            os.kill(process, signal.SIGKILL)

    def restart() -> None:
        servers(own_server, "start", "hbase")

    sink = HBaseSink.from_settings(own_settings)
    verdicts, waiting = asyncio.run(outlast_an_outage(sink, kill, restart, 4000, tries_in_vain))
    assert answers(verdicts) == [Answer.ACKNOWLEDGED] * 4000
    assert waiting > 0
    reader = HBaseResults.from_settings(own_settings)
    assert {document["response_size"] for document in reader.search(limit=None)} == set(range(4000))


@pytest.mark.servers
def test_a_stalled_server_does_not_stall_the_event_loop(
    own_server: Path, own_settings: dict[str, Any]
) -> None:
    """It takes bytes and gives no answer, until it goes on."""
    sink = HBaseSink.from_settings(own_settings)
    processes = pids(own_server / "hbase", "thrift")
    asyncio.run(assert_loop_stays_free(sink, processes, 5))
    assert HBaseResults.from_settings(own_settings).get("2000") == page(2000).document
