"""Runs pytest on a test's own files, with parts of tests/conftest.py: for tests of what this folder adds to pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def inner_run(folder: Path, conftest: str, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Of test_some.py."""
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_some.py").write_text(tests)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SITE_", "PYTEST_XDIST"))}
    options = ("-q", "-W", "ignore", f"--rootdir={folder}", "-c", os.devnull, *options)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(folder)],
        env=kept | {"PYTHONPATH": str(ROOT), "COLUMNS": "300"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
