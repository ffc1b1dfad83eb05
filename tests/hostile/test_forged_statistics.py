"""Whoever may write to the topic of statistics makes no console fail or wait, and hides no process."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from site_spider.adapters.local.log import LocalSeedLog
from site_spider.console.fleet import MOST_PROCESSES, SILENT_FOR_GOOD_SECONDS, Fleet
from site_spider.console.pages import failures, hosts, overview, processes, sinks, tasks
from site_spider.console.process_state import state_of
from site_spider.observe import frontier_socket
from tests.console.consoles import watch_of
from tests.console.snapshots import NOW, snapshot, task

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 10**400, float("nan"), float("inf"), "", "x" * 5_000, "\ud800", "1e999", [], {},
    [[]] * 9, {"a": {"b": []}}, {"\ud800": "x"}, "9999-12-31T23:59:59+00:00", "-30000000-01-01", {"": 10**30},
)  # fmt: skip
REAL = 7


@pytest.fixture(autouse=True)
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontier_socket, "folders", lambda: iter(()))


def write(log: LocalSeedLog, *records: tuple[bytes | None, bytes | None]) -> None:
    producer = log.producer()
    for future in [producer.send("seeds.stats", key, value) for key, value in records]:
        future.result(300)
    producer.close()


def record(document: dict[str, Any]) -> tuple[bytes, bytes]:
    return str(document.get("process")).encode("utf-8", "replace"), json.dumps(document).encode()


def mutated(random_: random.Random, number: int) -> tuple[bytes | None, bytes | None]:
    """A snapshot with some odd fields at any depth, or with odd bytes, keys and sizes."""
    document = snapshot(number, at=time.time(), tasks={"largest": [task("t", 1, 1, dns=1)], "others": {}})
    for _ in range(random_.randint(1, 4)):
        place: Any = document
        while True:
            name = random_.choice(list(place))
            if isinstance(place[name], dict) and place[name] and random_.random() < 0.7:
                place = place[name]
                continue
            place[name] = random_.choice(ODD)
            break
    key, value = record(document)
    cut = random_.randrange(len(value))
    forms: tuple[Callable[[], tuple[bytes | None, bytes | None]], ...] = (
        *([lambda: (key, value)] * 6),
        lambda: (key, value[:cut]),
        lambda: (key, random_.randbytes(200)),
        lambda: (None, value),
        lambda: (b"\xff", value),
        lambda: (key, None),
        lambda: (key, b"[" * 100_000),
        lambda: (key, b" " * 300_000 + value),
    )
    return random_.choice(forms)()


def test_mutated_records_leave_every_page_and_the_real_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, random_ = LocalSeedLog(tmp_path), random.Random(24)
    write(log, record(snapshot(REAL, at=time.time())))
    write(log, *(mutated(random_, 1_000 + number) for number in range(200)))
    watch = watch_of(log)
    with caplog.at_level(logging.WARNING):
        asyncio.run(watch.look_once())
        asyncio.run(watch.look_once())
    view = watch.view()
    assert REAL in {seen.state.pid for seen in view.fleet.seen.values()}
    for document in (overview(view), tasks(view), processes(view), hosts(view), sinks(view), failures(view, [], "d")):
        json.dumps(document).encode()
    assert sum("no snapshot" in said.getMessage() for said in caplog.records) == 1
    assert any("no snapshots were skipped; the last at seeds.stats/" in said for said in view.troubles)
    assert not any("could not look" in said for said in view.troubles)


def test_processes_that_nobody_runs_are_bounded_and_hide_none(tmp_path: Path) -> None:
    log, now = LocalSeedLog(tmp_path), time.time()
    write(log, record(snapshot(REAL, at=now)))
    write(log, *(record(snapshot(1_000 + number, at=now)) for number in range(3_000)))
    watch = watch_of(log)
    asyncio.run(watch.look_once())
    view = watch.view()
    assert len(view.fleet.seen) == MOST_PROCESSES
    assert REAL in {seen.state.pid for seen in view.fleet.seen.values()}
    assert any(f"{MOST_PROCESSES} at most" in said for said in view.troubles)


def test_a_process_of_this_host_gets_the_place_of_one_that_is_only_told_of() -> None:
    fleet = Fleet()
    for number in range(MOST_PROCESSES + 5):
        fleet.take(state_of(snapshot(1_000 + number)), NOW)
    fleet.take(state_of(snapshot(REAL)), NOW, is_near=True)
    assert len(fleet.seen) == MOST_PROCESSES
    assert {1_000, REAL} <= {seen.state.pid for seen in fleet.seen.values()}
    fleet.take(state_of(snapshot(9)), NOW + SILENT_FOR_GOOD_SECONDS + 1)
    assert 9 in {seen.state.pid for seen in fleet.seen.values()}
