"""The same suite over the log of the simulation, which replaces the clock: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_the_simulated_log_behaves_as_the_others() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.simulation.contracts", "-p", "no:cacheprovider",
         "-p", "no:xdist", str(HERE / "test_seed_log.py")],
        cwd=HERE.parents[1], env={**os.environ, "PYTHONHASHSEED": "0", "PYTEST_ADDOPTS": ""},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-4_000:] + ran.stderr[-2_000:]
    assert "skipped" not in ran.stdout
