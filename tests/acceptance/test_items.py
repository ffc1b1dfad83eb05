"""Items of a spider of one's own, with real Kafka and Elasticsearch and processes that are killed."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.test_deaths import crawlers
from tests.adapters.raw_server import Asked, Said, answering, said
from tools.deployment.deployment import Deployment, opened, wait_until

OWN = {"TOPIC": "SITE_SEED_TOPIC", "GROUP": "SITE_CONSUMER_GROUP"}
MODULE = ("--", "-s", "SPIDER_MODULES=tests.acceptance.shop_spider")
LISTS, DETAILS, OFFERS = 10, 8, 3


KILLED = threading.Event()  # one detail has no answer before the crawler has been


@pytest.fixture
def shop() -> Iterator[str]:
    """Lists of details of offers."""

    def page(asked: Asked) -> Said:
        if asked.path == "/detail/0/0":
            KILLED.wait(300)
        if asked.path.startswith("/list/"):
            number = asked.path.rpartition("/")[2]
            body = "".join(f'<a class="detail" href="/detail/{number}/{n}">d</a>' for n in range(DETAILS))
        else:
            body = "<title>t</title>" + "".join(f"<li>{asked.path} offer {n}</li>" for n in range(OFFERS))
        return said(body.encode(), kind="text/html")

    with answering(page) as address:
        yield address


@pytest.fixture
def deployment(tmp_path: Path, kafka_brokers: str, elasticsearch_hosts: str) -> Iterator[Deployment]:
    settings = {
        "SITE_KAFKA_BROKERS": kafka_brokers,
        "SITE_SINKS": "elasticsearch",
        "SITE_ELASTICSEARCH_HOSTS": elasticsearch_hosts,
    }
    yield from opened(tmp_path, settings)


@pytest.mark.nightly
@pytest.mark.servers
def test_every_item_is_there_once_though_processes_are_killed(deployment: Deployment, shop: str) -> None:
    """Of 10 lists of 8 details with 3 offers each; and each page has its result.

    The topic and the group are those of the spider's custom_settings, for the watcher that ends it as well.
    """
    seeds = [
        json.dumps({"url": f"{shop}/list/{n}", "meta": {"url_id": f"list-{n}", "task_id": "spring"}}).encode()
        for n in range(LISTS)
    ]
    deployment.produce([(b"127.0.0.1", seed) for seed in seeds])
    own = {f"SHOP_{name}": deployment.settings.pop(of) for name, of in OWN.items()}
    run = deployment.start("-s", "shop", "--until-done", *MODULE, **own)
    wait_until(deployment.items, 300, "the first items")
    (victim,) = crawlers(run, "shop")
    os.kill(victim, signal.SIGKILL)
    KILLED.set()
    assert run.wait(300) == 0, run.text()
    items = deployment.items()
    offers = [item["offer"] for item in items.values()]
    assert len(set(offers)) == len(offers) == LISTS * DETAILS * OFFERS
    assert {item["task"] for item in items.values()} == {"spring"}
    for key, item in items.items():
        place = int(str(item["offer"]).rpartition(" ")[2]) + 1
        assert key == f"{item['_page']['url_id']}-{place}"
    documents = deployment.documents()
    assert len(documents) == LISTS * (1 + DETAILS)
    assert {document["description"] for document in documents.values()} == {None}
    assert deployment.dead_letters() == []
