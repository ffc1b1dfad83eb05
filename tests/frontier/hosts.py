"""Hosts, one of them slow, for the tests of the frontier."""

from __future__ import annotations

from site_spider.frontier.host_queue import HostPolicy

HOSTS = ["a", "b", "c", "slow"]
MAX_WAIT = 50.0


def policy(host: str) -> HostPolicy:
    return HostPolicy(1, 3.0) if host == "slow" else HostPolicy(2, 0.0)
