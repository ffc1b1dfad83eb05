"""Trees and hosts that several processes share, over real Kafka: each page once, each host at its pace."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from site_spider.page.url import url_id
from tools.deployment.deployment import Deployment, Run, opened, wait_until
from tools.site.handle import Entry, Site, count_by_url

pytestmark = pytest.mark.servers
HOSTS = 6
DELAY_SECONDS = 0.2
STRIDE = 10  # requests in a row that are looked at
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


def too_fast(entries: list[Entry]) -> list[str]:
    """Where a host was asked more often than its delay allows, ten requests in a row."""
    by_host: dict[str, list[float]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: entry.time):
        by_host[entry.host].append(entry.time)
    least = (STRIDE - 1) * DELAY_SECONDS * 0.9  # clocks and sockets are not exact
    return [
        f"{host}: {STRIDE} requests in {later - earlier:.2f} s"
        for host, times in by_host.items()
        for earlier, later in zip(times, times[STRIDE - 1 :], strict=False)
        if later - earlier < least
    ]


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
    redirects = [
        site.url(f"/chain/302-302/{(n + 1) % HOSTS}-{(n + 2) % HOSTS}/{n}", n % HOSTS) for n in range(12)
    ]
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


@pytest.mark.nightly
def test_a_rebalance_overlaps_shortly_at_most(deployment: Deployment, site: Site) -> None:
    """A process comes, another leaves: only pages that were under way then may come too soon."""
    pages = [site.url(f"/page/{number}", number % HOSTS) for number in range(HOSTS * 60)]
    produce(deployment, [*pages, *crossing(site)])
    first = deployment.start(**POLITE)
    wait_until(lambda: len(site.entries()) > HOSTS * 12, 300, "the crawl under way")
    second = deployment.start("--until-done", **POLITE)
    second.wait_assigned()
    wait_until(lambda: len(site.entries()) > HOSTS * 40, 300, "some time together")
    first.terminate()
    assert first.wait(300) == 0
    assert second.wait(300) == 0
    entries = site.entries()
    # each of the two changes may cost a host one request more in a stretch of ten
    assert len(too_fast(entries)) <= 2 * STRIDE
    assert max(entry.in_progress for entry in entries) <= 2
    assert set(deployment.documents()) == {url_id(url) for url in {*pages, *crossed(site)}}


@pytest.mark.nightly
def test_a_tree_is_spread_over_the_processes(deployment: Deployment, site: Site) -> None:
    """With SITE_LINKS_TO=kafka: the pages of a crawl in memory, each fetched once or nearly."""
    seeds = [site.url(f"/graph/g{number}/0/0", number % HOSTS) for number in range(30)]
    runs = [deployment.start(SITE_LINKS_TO="kafka", DOWNLOAD_DELAY="0.05") for _ in range(2)]
    for run in runs:
        run.wait_assigned()
    produce(deployment, seeds)
    wait_until(lambda: len(site.entries()) > len(seeds) and deployment.is_done(), 300, "the end of the lag")
    for run in runs:
        run.terminate()
    assert [run.wait(300) for run in runs] == [0, 0]
    documents = deployment.documents()
    tree = {
        site.url(f"/graph/g{seed}/{level}/{number}", seed % HOSTS)
        for seed in range(30)
        for level in (1, 2, 3)
        for number in range(3)
    }
    asked = count_by_url(site.entries())
    assert {url for url in asked if "/graph/" in url} == tree | set(seeds)
    assert sum(asked[url] for url in tree) <= 1.02 * len(tree)
    found = {url: documents[url_id(url)] for url in tree}
    assert {document["depth"] for document in found.values()} == {1, 2, 3}
    assert {document["seed_url_id"] for document in found.values()} == {url_id(url) for url in seeds}
    fetched: dict[str, int] = {}
    for one in deployment.statistics():
        fetched[one["process"]] = max(fetched.get(one["process"], 0), one["total_num"])
    assert len(fetched) == 2
    assert min(fetched.values()) > 50
    assert deployment.dead_letters() == []
