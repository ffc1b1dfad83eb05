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


def servers(folder: Path, *arguments: str, script: Path = SCRIPT, **variables: str) -> str:
    """What the script prints. Without it working the test fails under CI, else it is skipped."""
    finished = subprocess.run(
        [str(script), *arguments],
        env=os.environ | {"SITE_SERVERS_DIR": str(folder)} | variables,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    if finished.returncode == 0:
        return finished.stdout
    command = f"servers.sh {' '.join(arguments)}"
    message = f"'{command}' failed; it needs Java 17, maven and curl:\n{finished.stderr[-2000:]}"
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
