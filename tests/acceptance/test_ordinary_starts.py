"""An ordinary start, a crawl and a stop log no warning, with any number of processes and every sink."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.test_deadly_seeds import seeds
from tests.real_servers import make_topic
from tools.deployment.deployment import Deployment, opened, wait_until
from tools.site.handle import Site

PARTITIONS = 4
PAGES = 60
PROBLEMS = ("WARNING:", "ERROR:", "CRITICAL:", "Traceback")
STOOD_STILL = ("TimeoutError", "no answer ")  # the machine, or a server on it
HOSTS = 8


@pytest.fixture
def deployment(
    tmp_path: Path, kafka_brokers: str, elasticsearch_hosts: str, hbase_address: str
) -> Iterator[Deployment]:
    name = uuid.uuid4().hex[:10]
    host, _, port = hbase_address.rpartition(":")
    servers = {
        "SITE_KAFKA_BROKERS": kafka_brokers,
        "SITE_ELASTICSEARCH_HOSTS": elasticsearch_hosts,
        "SITE_HBASE_HOST": host,
        "SITE_HBASE_PORT": port,
        "SITE_HBASE_TABLE": f"results_{name}",
        "SITE_RESULTS_TOPIC": f"results-{name}",
        "SITE_SINKS": "local,elasticsearch,hbase,kafka",
    }
    for made in opened(tmp_path, servers):
        make_topic(kafka_brokers, made.topic, PARTITIONS)
        yield made


@pytest.mark.servers
@pytest.mark.parametrize("processes", [2, *(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 3, 4))])
def test_an_ordinary_start_logs_no_warning(deployment: Deployment, site: Site, processes: int) -> None:
    """Seeds wait already, so that processes crawl while others join."""
    deployment.produce(seeds(site, [f"/page/{number}" for number in range(PAGES)]))
    run = deployment.start("-n", str(processes))
    wait_until(lambda: run.text().count("Assigned: ") >= processes, 300, "all members")
    wait_until(deployment.is_done, 300, "the end of the crawl")
    run.terminate()
    assert run.wait(300) == 0
    said = [line for line in run.text().splitlines() if any(word in line for word in PROBLEMS)]
    assert [line for line in said if not any(words in line for words in STOOD_STILL)] == []
