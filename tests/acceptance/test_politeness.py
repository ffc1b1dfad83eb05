"""Politeness as the site's own log has it: one process, real connections, no server of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.deployment.deployment import Deployment, opened, wait_until
from tools.site.exchange import host_name
from tools.site.handle import Entry, Site

HOSTS = 4


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    yield from opened(tmp_path, {})


def produce(deployment: Deployment, site: Site, count: int, path: str = "page", hosts: int = 4) -> list[str]:
    urls = [site.url(f"/{path}/{number}", host) for number in range(count) for host in range(hosts)]
    seeds = [{"url": url, "meta": {"url_id": url, "NotExtract": True}} for url in urls]
    deployment.produce([(b"k", json.dumps(seed).encode()) for seed in seeds])
    return urls


def by_host(site: Site) -> dict[str, list[Entry]]:
    entries = sorted(site.wait_for(2 * 31, 300), key=lambda entry: entry.time)
    return {name: [e for e in entries if e.host == name] for name in map(host_name, range(site.hosts))}


def test_robots_txt_and_the_number_of_requests_at_a_time_hold_in_the_log_of_the_site(
    deployment: Deployment, site: Site
) -> None:
    """One request for robots.txt; CONCURRENT_REQUESTS_PER_DOMAIN is reached and not passed."""
    produce(deployment, site, 30, "slow/50", hosts=2)
    forbidden = produce(deployment, site, 2, "disallowed", hosts=2)
    deployment.start(ROBOTSTXT_OBEY="1", CONCURRENT_REQUESTS_PER_DOMAIN="3").wait_assigned()
    wait_until(deployment.is_done, 300, "no lag")
    documents = deployment.documents()
    assert {documents[url]["description"] for url in forbidden} == {"Forbidden by robots.txt"}
    for name, entries in by_host(site).items():
        paths = [entry.path.split("/")[1] for entry in entries]
        assert paths == (["robots.txt"] + ["slow"] * 30 if name in map(host_name, range(2)) else [])
    assert max(entry.in_progress for entry in site.entries()) == 3
