"""pip, for tests that need an index of packages."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def pip(*arguments: str) -> None:
    """Skips the test where there is no index of packages; with CI set it fails."""
    ran = subprocess.run(
        [sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check", "--no-input"],
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    if ran.returncode:
        said = (ran.stderr.strip().splitlines() or ["no reason"])[-1]
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"pip cannot fetch what this needs: {said}")
