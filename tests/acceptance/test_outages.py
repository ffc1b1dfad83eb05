"""Servers that go away while a crawl runs: it waits, says so once, and goes on by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_servers import servers, variable
from tools.deployment.deployment import Deployment, opened, wait_until
from tools.site.handle import Site

pytestmark = pytest.mark.servers
SEEDS = 900
QUICK_START = {"SITE_SERVERS_ELASTICSEARCH_JAVA_OPTS": "-XX:TieredStopAtLevel=1"}
AWAY = {"kafka": ("no answer", "does not answer", "is away", "cannot be"), "elasticsearch": ("is away",)}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path / "record.jsonl", hosts=20) as site:
        yield site


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Servers of this test's own, to be killed."""
    folder = tmp_path_factory.mktemp("servers")
    servers(folder, "start", "kafka", "elasticsearch", **QUICK_START)
    try:
        yield folder
    finally:
        servers(folder, "kill", "kafka", "elasticsearch")


@pytest.fixture
def deployment(tmp_path: Path, folder: Path) -> Iterator[Deployment]:
    yield from opened(
        tmp_path,
        {
            "SITE_KAFKA_BROKERS": variable(folder, "SITE_KAFKA_BROKERS", "kafka"),
            "SITE_ELASTICSEARCH_HOSTS": variable(folder, "SITE_ELASTICSEARCH_HOSTS", "elasticsearch"),
            "SITE_SINKS": "elasticsearch",
        },
    )


def test_kafka_and_elasticsearch_killed_in_mid_crawl_lose_nothing(
    deployment: Deployment, site: Site, folder: Path
) -> None:
    """kill -9 of one after the other, each away for a while, in the same crawl."""
    paths = [f"/slow/50/{number}" for number in range(SEEDS)]
    deployment.produce(
        [
            (
                b"key",
                json.dumps(
                    {"url": site.url(path, number % 20), "meta": {"url_id": path, "NotExtract": True}}
                ).encode(),
            )
            for number, path in enumerate(paths)
        ]
    )
    run = deployment.start("-c", "8")
    for name, after in (("elasticsearch", 100), ("kafka", 400)):
        wait_until(lambda after=after: len(site.entries()) > after, 90, "the crawl under way")
        servers(folder, "kill", name)
        wait_until(
            lambda name=name: any(word in run.text() for word in AWAY[name]), 60, f"a line about {name}"
        )
        servers(folder, "start", name, **QUICK_START)
    wait_until(deployment.is_done, 120, "the end of the lag")
    run.terminate()
    assert run.wait(60) == 0
    assert set(deployment.documents()) == set(paths)
    assert deployment.dead_letters() == []
    assert "Traceback" not in run.text()
    warnings = [line for line in run.text().splitlines() if " WARNING: " in line]
    assert len(warnings) < 20, "\n".join(warnings)
