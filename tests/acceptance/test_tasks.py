"""Tasks on real processes: paused, resumed and cancelled while they run, with deaths and a late process."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from site_spider.observe.snapshot import is_conserved
from site_spider.seed.topics import CrawlTopics
from site_spider.tasks.declaration import declared
from site_spider.tasks.orders import TaskDesk
from tests.acceptance.test_deadly_seeds import crawlers
from tools.deployment.deployment import Deployment, opened, wait_until
from tools.site.exchange import host_name
from tools.site.handle import Site

pytestmark = pytest.mark.servers
HOSTS = 10
TASKS = ("paused", "cancelled", "free")
DONE_SECONDS = 300
PROCESS_AT_ONCE = 4  # downloads


@pytest.fixture(
    params=["kafka", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("embedded", "exactly_once"))]
)
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    """Over Kafka, with and without transactions, and over the embedded log; results in the local store."""
    settings = {"SITE_KAFKA_BROKERS": ""}
    if request.param != "embedded":
        settings = {"SITE_KAFKA_BROKERS": request.getfixturevalue("kafka_brokers")}
    if request.param == "exactly_once":
        settings |= {"SITE_KAFKA_EXACTLY_ONCE": "true", "SITE_SINKS": "local,kafka"}
    for deployment in opened(tmp_path, settings):
        deployment.settings["SITE_RESULTS_TOPIC"] = f"results-{deployment.topic}"
        yield deployment


def path(task: str, number: int) -> str:
    return f"/slow/100/{task}-{number}"


def seeds(site: Site, task: str, count: int) -> list[tuple[bytes | None, bytes | None]]:
    """The path is the url_id of each; the key is its host."""
    return [
        (
            host_name(number % HOSTS).encode(),
            json.dumps({
                "url": site.url(path(task, number), number % HOSTS),
                "meta": {"url_id": path(task, number), "task_id": task, "NotExtract": True},
            }).encode(),
        )
        for number in range(count)
    ]  # fmt: skip


def desk(deployment: Deployment) -> TaskDesk:
    topic = deployment.topic
    return TaskDesk(deployment.log, CrawlTopics.beside({"SITE_SEED_TOPIC": topic}))


def write(deployment: Deployment, task: str, state: str = "running", **fields: Any) -> TaskDesk:
    found = desk(deployment)
    found.write(declared(task, fields, datetime.now(UTC)).model_copy(update={"state": state}))
    return found


def begun(site: Site, task: str, since: float = 0.0) -> set[str]:
    return {entry.path for entry in site.entries() if f"/{task}-" in entry.path and entry.time > since}


def done(deployment: Deployment, task: str) -> int:
    return sum(f"/{task}-" in url_id for url_id in deployment.documents())


def test_control_of_running_tasks_holds_over_deaths_and_late_processes(deployment: Deployment, site: Site) -> None:
    """No seed is lost; what a paused task has not begun waits for its end, and is done then."""
    count = 150
    half = count // 2
    for task in TASKS:
        deployment.produce(seeds(site, task, count)[:half])
    run = deployment.start("-n", "2", "-c", str(PROCESS_AT_ONCE))
    wait_until(lambda: len(deployment.documents()) > 30, DONE_SECONDS, "the first results")
    write(deployment, "paused", "paused")
    os.kill(crawlers(run)[0], signal.SIGKILL)
    killed_at = time.time()  # not before: what it had done and not stored is repeated, too
    write(deployment, "cancelled", "cancelled")
    for task in TASKS:  # of which some wait when the orders come, however late these are
        deployment.produce(seeds(site, task, count)[half:])
    late = deployment.start("-c", str(PROCESS_AT_ONCE))
    wait_until(lambda: done(deployment, "free") == count, DONE_SECONDS, "the free task")
    wait_until(deployment.is_done, DONE_SECONDS, "no lag: nothing of the others holds it")
    assert desk(deployment).board.has_parked("paused")
    assert done(deployment, "paused") <= len(begun(site, "paused")) < count
    # but for what is lost with a process that is killed, each page that has begun is done
    assert len(begun(site, "paused", killed_at) - deployment.documents().keys()) <= PROCESS_AT_ONCE
    write(deployment, "paused").put_back("paused")
    wait_until(lambda: done(deployment, "paused") == count, DONE_SECONDS, "the task that was paused")
    wait_until(deployment.is_done, DONE_SECONDS, "no lag")
    for each in (run, late):
        each.terminate()
        assert each.wait(DONE_SECONDS) == 0
    assert len(begun(site, "cancelled")) < count
    check_endings(deployment, count)


def check_endings(deployment: Deployment, count: int) -> None:
    """Every seed has one ending; a seed that was cancelled has no document."""
    used = desk(deployment).board.used("cancelled")
    assert used.seeds["cancelled"] >= count - done(deployment, "cancelled") > 0
    assert not desk(deployment).board.has_parked("paused")
    assert deployment.dead_letters() == []
    failed = [doc for doc in deployment.documents().values() if doc["status"] != 200]
    assert failed == []
    assert [each for each in deployment.statistics() if not is_conserved(each["seeds"])] == []
