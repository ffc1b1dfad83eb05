"""Seeds of chaos.sh are produced once each, and their tasks close behind them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from site_spider.errors import TopicMissing
from site_spider.tasks.control_log import read_endings
from site_spider.tasks.follower import TaskTopics
from tools.chaos.feed import AlongFeed, Feed, Workload
from tools.chaos.plan import read_options
from tools.chaos.tasks import ChaosTask
from tools.deployment.deployment import Deployment, opened, wait_until

SEEDS = 40


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    yield from opened(tmp_path, {"SITE_KAFKA_BROKERS": ""})


def feed_of(deployment: Deployment, tasks: dict[str, ChaosTask], line: str, later: int = 0) -> Iterator[Feed]:
    options = read_options(["--folder", str(deployment.folder), "--seeds", str(SEEDS), *line.split()])
    feed = Feed(
        Workload(options, 80, [deployment.topic]), deployment, tasks if options.tasks else None, later
    )
    yield feed
    feed.close()


@pytest.fixture
def tasks() -> dict[str, ChaosTask]:
    return {}


@pytest.fixture
def feed(deployment: Deployment, tasks: dict[str, ChaosTask]) -> Iterator[Feed]:
    yield from feed_of(deployment, tasks, "--tasks 4", 2)


@pytest.fixture
def soak(deployment: Deployment, tasks: dict[str, ChaosTask]) -> Iterator[Feed]:
    yield from feed_of(deployment, tasks, "--soak 1")


def produced(deployment: Deployment) -> list[str]:
    try:
        messages = list(deployment.log.read(deployment.topic))
    except TopicMissing:
        return []
    return sorted(json.loads(message.value or b"")["meta"]["url_id"] for message in messages)


def closed(deployment: Deployment) -> list[str]:
    endings = read_endings(deployment.log, TaskTopics.read(deployment.scrapy_settings))
    tasks = {name: endings.get(name) for name in (f"chaos-{number:03d}" for number in range(4))}
    return [name for name, ending in tasks.items() if ending is not None and ending.is_closed]


def test_the_last_tenth_comes_in_portions_and_every_second_task_is_closed(
    deployment: Deployment, feed: Feed, tasks: dict[str, ChaosTask]
) -> None:
    feed.next_portion()
    assert len(produced(deployment)) == feed.count == 36
    assert closed(deployment) == ["chaos-000", "chaos-002"]
    assert [task.is_complete for task in tasks.values()] == [True, True, True, False]
    feed.next_portion()
    assert feed.count == 38
    feed.next_portion()
    assert produced(deployment) == [f"seed-{seed:06d}" for seed in range(SEEDS)]
    assert [task.seeds for task in tasks.values()] == [list(range(n, n + 10)) for n in range(0, SEEDS, 10)]
    assert all(task.is_complete for task in tasks.values())
    assert closed(deployment) == ["chaos-000", "chaos-002"]  # the others: scrapy task close
    assert set(feed.places) == set(range(SEEDS))


def test_a_topic_that_is_created_again_gets_as_many_seeds_besides(deployment: Deployment) -> None:
    [feed] = [feed for feed in feed_of(deployment, {}, "--tasks 0", 1) if _recreated(feed, deployment.topic)]
    assert feed.count == SEEDS + len(feed.deleted) // 2


def _recreated(feed: Feed, topic: str) -> bool:
    feed.next_portion()
    first = feed.count
    partition = feed.places[0].partition
    mine = [seed for seed, place in feed.places.items() if place.partition == partition]
    gone = feed.delete(topic, {partition: feed.places[mine[1]].offset})
    assert gone == len(feed.deleted) == first - 1
    assert mine[0] not in feed.deleted  # the only one that the group has committed
    feed.again(gone)
    assert feed.count == first + gone
    assert feed.delete(topic, {}) == gone  # of the first topic nothing is gone once more
    feed.next_portion()
    return True


def test_a_soak_keeps_seeds_waiting_until_its_time_is_over(
    deployment: Deployment, soak: Feed, tasks: dict[str, ChaosTask]
) -> None:
    to_close: list[ChaosTask] = []
    along = AlongFeed(soak, 1.5, lambda: 0, to_close.append)
    wait_until(lambda: not along.waits_for, 30, "the end of the time")
    along.look()
    assert len(produced(deployment)) == len(set(produced(deployment))) == soak.count >= 50
    assert all(task.is_complete for task in tasks.values())
    assert to_close == [task for task in tasks.values() if not task.is_closed]


def test_a_feed_that_fails_ends_the_run(soak: Feed) -> None:
    along = AlongFeed(soak, 60, lambda: 1 // 0, lambda _task: None)
    wait_until(lambda: not along.waits_for, 10, "the thread to end")
    with pytest.raises(RuntimeError, match="seeds could not be produced"):
        along.look()
