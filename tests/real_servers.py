"""Runs `task_shell/servers.sh` for the tests that need real servers.

A server that all tests share may die. When a test fails and one has died, it is started again, once, and the
test is repeated; the end of the run says so.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "task_shell" / "servers.sh"
SHARED_FOLDER = ROOT / ".servers" / "tests"
TIMEOUT_SECONDS = 600  # the first start downloads
CLEAN_UP_SECONDS = 60
_shared: set[str] = set()  # those in use that nobody named by a variable
_revived: dict[str, list[str]] = {}  # by server: the tests that were repeated


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


def address(name: str, server: str) -> Iterator[str]:
    """Where a server is: what the environment says, or one that is started for these tests."""
    if given := os.environ.get(name):
        yield given
        return
    started = "already running" not in servers(SHARED_FOLDER, "start", server)
    _shared.add(server)
    try:
        yield variable(SHARED_FOLDER, name, server)
    finally:
        if started:
            servers(SHARED_FOLDER, "stop", server)


def run_with_shared_servers(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """As pytest runs a test; once more when it has failed and a shared server has died."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    if any(report.failed for report in reports) and (dead := _dead_servers()):
        for server in dead:
            _revived[server] = [*_revived.get(server, ()), item.nodeid]
            servers(SHARED_FOLDER, "start", server)
        _forget_failed_fixtures(item)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def revivals() -> Iterator[str]:
    """A line for each server that had died."""
    for server, tests in _revived.items():
        yield f"{server} had died and was started again; repeated: {', '.join(tests)}"


def _dead_servers() -> list[str]:
    """Those that have not been started again before: what dies twice is worth a failure."""
    left = _shared.difference(_revived)
    return [server for server in sorted(left) if not _lives(server)]


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
