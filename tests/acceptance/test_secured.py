"""Secured servers: TLS, users, and exactly the rights of docs/security.md."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import admin as kafka

from site_spider.contracts.seed_log import Message
from tests.acceptance import rights
from tests.acceptance.test_main_job import Stored, check_dead_letters, mixed
from tests.acceptance.test_ordinary_starts import STOOD_STILL
from tests.acceptance.test_tasks import done, seeds
from tests.real_servers import SHARED_FOLDER, servers
from tools.deployment.deployment import Deployment, opened, wait_until
from tools.site.bad_messages import bad_messages
from tools.site.handle import Site

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("secured")]
FOLDER = SHARED_FOLDER.with_name("tests-secured")
NAMES = ("kafka", "elasticsearch", "redis")
SEEDS = 150  # of the main job


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
        topics = [kafka.NewTopic(deployment.topic, 4, 1), kafka.NewTopic(f"{deployment.topic}.dead-letters", 1, 1)]
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


def grant(deployment: Deployment, secured: Mapping[str, str]) -> None:
    rights.grant_kafka(rights.admin(secured), [*rights.acls(deployment.settings)])


def by_certificate(secured: Mapping[str, str]) -> dict[str, str]:
    """The same user by another listener."""
    return {
        "SITE_KAFKA_BROKERS": secured["SITE_SERVERS_KAFKA_CERTIFICATE_BROKERS"],
        "SITE_KAFKA_OPTIONS": secured["SITE_SERVERS_KAFKA_CERTIFICATE_OPTIONS"],
    }


def with_redis(deployment: Deployment, secured: Mapping[str, str]) -> dict[str, str]:
    """A dupefilter in a Redis with TLS and ACLs."""
    rights.grant_redis(deployment.settings, secured)
    return {"SITE_DUPEFILTER": "redis", "SITE_REDIS_URL": secured["SITE_REDIS_URL"]}


def origin(letter: Message) -> tuple[bytes, bytes]:
    headers = dict(letter.headers)
    return headers["origin_partition"], headers["origin_offset"]


def test_the_main_job_with_the_least_rights_over_a_kill(
    deployment: Deployment, site: Site, secured: dict[str, str]
) -> None:
    """Seeds of all kinds, kill -9 in the middle, by a user who logs in by certificate."""
    grant(deployment, secured)
    settings = crawlers(deployment, secured) | with_redis(deployment, secured) | by_certificate(secured)
    # what a page that fails its first requests comes to depends on how often it was asked
    seeds = [seed for seed in site.seeds(SEEDS, rng_seed=3) if seed.kind != "too-flaky"]
    bad = bad_messages(site.port)
    deployment.produce(mixed(seeds, bad))
    first = deployment.start(**settings)
    wait_until(lambda: len(site.entries()) > SEEDS // 3, 300, "the crawl under way")
    os.killpg(first.process.pid, signal.SIGKILL)
    second = deployment.start("--until-done", **settings)
    assert second.wait(400) == 0, second.text()[-3000:]
    assert Stored(deployment.documents()).mistakes(seeds) == []
    letters = {origin(letter): letter for letter in deployment.dead_letters()}  # the dead one wrote some, too
    check_dead_letters(list(letters.values()), bad, deployment.topic)
    assert deployment.statistics()
    for run in deployment.runs:
        assert "denied" not in run.text().lower()
        assert "Traceback" not in run.text()


def test_tasks_with_the_least_rights_until_their_orders_may_not_be_read(
    deployment: Deployment, site: Site, secured: dict[str, str]
) -> None:
    """Paused, resumed and cancelled; then the right to read orders is taken while the process runs."""
    grant(deployment, secured)
    settings = crawlers(deployment, secured)

    def task(*order: str) -> int:
        command = [sys.executable, "-m", "scrapy", "task", *order]
        return subprocess.call(command, env=deployment.environment(**settings), timeout=300)

    assert [task("pause", "--new", "paused"), task("cancel", "--new", "cancelled")] == [0, 0]
    deployment.produce(seeds(site, "paused", 20) + seeds(site, "cancelled", 20))
    run = deployment.start(**settings)
    wait_until(deployment.is_done, 300, "nothing is left but what is parked")
    assert done(deployment, "paused") == 0
    orders = ("resume", "paused"), ("close", "paused"), ("wait", "paused"), ("wait", "cancelled")
    assert [task(*order) for order in orders] == [0, 0, 0, 3]
    assert done(deployment, "paused") == 20
    prefix = kafka.ResourceType.TOPIC, f"{deployment.topic}.", kafka.ResourcePatternType.PREFIXED
    reads = *prefix, None, None, kafka.AclOperation.READ, kafka.AclPermissionType.ANY
    admin = rights.admin(secured)  # which has to live until it has its answer
    [taken] = admin.delete_acls([kafka.AclBindingFilter(*reads)]).values()
    taken.result()
    said = f"Read and Describe on the topic {deployment.topic}.tasks;"
    wait_until(lambda: said in run.text(), 300, "the right that is missing")


def test_without_any_right_one_line_names_all_that_are_missing(deployment: Deployment, secured: dict[str, str]) -> None:
    """At the first contact; `scrapy service --check` says the same without a start."""
    run = deployment.start(**crawlers(deployment, secured))
    assert run.wait(300) == 78, run.text()[-3000:]
    said = [line for line in run.text().splitlines() if "] ERROR" in line or "] WARNING" in line]
    errors = [line for line in said if not any(words in line for words in STOOD_STILL)]
    topic, group = deployment.topic, deployment.group
    assert len(errors) == 1
    for name in (topic, f"{topic}.tasks"):
        assert f"Read and Write on the topic {name};" in errors[0]
    assert f"Read on the group {group};" in errors[0]
    assert "Traceback" not in run.text()


def test_a_key_that_may_not_write_is_named(deployment: Deployment, site: Site, secured: dict[str, str]) -> None:
    grant(deployment, secured)
    settings = crawlers(deployment, secured)
    settings["SITE_RESULTS_INDEX"] = "of-somebody-else"
    deployment.produce_pages(site.url, ["/slow/50/0"])
    run = deployment.start(**settings)
    assert run.wait(300) in (69, 78), run.text()[-3000:]
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
        assert run.wait(300) in (69, 78), run.text()[-3000:]
        assert "SITE_KAFKA_OPTIONS" in run.text(), run.text()[-3000:]
        assert options["sasl.password"] not in run.text()
