"""Seeds of chaos.sh are produced once each, and their tasks close behind them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from site_spider.errors import TopicMissing
from site_spider.tasks.control_log import read_endings
from site_spider.tasks.follower import TaskTopics
from tools.chaos.feed import AlongFeed, Feed, Portions
from tools.chaos.options import Options, read_options
from tools.chaos.roster import ChaosTask, Roster
from tools.chaos.workload import Workload
from tools.deployment.deployment import Deployment, opened, wait_until

SEEDS = 40


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    yield from opened(tmp_path, {"SITE_KAFKA_BROKERS": ""})


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return read_options(["--folder", str(tmp_path), "--seeds", str(SEEDS), "--tasks", "4"])


@pytest.fixture
def roster() -> Roster:
    return Roster()


@pytest.fixture
def feed(deployment: Deployment, options: Options, roster: Roster) -> Iterator[Feed]:
    feed = Feed(Workload(options, 80, [deployment.topic]), deployment, roster)
    yield feed
    feed.close()


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
    deployment: Deployment, options: Options, feed: Feed, roster: Roster
) -> None:
    portions = Portions(feed, Workload(options, 80, [deployment.topic]), SEEDS, 2)
    portions.next()
    assert len(produced(deployment)) == feed.count == 36
    assert closed(deployment) == ["chaos-000", "chaos-002"]
    assert [task.is_complete for task in roster.all()] == [True, True, True, False]
    portions.next()
    assert feed.count == 38
    portions.next()
    assert produced(deployment) == [f"seed-{seed:06d}" for seed in range(SEEDS)]
    assert [task.seeds for task in roster.all()] == [list(range(n, n + 10)) for n in range(0, SEEDS, 10)]
    assert all(task.is_complete for task in roster.all())
    assert closed(deployment) == ["chaos-000", "chaos-002"]  # the others: scrapy task close
    assert set(feed.places) == set(range(SEEDS))


def test_a_topic_that_is_created_again_gets_as_many_seeds_besides(
    deployment: Deployment, feed: Feed, options: Options
) -> None:
    portions = Portions(feed, Workload(options, 80, [deployment.topic]), SEEDS, 1)
    portions.next()
    produced_first = feed.count
    partition = feed.places[0].partition
    mine = [seed for seed, place in feed.places.items() if place.partition == partition]
    committed = {partition: feed.places[mine[1]].offset}
    gone = feed.delete(deployment.topic, committed)
    assert gone == len(feed.deleted) == produced_first - 1
    assert mine[0] not in feed.deleted  # the only one that the group has committed
    portions.again(gone)
    assert feed.count == produced_first + gone
    assert feed.delete(deployment.topic, {}) == gone  # of the first topic nothing is gone once more
    portions.next()
    assert feed.count == SEEDS + gone


def test_a_soak_keeps_seeds_waiting_until_its_time_is_over(
    deployment: Deployment, feed: Feed, roster: Roster
) -> None:
    to_close: list[ChaosTask] = []
    along = AlongFeed(feed, 1.5, lambda: 0, to_close.append)
    along.start()
    wait_until(lambda: not along.waits_for, 30, "the end of the time")
    along.look()
    assert len(produced(deployment)) == len(set(produced(deployment))) == feed.count >= 50
    assert all(task.is_complete for task in roster.all())
    assert to_close == [task for task in roster.all() if not task.is_closed]


def test_a_feed_that_fails_ends_the_run(feed: Feed) -> None:
    along = AlongFeed(feed, 60, lambda: 1 // 0, lambda _task: None)
    along.start()
    wait_until(lambda: not along.waits_for, 10, "the thread to end")
    with pytest.raises(RuntimeError, match="seeds could not be produced"):
        along.look()
