"""Runs `task_shell/servers.sh` for the tests that need real servers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "task_shell" / "servers.sh"
SHARED_FOLDER = ROOT / ".servers" / "tests"
TIMEOUT_SECONDS = 600  # the first start downloads
CLEAN_UP_SECONDS = 60


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
    try:
        yield variable(SHARED_FOLDER, name, server)
    finally:
        if started:
            servers(SHARED_FOLDER, "stop", server)
