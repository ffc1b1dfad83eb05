"""Certificates of Kafka that are replaced on disk are taken by processes that go on."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from tests.acceptance import rights
from tests.acceptance.test_deaths import crawlers
from tests.real_servers import ROOT, servers
from tools.deployment.deployment import Deployment, Run, opened, wait_until
from tools.site.handle import Site

pytestmark = [pytest.mark.servers, pytest.mark.nightly]
TREES = 8
PAGES_OF_A_TREE = 13  # of tools/site/pages.py, down to DEPTH_LIMIT
NEW_SECRETS = """
set -euo pipefail
source "$1/task_shell/servers/secure.sh"
made=$2/../new && mkdir "$made"
make_authority "$made"
make_certificate "$made" server "/CN=127.0.0.1" "subjectAltName=IP:127.0.0.1,DNS:localhost"
for name in crawler admin; do make_certificate "$made" "$name" "/CN=$name" "extendedKeyUsage=clientAuth"; done
mv "$made"/* "$2"
"""


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A secured Kafka of this test's own."""
    folder = tmp_path_factory.mktemp("renewed")
    servers(folder, "start", "--secure", "kafka")
    try:
        yield folder
    finally:
        servers(folder, "kill", "kafka")


@pytest.fixture
def secured(folder: Path) -> dict[str, str]:
    words = shlex.split(servers(folder, "env", "kafka"))
    return dict(word.split("=", 1) for word in words if "=" in word)


@pytest.fixture
def deployment(tmp_path: Path, secured: dict[str, str]) -> Iterator[Deployment]:
    settings = {
        "SITE_KAFKA_BROKERS": secured["SITE_KAFKA_BROKERS"],
        "SITE_KAFKA_OPTIONS": secured["SITE_SERVERS_KAFKA_ADMIN_OPTIONS"],
        "SITE_LINKS_TO": "kafka",  # so that producers are at work as well
    }
    for deployment in opened(tmp_path, settings):
        admin = rights.admin(secured)
        topics = [NewTopic(deployment.topic, 4, 1), NewTopic(f"{deployment.topic}.dead-letters", 1, 1)]
        for made in admin.create_topics(topics).values():
            made.result()
        rights.grant_kafka(admin, [*rights.acls(deployment.settings)])
        yield deployment


HOSTS = 8


def produce(deployment: Deployment, site: Site, name: str) -> None:
    """Trees, of which each link leaves for the topic; the first page has the id that links to it get."""
    urls = [site.url(f"/graph/{name}{number}/0/0", number) for number in range(TREES)]
    deployment.produce([(url.encode(), json.dumps({"url": url}).encode()) for url in urls])


def began(run: Run) -> str:
    """The lines that say who begins to use new certificates."""
    return "\n".join(line for line in run.text().splitlines() if "begins to use them" in line)


def test_consumers_and_producers_of_kafka_take_new_certificates(
    deployment: Deployment, site: Site, secured: dict[str, str], folder: Path
) -> None:
    """Another authority for all; one process logs in by password, the other by certificate."""
    by_password = {"SITE_KAFKA_OPTIONS": secured["SITE_KAFKA_OPTIONS"]}
    by_certificate = {
        "SITE_KAFKA_BROKERS": secured["SITE_SERVERS_KAFKA_CERTIFICATE_BROKERS"],
        "SITE_KAFKA_OPTIONS": secured["SITE_SERVERS_KAFKA_CERTIFICATE_OPTIONS"],
    }
    runs = [deployment.start(**settings) for settings in (by_password, by_certificate)]
    for run in runs:
        run.wait_assigned()
    produce(deployment, site, "before")
    wait_until(deployment.is_done, 300, "the trees before")
    processes = [crawlers(run) for run in runs]

    secrets = folder / "secrets"
    subprocess.run(["bash", "-c", NEW_SECRETS, "-", str(ROOT), str(secrets)], check=True)
    servers(folder, "kill", "kafka")
    servers(folder, "start", "--secure", "kafka")
    for run in runs:
        wait_until(lambda run=run: "the consumer of seeds" in began(run), 300, "a new client")
        wait_until(lambda run=run: run.text().count("Assigned: ") > 1, 300, "partitions of the new client")
        wait_until(lambda run=run: "the producer" in began(run), 300, "a new producer")
    produce(deployment, site, "after")
    pages = 2 * TREES * PAGES_OF_A_TREE
    wait_until(lambda: len(deployment.documents()) >= pages, 300, "the pages after")
    wait_until(deployment.is_done, 300, "the trees after")
    assert [crawlers(run) for run in runs] == processes
    assert len(deployment.documents()) == pages
    assert deployment.dead_letters() == []
    for run in runs:
        run.terminate()
    assert [run.wait(300) for run in runs] == [0, 0]
    for run in runs:
        assert "Traceback" not in run.text()
        assert "starting again" not in run.text()
