"""Real processes, a real Prometheus and four troubles: of each the right alert fires, and clears."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.prometheus import Prometheus, free_ports, prometheus
from tests.acceptance.test_deaths import crawlers
from tools.deployment.deployment import Deployment, opened, wait_until
from tools.deployment.relay import Fault, Relay
from tools.site.handle import Site

pytestmark = [pytest.mark.servers, pytest.mark.nightly]


@pytest.fixture
def sink(elasticsearch_hosts: str) -> Iterator[Relay]:
    with Relay(elasticsearch_hosts.removeprefix("http://")) as relay:
        yield relay


@pytest.fixture
def deployment(tmp_path: Path, sink: Relay) -> Iterator[Deployment]:
    settings = {
        "SITE_SINKS": "elasticsearch",
        "SITE_ELASTICSEARCH_HOSTS": f"http://{sink.address}",
        "SITE_KAFKA_BROKERS": "",
    }
    settings |= {"SPIDER_MODULES": "tests.acceptance.blocking_spider", "PYTHONPATH": str(Path.cwd())}
    yield from opened(tmp_path, settings)


_numbers = count()


def produce(deployment: Deployment, site: Site, path: str, seeds: int) -> None:
    messages: list[tuple[bytes | None, bytes | None]] = []
    for number in range(seeds):
        url = site.url(path, number % 20)
        seed = {"url": url, "meta": {"url_id": f"{next(_numbers)}", "NotExtract": True}, "dont_filter": True}
        messages.append((str(number).encode(), json.dumps(seed).encode()))
    deployment.produce(messages)


def test_four_troubles_each_fire_their_alert_and_clear(
    deployment: Deployment, site: Site, sink: Relay, tmp_path: Path
) -> None:
    port = free_ports(2)
    targets = [f"127.0.0.1:{port + number}" for number in range(2)]
    deployment.produce([(b"key", b"{}")])  # the topic is there
    run = deployment.start("-n", "2", "-s", "blocking", SITE_METRICS_ADDRESS=targets[0])
    with prometheus(tmp_path / "prometheus", targets) as server:
        wait_until(lambda: run.text().count("Taking seeds") >= 2, 300, "both processes")
        server.clears("SiteSpiderDown")

        _bad_seeds(server, deployment)
        _sink_away(server, deployment, site, sink)
        _process_killed(server, deployment)
        _loop_blocked(server, deployment, site)

        wait_until(deployment.is_done, 300, "the end of the lag")
        assert "SiteSpiderNotConserved" not in server.firing()
    run.terminate()
    assert run.wait(300) == 0


def _bad_seeds(server: Prometheus, deployment: Deployment) -> None:
    server.clears("SiteSpiderDeadLetters")

    def fires() -> dict[str, Any] | None:
        """A busy machine misses scrapes, and the short range may then hold no sample from before."""
        deployment.produce([(b"key", b"no seed")] * 3)
        return server.firing().get("SiteSpiderDeadLetters")

    alert = wait_until(fires, 300, "the alert of dead letters")
    assert "dead letters of group-" in alert["annotations"]["summary"]
    server.clears("SiteSpiderDeadLetters")


def _sink_away(server: Prometheus, deployment: Deployment, site: Site, sink: Relay) -> None:
    sink.begin(Fault.REFUSE)
    produce(deployment, site, "/slow/50/1", 40)
    alert = server.fires("SiteSpiderSinkAway")
    assert alert["labels"]["sink"] == "elasticsearch"
    sink.heal()
    server.clears("SiteSpiderSinkAway")


def _process_killed(server: Prometheus, deployment: Deployment) -> None:
    assert "SiteSpiderDown" not in server.firing()
    os.kill(crawlers(deployment.runs[0], "blocking")[0], signal.SIGKILL)
    assert server.fires("SiteSpiderDown")["annotations"]["summary"].endswith("does not answer: up is 0")
    server.clears("SiteSpiderDown")
    [restarts] = server.asked('query?query=sum(site_spider_process_restarts_total{exit_code="137"})')[
        "result"
    ]
    assert restarts["value"][1] == "1"


def _loop_blocked(server: Prometheus, deployment: Deployment, site: Site) -> None:
    server.clears("SiteSpiderLoopBlocked")
    produce(deployment, site, "/slow/50/2?block=9", 1)
    assert "stands still for" in server.fires("SiteSpiderLoopBlocked")["annotations"]["summary"]
    server.clears("SiteSpiderLoopBlocked")
