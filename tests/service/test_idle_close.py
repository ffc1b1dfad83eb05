"""Processes that end when there has been no seed for a while."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from math import inf
from pathlib import Path

import pytest
from scrapy.crawler import Crawler
from scrapy.settings import Settings

from site_spider import runtime
from site_spider.adapters.local.log import LocalConsumer
from site_spider.contracts.seed_log import Message
from site_spider.service import config as parts
from site_spider.service import supervisor
from site_spider.service.stop import IdleClose
from tests.acceptance.supervision import SCRIPT, own_control_files
from tests.in_process.engine import crawl, produce, settings_for

SEED = {"url": "http://a.test/", "meta": {"NotExtract": True}}


def test_nothing_to_do_for_the_whole_time_is_over() -> None:
    """A process without a partition waits for the group first, and for seeds of those that it gets; 0 is for ever.

    One that stood still has seen no seed that came meanwhile, and looks for it first.
    """
    idle, alone = IdleClose(10), IdleClose(10)
    looks = {100: 0, 109.9: 0, 110: 0, 111: 1, 120.9: 1, 121: 1}  # a seed came and ended between two looks
    over = [idle.is_over(now, count, is_busy=False, partitions={1}) for now, count in looks.items()]
    assert over == [False, False, True] * 2
    over = [idle.is_over(now, 1, is_busy=now <= 1_000, partitions={1}) for now in (200, 1_000, 1_009.9, 1_010)]
    assert over == [False, False, False, True]
    over = [idle.is_over(now, 1, is_busy=False, partitions={1}) for now in (1_030, 1_039.9, 1_040)]
    assert over == [False, False, True]
    held = {1: (), 11: (), 70: (), 70.5: {1}, 80.4: {1}, 80.5: {1}, 80.6: {1, 2}, 90.6: {1, 2}, 92: ()}
    held |= {**dict.fromkeys(range(102, 161, 10), ()), 161.9: (), 162: ()}
    over = [alone.is_over(now, 0, is_busy=False, partitions=frozenset(some)) for now, some in held.items()]
    assert over == [False] * 5 + [True, False, True, *[False] * 8, True]
    assert not IdleClose(0).is_over(1e9, (), is_busy=False, partitions={1})


def test_the_time_of_rest_begins_with_it_and_not_with_the_last_poll_before() -> None:
    """Where each poll brings seeds, the last one that found nothing may be long ago."""
    idle = IdleClose(10)
    polls = {100: 100, 109: 100, 109.5: 109.4, 110: 109.9, 118.9: 118.8, 119.05: 118.95, 119.2: 119.1}
    over = [idle.is_over(now, 0, is_busy=now <= 109, partitions={1}, known_until=poll) for now, poll in polls.items()]
    assert over == [False] * 6 + [True]


@pytest.mark.parametrize("limit_seconds", [0.1, 0.3, 1, 300])
def test_a_process_that_looks_as_often_as_ever_has_not_stood_still(limit_seconds: float) -> None:
    """Also where the limit is shorter than the time between two looks."""
    idle, now, over = IdleClose(limit_seconds), 100.0, False
    while not over and now < 500:
        now += 0.35
        over = idle.is_over(now, 0, is_busy=False, partitions={1})
    assert now == pytest.approx(100.35 + limit_seconds, abs=0.4)


def test_a_process_that_stood_still_for_a_part_of_the_time_looks_for_seeds_first() -> None:
    idle = IdleClose(300)
    looks = [*range(100, 300), 450, *range(451, 751)]
    over = [idle.is_over(now, 0, is_busy=False, partitions={1}) for now in looks]
    assert over == [False] * 500 + [True]


def test_a_crawl_ends_by_itself_when_its_seeds_are_done(tmp_path: Path) -> None:
    found = crawl(tmp_path, [SEED] * 3, until=lambda _: False, SITE_IDLE_CLOSE_SECONDS=2)
    assert (found.exit_code, found.lag, found.seeds["completed"]) == (0, 0, 3)
    assert found.stats["finish_reason"] == "idle"


@pytest.mark.parametrize("wait_seconds", [1.7, 1.9, 2.0, 2.1, 2.3])
def test_a_seed_that_comes_as_it_closes_is_crawled_or_stays(tmp_path: Path, wait_seconds: float) -> None:
    settings = settings_for(tmp_path, SITE_IDLE_CLOSE_SECONDS=2)
    log = parts.seed_log(settings)
    opened: list[float] = []

    def produce_late(_crawler: Crawler) -> bool:
        opened.append(now := asyncio.get_running_loop().time())
        if now - opened[0] >= wait_seconds:
            opened[0] = inf
            produce(log, "seeds", [SEED])
        return False

    found = crawl(tmp_path, [], until=produce_late, SITE_IDLE_CLOSE_SECONDS=2)
    log.close()
    assert found.exit_code == 0
    assert found.lag + len(found.documents) == 1
    assert found.seeds.get("in_flight", 0) == 0


def test_seeds_that_a_slow_poll_brings_are_crawled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its partitions are assigned already, and nothing was found for longer than it may be idle."""
    fetch, seconds = LocalConsumer._fetch, iter([5.0])

    def slow_at_first(consumer: LocalConsumer, limit: int) -> list[Message]:
        runtime.sleep(next(seconds, 0.0))
        return fetch(consumer, limit)

    monkeypatch.setattr(LocalConsumer, "_fetch", slow_at_first)
    found = crawl(tmp_path, [SEED], until=lambda _: False, SITE_IDLE_CLOSE_SECONDS=2)
    assert (found.lag, found.seeds["completed"], found.stats["finish_reason"]) == (0, 1, "idle")


def test_the_supervisor_does_not_start_it_again(tmp_path: Path) -> None:
    """But one that ends with another code."""
    program = f"""
import os, pathlib
path = pathlib.Path({str(tmp_path)!r}) / os.environ["CRAWL_SPIDER_SLOT"]
with path.open("a") as file:
    file.write("x")
starts = path.stat().st_size
if starts == 2:
    raise SystemExit(1)
if starts == 3:
    raise SystemExit(int(os.environ["CRAWL_SPIDER_IDLE_CODE"]))
"""
    words = [f"--program={word}" for word in (sys.executable, "-c", program)]
    command = [sys.executable, supervisor.__file__, *words, "--processes=2", "--"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / slot).read_text() for slot in "12"] == ["xxx", "xxx"]
    assert done.stderr.count("there was no seed for SITE_IDLE_CLOSE_SECONDS") == 2


def test_a_real_script_crawls_what_is_there_and_is_done(tmp_path: Path) -> None:
    settings: Settings = settings_for(tmp_path)
    log = parts.seed_log(settings)
    produce(log, "seeds", [{"url": "http://127.0.0.1:9/", "meta": {"url_id": "1"}}])
    log.close()
    own = {"SITE_DATA_DIR": str(tmp_path), "SITE_KAFKA_BROKERS": "", "SITE_IDLE_CLOSE_SECONDS": "1"}
    more = {"RETRY_TIMES": "0", "SITE_SINKS": "local", "SITE_ALLOW_PRIVATE_HOSTS": "true"}
    environment = {**os.environ, **own_control_files(tmp_path), **own, **more}
    script = [SCRIPT, "-v", sys.prefix]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("No seed for SITE_IDLE_CLOSE_SECONDS=1") == 1
    assert done.stderr.count("process 1 has ended: there was no seed for SITE_IDLE_CLOSE_SECONDS") == 1
    reader = parts.reader(settings)
    assert "ConnectionRefused" in json.dumps(reader.get("1"))
    reader.close()
