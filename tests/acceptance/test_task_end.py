"""The end of a task with real processes that are killed: never told too early, and always told."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from site_spider.errors import TopicMissing
from site_spider.service.seed_producer import SeedProducer
from tests.acceptance.test_deaths import crawlers
from tests.adapters.raw_server import Asked, Said, answering, said
from tools.deployment.deployment import Deployment, Run, opened, wait_until

pytestmark = pytest.mark.servers

END_SECONDS = 300
TREES = 12
HOSTS = 5
PAGES = 7  # of a tree: one, two and four


class TreeSite:
    """Binary trees of pages on some hosts, so that they lie in several partitions; counts what it serves."""

    def __init__(self, stack: ExitStack) -> None:
        self.served: Counter[str] = Counter()
        hosts = [f"127.0.0.{host}" for host in range(1, HOSTS + 1)]
        self._addresses = [stack.enter_context(answering(self._page, host)) for host in hosts]

    def _page(self, asked: Asked) -> Said:
        self.served[asked.path] += 1
        time.sleep(0.02)
        tree, _, number = asked.path.strip("/").partition("/")
        child = 2 * int(number or 0) + 1
        links = "".join(f'<a href="/{tree}/{each}">x</a>' for each in (child, child + 1) if each < PAGES)
        return said(f"<html><body>{links} {asked.path}</body></html>".encode(), kind="text/html")

    def seeds(self) -> list[str]:
        return [f"{self._addresses[tree % HOSTS]}/{tree}/0" for tree in range(TREES)]

    def pages(self) -> set[str]:
        return {f"{seed[:-1]}{number}" for seed in self.seeds() for number in range(PAGES)}


@pytest.fixture
def site() -> Iterator[TreeSite]:
    with ExitStack() as stack:
        yield TreeSite(stack)


SETTINGS = {"SITE_LINKS_TO": "kafka", "ROBOTSTXT_OBEY": "false", "LOG_LEVEL": "INFO"}


@pytest.fixture(params=["kafka", "embedded"])
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    if request.param == "embedded":
        yield from opened(tmp_path, dict(SETTINGS))
        return
    brokers = request.getfixturevalue("kafka_brokers")
    for deployment in opened(tmp_path, {**SETTINGS, "SITE_KAFKA_BROKERS": brokers}):
        admin = AdminClient({"bootstrap.servers": brokers})
        admin.create_topics([NewTopic(deployment.topic, 4, 1)])[deployment.topic].result()
        yield deployment


def events(deployment: Deployment) -> list[dict[str, Any]]:
    try:
        return [
            json.loads(message.value or b"")
            for message in deployment.log.read(f"{deployment.topic}.task-events")
        ]
    except TopicMissing:
        return []


def scrapy(deployment: Deployment, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("scrapy")
    return subprocess.run(
        [program, *arguments],
        env=deployment.environment(),
        capture_output=True,
        text=True,
        timeout=END_SECONDS,
        check=False,
    )


def produce(deployment: Deployment, site: TreeSite) -> None:
    with SeedProducer(deployment.scrapy_settings, task_id="job", closes_task=True) as seeds:
        for seed in site.seeds():
            seeds.send(seed)
    assert seeds.produced == TREES


def kill_one(run: Run, rng: random.Random) -> None:
    """Any of the crawlers, by -9."""
    with suppress(ProcessLookupError):
        os.kill(rng.choice(wait_until(lambda: crawlers(run), 300, "a crawler")), signal.SIGKILL)


@pytest.mark.nightly
def test_the_end_is_told_with_exact_counts_over_a_kill_and_wait_ends(
    deployment: Deployment, site: TreeSite
) -> None:
    produce(deployment, site)
    run = deployment.start("-n", "2")
    wait_until(lambda: sum(site.served.values()) > 20, 300, "the crawl under way")
    kill_one(run, random.Random())
    waited = scrapy(deployment, "task", "wait", "job", "--json")
    told = {document["url"] for document in deployment.documents().values()}
    assert waited.returncode == 0, waited.stderr
    assert told == site.pages()
    event = json.loads(waited.stdout)
    assert event["event"] == "done"
    assert event["seeds"] == {"result": TREES, "total": TREES}  # as they were sent; links stand in `moved`
    assert event["pages"] == TREES * PAGES
    assert event["bytes"] == sum(document["response_size"] for document in deployment.documents().values())
    assert [event["generation"] for event in events(deployment)] == [1]
