"""Seeds of chaos.sh are produced once each, their tasks close behind them, and are told what was asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from site_spider.errors import TopicMissing
from site_spider.seed.tiers import CrawlTopics
from site_spider.tasks.control_log import read_endings
from tools.chaos.feed import ChaosTask, Feed, TaskCommands, Workload
from tools.chaos.plan import read_options
from tools.deployment.deployment import Deployment, opened, wait_until

SEEDS = 40


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    yield from opened(tmp_path, {"SITE_KAFKA_BROKERS": ""})


@pytest.fixture
def tasks() -> dict[str, ChaosTask]:
    return {}


@pytest.fixture
def feed(deployment: Deployment, tasks: dict[str, ChaosTask], request: pytest.FixtureRequest) -> Iterator[Feed]:
    line = f"--folder {deployment.folder} --seeds {SEEDS} {request.param}"
    feed = Feed(Workload(read_options(line.split()), 80, [deployment.topic]), deployment, tasks)
    yield feed
    feed.close()


def produced(deployment: Deployment) -> list[str]:
    try:
        messages = list(deployment.log.read(deployment.topic))
    except TopicMissing:
        return []
    return sorted(json.loads(message.value or b"")["meta"]["url_id"] for message in messages)


@pytest.mark.parametrize("feed", ["--tasks 4"], indirect=True)
def test_every_second_task_is_closed_behind_its_last_seed(
    deployment: Deployment, feed: Feed, tasks: dict[str, ChaosTask]
) -> None:
    feed.produce(range(SEEDS))
    to_close = feed.end()
    assert produced(deployment) == [f"seed-{seed:06d}" for seed in range(SEEDS)]
    assert [task.seeds for task in tasks.values()] == [list(range(n, n + 10)) for n in range(0, SEEDS, 10)]
    assert all(task.is_complete for task in tasks.values())
    endings = read_endings(deployment.log, CrawlTopics.beside(deployment.scrapy_settings))
    closed = [name for name in tasks if (ending := endings.get(name)) is not None and ending.is_closed]
    assert closed == ["chaos-000", "chaos-002"]
    assert [task.name for task in to_close] == ["chaos-001", "chaos-003"]  # scrapy task close


@pytest.mark.parametrize("feed", ["--soak 1"], indirect=True)
def test_a_soak_keeps_seeds_waiting_until_its_time_is_over(
    deployment: Deployment, feed: Feed, tasks: dict[str, ChaosTask]
) -> None:
    to_close: list[ChaosTask] = []
    feed.soak(1.5, lambda: 0, to_close.append)
    wait_until(lambda: not feed.waits_for, 600, "the end of the time")
    assert len(produced(deployment)) == len(set(produced(deployment))) == feed.count >= 50
    assert all(task.is_complete for task in tasks.values())
    assert to_close == [task for task in tasks.values() if not task.is_closed]


@pytest.mark.parametrize("feed", ["--soak 1"], indirect=True)
def test_a_feed_that_fails_ends_the_run(feed: Feed) -> None:
    feed.soak(60, lambda: 1 // 0, lambda _task: None)
    with pytest.raises(RuntimeError, match="seeds could not be produced"):
        wait_until(lambda: not feed.waits_for, 600, "the thread to end")


def test_a_command_that_fails_is_run_again_and_told_when_it_never_succeeds(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskCommands, "TRIES", 2)
    monkeypatch.setattr(TaskCommands, "PAUSE_SECONDS", 0.0)
    commands = TaskCommands(deployment)
    commands.ask("no-such-verb", ChaosTask("chaos-000"))
    commands.ask("close", task := ChaosTask("chaos-001"))
    wait_until(lambda: not commands.waits_for, 600, "the commands")
    commands.close()
    assert commands.failures >= 1
    assert commands.wrong[0].startswith("scrapy task no-such-verb chaos-000 failed 2 times")
    assert task.is_closed
