"""SITE_KAFKA_EXACTLY_ONCE over real Kafka: a reader of committed messages sees every result once."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from site_spider.ledger import metadata as commit_metadata
from tests.acceptance.test_deadly_seeds import crawlers
from tests.real_servers import own_kafka, servers, variable
from tools.deployment.deployment import Deployment, Run, opened, wait_until
from tools.site.handle import Site

__all__ = ["own_kafka"]

pytestmark = pytest.mark.servers

PARTITIONS = 4
PAGES_OF_A_TREE = 13  # of tools/site/pages.py, down to DEPTH_LIMIT

HOSTS = 4


@pytest.fixture
def deployment(tmp_path: Path, kafka_brokers: str) -> Iterator[Deployment]:
    yield from deployed(tmp_path, kafka_brokers)


def deployed(folder: Path, kafka_brokers: str) -> Iterator[Deployment]:
    """Over these brokers, with topics of its own."""
    settings = {
        "SITE_KAFKA_BROKERS": kafka_brokers,
        "SITE_SINKS": "kafka",
        "SITE_KAFKA_EXACTLY_ONCE": "true",
        "SITE_SINK_FLUSH_SECONDS": "0.3",
    }
    for deployment in opened(folder, settings):
        deployment.settings["SITE_RESULTS_TOPIC"] = f"results-{deployment.topic}"
        admin = AdminClient({"bootstrap.servers": kafka_brokers})
        topics = [NewTopic(deployment.topic, PARTITIONS, 1), NewTopic(results_topic(deployment), 2, 1)]
        for made in admin.create_topics(topics).values():
            made.result()
        yield deployment


def results_topic(deployment: Deployment) -> str:
    return deployment.settings["SITE_RESULTS_TOPIC"]


def committed_results(deployment: Deployment) -> list[dict[str, Any]]:
    """Every message of the results topic that a reader of committed ones gets, once no transaction is open.

    One of a killed process holds readers up until Kafka ends it, unless a process of the same name came back.
    """
    brokers = {"bootstrap.servers": deployment.settings["SITE_KAFKA_BROKERS"], "group.id": f"reader-{deployment.group}"}
    places = [TopicPartition(results_topic(deployment), number, 0) for number in (0, 1)]
    client = Consumer(brokers | {"isolation.level": "read_uncommitted"})
    ends = [client.get_watermark_offsets(place, 60)[1] for place in places]
    client.close()
    reading = {"isolation.level": "read_committed", "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    client = Consumer(brokers | reading)
    client.assign(places)
    found, at_end = [], set[int]()
    try:
        while len(at_end) < 2:
            message = client.poll(300)
            assert message is not None, "the results topic does not come to an end"
            if message.error() is None:
                found.append(json.loads(message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF and message.offset() >= ends[message.partition()]:
                at_end.add(message.partition())
        return found
    finally:
        client.close()


def produce(deployment: Deployment, site: Site, singles: list[str], trees: list[str]) -> None:
    """Seeds of one page each, and seeds with links; the path is the url_id."""

    def seed(path: str, **meta: bool) -> tuple[bytes, bytes]:
        value = {"url": site.url(path), "meta": {"url_id": path, **meta}}
        return path.encode(), json.dumps(value).encode()

    seeds = [seed(path, NotExtract=True) for path in singles] + [seed(path) for path in trees]
    random.Random(7).shuffle(seeds)
    deployment.produce(seeds)


def assert_each_once(deployment: Deployment, singles: list[str], trees: list[str]) -> None:
    results = committed_results(deployment)
    counted = Counter(result["url_id"] for result in results)
    assert {url_id: count for url_id, count in counted.items() if count > 1} == {}
    assert set(singles) | set(trees) <= counted.keys()
    found = Counter(result.get("seed_url_id") for result in results)
    assert {tree: found[tree] + 1 for tree in trees} == dict.fromkeys(trees, PAGES_OF_A_TREE)
    assert len(results) == len(singles) + PAGES_OF_A_TREE * len(trees)


def kill_a_crawler(run: Run, died: set[int]) -> None:
    """Kill -9, when it has made some progress since it began."""
    (victim,) = wait_until(lambda: set(crawlers(run)) - died, 300, "a crawler")
    died.add(victim)
    with suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)


def test_every_result_is_there_once_over_kills_and_a_rebalance(deployment: Deployment, site: Site) -> None:
    """150 pages and 10 trees; kill -9 twice at random moments; a second process comes and goes."""
    singles = [f"/slow/200/{number}" for number in range(150)]
    trees = [f"/graph/t{number}/0/0" for number in range(10)]
    chance, died = random.Random(), set[int]()
    first = deployment.start("-c", "4")
    for moment in range(2):
        more = len(site.entries()) + chance.randint(20, 40)
        produce(deployment, site, singles[moment::3], trees[moment::3])  # so there are more, however late it is
        wait_until(lambda more=more: len(site.entries()) > more, 300, "some progress")
        kill_a_crawler(first, died)
        if moment == 0:
            second = deployment.start("-c", "4")
            second.wait_assigned()
    produce(deployment, site, singles[2::3], trees[2::3])
    wait_until(lambda: len(site.entries()) > 170, 300, "most of it")
    second.terminate()
    assert second.wait(300) == 0
    wait_until(deployment.is_done, 300, "the end")
    first.terminate()
    assert first.wait(300) == 0
    assert len(died) == 2
    assert_each_once(deployment, singles, trees)
    left = [at.committed for at in deployment.log.progress(deployment.topic, deployment.group)]
    owners = {commit_metadata.decode(*position).owner for position in left if position is not None}
    assert owners == {""}  # also what is committed when leaving is a transaction, and passes


@pytest.mark.nightly
def test_every_result_is_there_once_over_the_death_of_the_broker(own_kafka: Path, tmp_path: Path, site: Site) -> None:
    """By -9 in mid-crawl, for longer than the session of a member lasts, and with commits under way."""
    singles = [f"/slow/100/{number}" for number in range(300)]
    trees = [f"/graph/b{number}/0/0" for number in range(10)]
    for deployment in deployed(tmp_path, variable(own_kafka, "SITE_KAFKA_BROKERS", "kafka")):
        produce(deployment, site, singles, trees)
        run = deployment.start("-c", "4", SITE_SINK_FLUSH_SECONDS="0.05")
        wait_until(lambda: len(site.entries()) > 100, 300, "some progress")
        servers(own_kafka, "kill", "kafka")
        time.sleep(12)
        servers(own_kafka, "start", "kafka")
        wait_until(deployment.is_done, 300, "the end")
        run.terminate()
        assert run.wait(300) == 0
        assert_each_once(deployment, singles, trees)
