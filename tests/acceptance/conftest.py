"""What several acceptance tests run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_servers import make_topic
from tools.deployment.deployment import Deployment, opened
from tools.site.handle import Site

PARTITIONS = 4


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    """Of 20 hosts, or as many as a module wants."""
    with Site(tmp_path / "record.jsonl", hosts=getattr(request.module, "HOSTS", 20)) as site:
        yield site


@pytest.fixture
def deployment(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Deployment]:
    """Results in the local store, with the settings of the module; seeds in Kafka where it says so."""
    settings = dict(getattr(request.module, "SETTINGS", {}))
    if getattr(request.module, "ON_KAFKA", False):
        settings["SITE_KAFKA_BROKERS"] = request.getfixturevalue("kafka_brokers")
    yield from opened(tmp_path, settings)


@pytest.fixture
def on_servers(tmp_path: Path, kafka_brokers: str, elasticsearch_hosts: str) -> Iterator[Deployment]:
    """Kafka with 4 partitions, results and statistics in Elasticsearch."""
    servers = {
        "SITE_KAFKA_BROKERS": kafka_brokers,
        "SITE_ELASTICSEARCH_HOSTS": elasticsearch_hosts,
        "SITE_SINKS": "elasticsearch",
    }
    for deployment in opened(tmp_path, servers):
        make_topic(kafka_brokers, deployment.topic, PARTITIONS)
        yield deployment
