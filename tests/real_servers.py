"""Runs `task_shell/servers.sh` for the tests that need real servers.

A server that all tests share may die. When a test fails and one has died, it is started again, once a run,
and the test is repeated; the end of the run says so. Workers agree by files in a folder of the run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.runner import runtestprotocol

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "task_shell" / "servers.sh"
SHARED_FOLDER = ROOT / ".servers" / "tests"
TIMEOUT_SECONDS = 600  # the first start downloads
CLEAN_UP_SECONDS = 60
# after so long that a machine stands still Kafka's controller shuts the broker out: no topic can be made then
PATIENT = {"SITE_SERVERS_KAFKA_PROPERTIES": "broker.session.timeout.ms=60000"}
_RUN = "TESTS_RUN_FOLDER"  # in the environment, so that workers have it
_shared: set[str] = set()  # those in use that nobody named by a variable


def servers(folder: Path, *arguments: str, script: Path = SCRIPT, **variables: str) -> str:
    """What the script prints. Without it working the test fails under CI, else it is skipped."""
    with subprocess.Popen(
        [str(script), *arguments],
        env=os.environ | {"SITE_SERVERS_DIR": str(folder)} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            output, complaints = running.communicate(timeout=TIMEOUT_SECONDS)
        except BaseException:  # Ctrl-C, say: the script stops what it has half started, which takes its time
            running.terminate()
            running.communicate(timeout=CLEAN_UP_SECONDS)
            raise
    if running.returncode == 0:
        return output
    command = f"servers.sh {' '.join(arguments)}"
    message = f"'{command}' failed; it needs Java 17, maven and curl:\n{complaints[-2000:]}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def variable(folder: Path, name: str, server: str) -> str:
    """The value that `servers.sh env SERVER` gives to a variable."""
    for line in servers(folder, "env", server).splitlines():
        key, _, value = line.removeprefix("export ").partition("=")
        if key == name:
            return value.strip("'\"")
    raise KeyError(name)


def elasticsearch_client(hosts: str | list[str]) -> Elasticsearch:
    """One that waits out a machine that stands still; by itself it gives up after 10 s."""
    from elasticsearch import Elasticsearch  # 0.3 s of each worker

    return Elasticsearch(hosts, request_timeout=300)


def make_topic(brokers: str, topic: str, partitions: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": brokers})  # which has to live until it has its answer
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a server that a module may kill."""
    folder = tmp_path_factory.mktemp("kafka")
    servers(folder, "start", "kafka")
    yield folder
    servers(folder, "kill", "kafka")


def begin_run() -> None:
    """Before there are workers."""
    os.environ[_RUN] = tempfile.mkdtemp(prefix="site-tests-run-")


def end_run() -> None:
    """After the last worker: stops what the tests have started."""
    folder = Path(os.environ.pop(_RUN))
    for server in _lines(folder / "started"):
        servers(SHARED_FOLDER, "stop", server)
    shutil.rmtree(folder)


def address(name: str, server: str) -> Iterator[str]:
    """Where a server is: what the environment says, or one that the first worker who asks starts for all."""
    if given := os.environ.get(name):
        yield given
        return
    with _locked():
        known = dict(line.split(" ", 1) for line in _lines(Path(os.environ[_RUN]) / "addresses"))
        if name not in known:
            if "already running" not in servers(SHARED_FOLDER, "start", server, **PATIENT):
                _note("started", server)
            known[name] = variable(SHARED_FOLDER, name, server)
            _note("addresses", f"{name} {known[name]}")
    _shared.add(server)
    yield known[name]


def run_with_shared_servers(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """As pytest runs a test; once more when it has failed and a shared server has died."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    before = _revived()
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    if any(report.failed for report in reports) and _has_revived(item.nodeid, before):
        _forget_failed_fixtures(item)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def revivals() -> list[str]:
    """A line for each server that had died."""
    return [
        f"{server} had died and was started again; repeated: {', '.join(tests)}" for server, tests in _revived().items()
    ]


def _revived() -> dict[str, list[str]]:
    """By server: the tests that were repeated."""
    found: dict[str, list[str]] = {}
    for line in _lines(Path(os.environ[_RUN]) / "revived"):
        server, _, test = line.partition(" ")
        found.setdefault(server, []).append(test)
    return found


def _has_revived(test: str, before: Container[str]) -> bool:
    """Whether a server died under this test, and is there again. What dies twice is worth a failure."""
    with _locked():
        for server in sorted(_shared.difference(_revived())):
            if not _lives(server):
                servers(SHARED_FOLDER, "start", server, **PATIENT)
                _note("revived", f"{server} {test}")
        under_this = [server for server in _revived() if server in _shared and server not in before]
        for server in under_this:
            if test not in _revived()[server]:
                _note("revived", f"{server} {test}")
    return bool(under_this)


@contextmanager
def _locked() -> Iterator[None]:
    with (Path(os.environ[_RUN]) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _note(name: str, line: str) -> None:
    with (Path(os.environ[_RUN]) / name).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _lives(server: str) -> bool:
    """Whether all of its processes run; another run of tests may start it at this moment."""
    command = [str(SCRIPT), "status", server]
    variables = os.environ | {"SITE_SERVERS_DIR": str(SHARED_FOLDER)}
    return subprocess.run(command, env=variables, capture_output=True, check=False).returncode == 0


def _forget_failed_fixtures(item: pytest.Item) -> None:
    """Or those of wider scope would fail once more in the same way."""
    assert isinstance(item, pytest.Function)
    for fixtures in item._fixtureinfo.name2fixturedefs.values():
        for fixture in fixtures:
            if fixture.cached_result is not None and fixture.cached_result[2] is not None:
                fixture.cached_result = None
    item._initrequest()
