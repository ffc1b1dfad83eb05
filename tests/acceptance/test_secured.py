"""Secured servers: TLS, users, and exactly the rights of docs/security.md."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from tests.real_servers import SHARED_FOLDER, servers
from tools.deployment import rights
from tools.deployment.deployment import Deployment, opened, wait_until
from tools.site.handle import Site

pytestmark = pytest.mark.servers
FOLDER = SHARED_FOLDER.with_name("tests-secured")
NAMES = ("kafka", "elasticsearch", "redis")


@pytest.fixture(scope="session")
def secured() -> Iterator[dict[str, str]]:
    """What `servers.sh env` prints for them."""
    servers(FOLDER, "start", "--secure", *NAMES, SITE_SERVERS_START_TIMEOUT_SECONDS="300")
    try:
        words = shlex.split(servers(FOLDER, "env", *NAMES))
        yield dict(word.split("=", 1) for word in words if "=" in word)
    finally:
        servers(FOLDER, "stop", *NAMES)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path / "record.jsonl", hosts=4) as site:
        yield site


@pytest.fixture
def deployment(tmp_path: Path, secured: dict[str, str]) -> Iterator[Deployment]:
    """As the administrator sees it; the processes get the rights of a crawler."""
    settings = {
        "SITE_KAFKA_BROKERS": secured["SITE_KAFKA_BROKERS"],
        "SITE_KAFKA_OPTIONS": secured["SITE_SERVERS_KAFKA_ADMIN_OPTIONS"],
        "SITE_ELASTICSEARCH_HOSTS": secured["SITE_ELASTICSEARCH_HOSTS"],
        "SITE_ELASTICSEARCH_OPTIONS": secured["SITE_ELASTICSEARCH_OPTIONS"],
        "SITE_SINKS": "elasticsearch",
    }
    for deployment in opened(tmp_path, settings):
        topics = [NewTopic(deployment.topic, 4, 1), NewTopic(f"{deployment.topic}.dead-letters", 1, 1)]
        admin = rights.admin(secured)
        for made in admin.create_topics(topics).values():
            made.result()
        yield deployment


def crawlers(deployment: Deployment, secured: Mapping[str, str]) -> dict[str, str]:
    """The settings of processes that may do what the page grants."""
    return {
        "SITE_KAFKA_OPTIONS": secured["SITE_KAFKA_OPTIONS"],
        "SITE_ELASTICSEARCH_OPTIONS": json.dumps(rights.api_key(deployment.settings, secured)),
    }


def grant(deployment: Deployment, secured: Mapping[str, str], without: str = "") -> None:
    rights.grant_kafka(rights.admin(secured), [*rights.acls(deployment.settings, without=without)])


def produce(deployment: Deployment, site: Site, count: int) -> set[str]:
    paths = [f"/plain/{number}" for number in range(count)]
    messages = [{"url": site.url(path), "meta": {"url_id": path, "NotExtract": True}} for path in paths]
    pairs = zip(paths, messages, strict=True)
    deployment.produce([(path.encode(), json.dumps(message).encode()) for path, message in pairs])
    return set(paths)


def test_a_crawl_with_the_least_rights_loses_nothing_over_a_kill(
    deployment: Deployment, site: Site, secured: dict[str, str]
) -> None:
    """Kafka by SCRAM, results by API key, the dupefilter in a Redis with TLS and ACLs."""
    grant(deployment, secured)
    rights.grant_redis(deployment.settings, secured)
    seeds = produce(deployment, site, 300)
    deployment.produce([(b"bad", b"no JSON")])
    settings = crawlers(deployment, secured) | {
        "SITE_DUPEFILTER": "redis",
        "SITE_REDIS_URL": secured["SITE_REDIS_URL"],
        "CONCURRENT_REQUESTS": "8",
    }
    first = deployment.start(**settings)
    first.wait_assigned()
    wait_until(deployment.documents, 60, "a first document")
    os.killpg(first.process.pid, signal.SIGKILL)
    second = deployment.start("--until-done", **settings)
    assert second.wait(120) == 0, second.text()[-3000:]
    assert set(deployment.documents()) == seeds
    assert [letter.value for letter in deployment.dead_letters()] == [b"no JSON"]
    assert deployment.statistics()
    assert "denied" not in second.text().lower()


def test_a_crawl_with_a_client_certificate(
    deployment: Deployment, site: Site, secured: dict[str, str]
) -> None:
    grant(deployment, secured)
    seeds = produce(deployment, site, 20)
    settings = crawlers(deployment, secured) | {
        "SITE_KAFKA_BROKERS": secured["SITE_SERVERS_KAFKA_CERTIFICATE_BROKERS"],
        "SITE_KAFKA_OPTIONS": secured["SITE_SERVERS_KAFKA_CERTIFICATE_OPTIONS"],
    }
    run = deployment.start("--until-done", **settings)
    assert run.wait(120) == 0, run.text()[-3000:]
    assert set(deployment.documents()) == seeds


def test_an_outage_of_secured_servers_loses_nothing(
    deployment: Deployment, site: Site, secured: dict[str, str]
) -> None:
    grant(deployment, secured)
    seeds = produce(deployment, site, 200)
    run = deployment.start(**crawlers(deployment, secured), CONCURRENT_REQUESTS="4")
    run.wait_assigned()
    servers(FOLDER, "kill", "elasticsearch")
    servers(FOLDER, "start", "--secure", "elasticsearch")
    wait_until(deployment.is_done, 120, "no lag")
    assert set(deployment.documents()) == seeds


@pytest.mark.parametrize(
    ("without", "named"),
    [
        ("--group site_spider", "the group {group}"),
        ("--topic seeds\n", "the topic {topic}"),
    ],
)
def test_a_missing_right_is_named_at_the_start(
    deployment: Deployment, secured: dict[str, str], without: str, named: str
) -> None:
    """One line, and an end: no loop that looks like an outage."""
    missing = without.strip()
    for setting, value in deployment.settings.items():
        for name, of in rights.NAMES.items():
            if of == setting and missing.endswith(name):
                missing = missing[: -len(name)] + value
    exact = [
        line
        for line in rights.renamed(rights.block("Kafka"), deployment.settings).splitlines()
        if missing in line
    ]
    assert exact
    bindings = [one for one in rights.acls(deployment.settings) if one.name != missing.split()[-1]]
    rights.grant_kafka(rights.admin(secured), bindings)
    run = deployment.start(**crawlers(deployment, secured))
    assert run.wait(60) in (69, 78), run.text()[-3000:]
    wanted = named.format(topic=deployment.topic, group=deployment.group)
    assert wanted in run.text(), run.text()[-3000:]
    assert "SITE_KAFKA_OPTIONS" in run.text()


def test_a_key_that_may_not_write_is_named(
    deployment: Deployment, site: Site, secured: dict[str, str]
) -> None:
    grant(deployment, secured)
    settings = crawlers(deployment, secured)
    settings["SITE_RESULTS_INDEX"] = "of-somebody-else"
    produce(deployment, site, 3)
    run = deployment.start(**settings)
    assert run.wait(60) in (69, 78), run.text()[-3000:]
    assert "of-somebody-else" in run.text()
    assert "SITE_ELASTICSEARCH_OPTIONS" in run.text()


def test_a_wrong_password_and_a_wrong_authority_end_the_start(
    deployment: Deployment, secured: dict[str, str], tmp_path: Path
) -> None:
    options = json.loads(secured["SITE_KAFKA_OPTIONS"])
    wrong = [
        options | {"sasl.password": "wrong"},
        {name: value for name, value in options.items() if name != "ssl.ca.location"},
    ]
    for given in wrong:
        run = deployment.start(**crawlers(deployment, secured) | {"SITE_KAFKA_OPTIONS": json.dumps(given)})
        assert run.wait(90) in (69, 78), run.text()[-3000:]
        assert "SITE_KAFKA_OPTIONS" in run.text(), run.text()[-3000:]
        assert options["sasl.password"] not in run.text()
