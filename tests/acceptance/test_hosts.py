"""Trees and hosts that several processes share, over real Kafka: each page once, each host at its pace."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from site_spider.page.url import url_id
from tools.deployment.deployment import Deployment, Run, opened, wait_until
from tools.site.handle import Site, count_by_url

pytestmark = pytest.mark.servers
HOSTS = 6
DELAY_SECONDS = 0.2
NAMES = [f"n{number}" for number in range(8)]


@pytest.fixture
def deployment(tmp_path: Path, kafka_brokers: str) -> Iterator[Deployment]:
    """A topic of 8 partitions; results in the local store."""
    for deployment in opened(tmp_path, {"SITE_KAFKA_BROKERS": kafka_brokers}):
        admin = AdminClient({"bootstrap.servers": kafka_brokers})
        admin.create_topics([NewTopic(deployment.topic, 8, 1)])[deployment.topic].result()
        yield deployment


def produce(deployment: Deployment, urls: Sequence[str]) -> None:
    """Keyed by host, as `scrapy seed` does."""
    hosts = [url.split("/")[2].rpartition(":")[0] for url in urls]
    messages = [json.dumps({"url": url}).encode() for url in urls]
    deployment.produce([(host.encode(), value) for host, value in zip(hosts, messages, strict=True)])


def crossing(site: Site) -> list[str]:
    """Pages whose links lead to all hosts, over two levels."""
    return [site.url(f"/crossing/{HOSTS}/0/{name}", number % HOSTS) for number, name in enumerate(NAMES)]


def crossed(site: Site) -> set[str]:
    """What these lead to."""
    below = {
        site.url(f"/crossing/{HOSTS}/{level}/{name}", host)
        for level in (1, 2)
        for name in NAMES
        for host in range(HOSTS)
    }
    return below | set(crossing(site))


POLITE = {
    "SITE_HOST_OWNERSHIP": "true",
    "SITE_LINK_SCOPE": "any",
    "DOWNLOAD_DELAY": str(DELAY_SECONDS),
    "DOWNLOAD_DELAY_JITTER": "0",
    "CONCURRENT_REQUESTS_PER_DOMAIN": "1",
}


@pytest.mark.nightly
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_a_host_has_one_process_at_a_time_whatever_their_number(
    deployment: Deployment, site: Site, processes: int
) -> None:
    """Links and redirects to another process' host are that process' work; each page is fetched once.

    All have joined before: who joins in mid-crawl does not know which pages of its hosts another process
    has fetched, so what it fetches again depends on when it joins.
    """
    redirects = [site.url(f"/chain/302-302/{(n + 1) % HOSTS}-{(n + 2) % HOSTS}/{n}", n % HOSTS) for n in range(12)]
    run = deployment.start("-n", str(processes), **POLITE)
    wait_until(lambda: has_shares(run, processes), 300, "shares of all")
    produce(deployment, [*crossing(site), *redirects])
    wait_until(lambda: len(site.entries()) > 12 and deployment.is_done(), 300, "the end of the lag")
    run.terminate()
    assert run.wait(300) == 0
    entries = site.entries()
    assert max(entry.in_progress for entry in entries) == 1
    documents = deployment.documents()
    assert {documents[url_id(url)]["final_url"] for url in crossed(site)} == crossed(site)
    for number, url in enumerate(redirects):
        document = documents[url_id(url)]
        landed = site.url(f"/landed/{number}", (number + 2) % HOSTS)
        assert (document["url"], document["final_url"], document["redirects"]) == (url, landed, 2)
        assert document["status"] == 200
    assert len(documents) == len(crossed(site)) + len(redirects)
    asked = count_by_url(entries)
    assert {asked[url] for url in crossed(site)} == {1}
    assert deployment.dead_letters() == []


def has_shares(run: Run, processes: int) -> bool:
    """Whether each process owns its share of the 8 partitions, by what they log."""
    owned: Counter[str] = Counter()
    for process, verb, names in re.findall(r"(\S+) .*(Assigned|Revoked): (seeds-.+)", run.text()):
        owned[process] += len(names.split(",")) * (1 if verb == "Assigned" else -1)
    return sorted(owned.values()) == [8 // processes] * processes
