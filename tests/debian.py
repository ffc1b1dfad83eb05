"""Programs of Debian packages that tests run: a missing one fails under CI, else the test is skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def program(name: str, package: str) -> str:
    """The path of a program; `task_shell/test.sh` installs its package."""
    if found := shutil.which(name):
        return found
    message = f"{name} is missing; on Debian: sudo apt-get install {package}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def promtool(*arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run promtool; unless `check` is false, anything but success fails the test with what it said."""
    return _run(program("promtool", "prometheus"), *arguments, check=check)


def amtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Likewise the tool of the Alertmanager."""
    return _run(program("amtool", "prometheus-alertmanager"), *arguments, check=True)


def _run(path: str, *arguments: str | Path, check: bool) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([path, *map(str, arguments)], check=False, capture_output=True, text=True, timeout=300)
    if check and done.returncode != 0:
        pytest.fail(f"{Path(path).name} {' '.join(map(str, arguments))}:\n{done.stdout}{done.stderr}")
    return done
