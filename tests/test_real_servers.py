"""A server that all tests share and that has died is started again. What servers need is installed on each Debian."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.commands.project import ROOT
from tests.inner_run import inner_run
from tests.real_servers import servers

CONFTEST = """
from pathlib import Path

import tests.real_servers as real_servers
from tests.conftest import (
    pytest_addoption, pytest_configure, pytest_runtest_protocol, pytest_terminal_summary, redis_url
)

real_servers.SHARED_FOLDER = Path({folder!r})
"""
TESTS = """
import pytest
import redis

from tests import real_servers

tries = []


@pytest.fixture(scope="module")
def client(redis_url):
    made = redis.Redis.from_url(redis_url)
    made.ping()
    yield made
    made.close()


@pytest.mark.servers
@pytest.mark.parametrize("number", range(3))
def test_its_answer(client, number):
    tries.append(number)
    if tries in ([0, 1], [0, 1, 1, 2]):
        real_servers.servers(real_servers.SHARED_FOLDER, "kill", "redis")
    client.ping()
"""


TESTS_OF_TWO_WORKERS = """
import os
import time
from pathlib import Path

import pytest
import redis

from tests import real_servers

tries = []


def wait_for(name):
    while not Path(name).exists():
        time.sleep(0.01)


@pytest.mark.servers
@pytest.mark.parametrize("number", range(2))
def test_its_answer(redis_url, number):
    tries.append(number)
    if tries == [number]:
        Path(f"began-{number}").touch()
        wait_for(f"began-{1 - number}")
        if number == 0:
            real_servers.servers(real_servers.SHARED_FOLDER, "kill", "redis")
            Path("killed").touch()
        wait_for("killed")
    with redis.Redis.from_url(redis_url) as client:
        client.ping()
"""


def run(tests: str, tmp_path: Path, *options: str) -> str:
    """What pytest prints."""
    folder = str(tmp_path / "servers")
    try:
        return inner_run(tmp_path, CONFTEST.format(folder=folder), tests, *options).stdout
    finally:
        servers(Path(folder), "kill", "redis")


@pytest.mark.servers
def test_a_shared_server_that_died_is_started_again_once_and_its_test_is_repeated(tmp_path: Path) -> None:
    """And the end of the run says so; one that dies twice fails its test."""
    output = run(TESTS, tmp_path)
    assert "1 failed, 2 passed" in output, output[-3000:]
    said = "redis had died and was started again; repeated: test_some.py::test_its_answer[1]"
    assert said in output.splitlines()


@pytest.mark.nightly
@pytest.mark.servers
def test_workers_start_a_shared_server_again_once_and_repeat_what_had_failed_in_each(tmp_path: Path) -> None:
    output = run(TESTS_OF_TWO_WORKERS, tmp_path, "-n2")
    assert "2 passed" in output, output[-3000:]
    (said,) = [line for line in output.splitlines() if "had died" in line]
    assert said.count("test_its_answer[") == 2


@pytest.mark.parametrize("part", ["jre", "jdk"])
def test_a_debian_without_java_17_gets_the_java_that_it_has(part: str) -> None:
    program = """
        source task_shell/lib/packages.sh
        forbid_services() { :; }
        apt() { echo "$@"; }
        apt-cache() { return 1; }
        install_packages "openjdk-17-$0-headless" maven
    """
    said = subprocess.run(["bash", "-euc", program, part], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["update", f"install -y --no-install-recommends default-{part}-headless maven"]
