"""Packets between a crawler and Kafka vanish: no reset, no answer."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.real_servers import make_topic
from tools.deployment.deployment import ROOT, Deployment, wait_until
from tools.deployment.relay import Fault, Relay, kafka_relay
from tools.site.handle import Site

pytestmark = [pytest.mark.servers, pytest.mark.nightly]
ON_KAFKA = True
SEEDS = 1500
SESSION_SECONDS = 10
DOWNLOAD_SECONDS = 0.1  # of one page


@pytest.fixture
def relay(kafka_brokers: str) -> Iterator[Relay]:
    with kafka_relay(kafka_brokers) as relay:
        yield relay


def produce(deployment: Deployment, site: Site, brokers: str, count: int) -> list[str]:
    make_topic(brokers, deployment.topic, 8)
    paths = [f"/slow/{DOWNLOAD_SECONDS * 1000:.0f}/{number}" for number in range(count)]
    deployment.produce_pages(site.url, paths, 20)
    return paths


def frontier(deployment: Deployment) -> str:
    command = [str(ROOT / ".venv/bin/scrapy"), "frontier"]
    found = subprocess.run(command, cwd=ROOT, env=deployment.environment(), capture_output=True, text=True, check=False)
    return found.stdout


def asked(site: Site) -> int:
    return len(site.entries())


def test_nothing_begins_while_kafka_is_silent_and_all_goes_on_afterwards(
    deployment: Deployment, site: Site, kafka_brokers: str, relay: Relay
) -> None:
    """Downloads pause within a session's length, a warning comes soon, `scrapy frontier` says why."""
    paths = produce(deployment, site, kafka_brokers, SEEDS)
    run = deployment.start("-c", "4", SITE_KAFKA_BROKERS=relay.address)
    wait_until(lambda: asked(site) > 100, 300, "the crawl under way")
    relay.begin(Fault.SWALLOW)
    silent_at = time.monotonic()
    wait_until(lambda: "has not answered a commit" in run.text(), 300, "a warning")
    wait_until(lambda: "does not answer, so other members" in frontier(deployment), 300, "the reason")
    wait_until(lambda: time.monotonic() > silent_at + SESSION_SECONDS + 1, 300, "the end of a session")
    before = asked(site)
    time.sleep(8)  # longer than the session, from then on nothing changes
    assert asked(site) == before < len(paths) - 200
    relay.heal()
    wait_until(lambda: asked(site) > before, 300, "the crawl to go on")
    wait_until(deployment.is_done, 300, "the end of the lag")
    run.terminate()
    assert run.wait(300) == 0
    assert set(deployment.documents()) == set(paths)
    assert deployment.dead_letters() == []
