"""Servers that go away while a crawl runs: it waits, says so once, and goes on by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.deployment.deployment import Deployment, wait_until
from tools.deployment.relay import Fault, Relay, kafka_relay
from tools.site.handle import Site

pytestmark = pytest.mark.servers
SEEDS = 400
AWAY = {"kafka": "(SITE_KAFKA_BROKERS) does not answer", "elasticsearch": "Sink elasticsearch is away"}


@pytest.fixture
def relays(kafka_brokers: str, elasticsearch_hosts: str) -> Iterator[dict[str, Relay]]:
    """What crawlers reach the servers through."""
    with kafka_relay(kafka_brokers) as kafka, Relay(elasticsearch_hosts.removeprefix("http://")) as other:
        yield {"kafka": kafka, "elasticsearch": other}


def test_kafka_and_elasticsearch_that_go_away_in_mid_crawl_lose_nothing(
    on_servers: Deployment, site: Site, relays: dict[str, Relay]
) -> None:
    """One after the other: connections are reset and refused for a while, in the same crawl."""
    paths = [f"/slow/50/{number}" for number in range(SEEDS)]
    on_servers.produce_pages(site.url, paths[::3], 20)
    run = on_servers.start(
        *("-c", "4"),
        SITE_KAFKA_BROKERS=relays["kafka"].address,
        SITE_ELASTICSEARCH_HOSTS=f"http://{relays['elasticsearch'].address}",
    )
    for part, (name, after) in enumerate({"elasticsearch": 50, "kafka": 150}.items(), 1):
        wait_until(lambda after=after: len(site.entries()) > after, 300, "the crawl under way")
        relays[name].begin(Fault.REFUSE)
        on_servers.produce_pages(site.url, paths[part::3], 20)  # so that there is more to store, however late it is
        wait_until(lambda name=name: AWAY[name] in run.text(), 300, f"a line about {name}")
        relays[name].heal()
    wait_until(on_servers.is_done, 300, "the end of the lag")
    run.terminate()
    assert run.wait(300) == 0
    assert set(on_servers.documents()) == set(paths)
    assert on_servers.dead_letters() == []
    assert "Traceback" not in run.text()
    warnings = [line for line in run.text().splitlines() if " WARNING: " in line]
    assert len(warnings) < 20, "\n".join(warnings)
