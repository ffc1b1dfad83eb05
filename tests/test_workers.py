"""The several workers of a run (pytest-xdist)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import os
from pathlib import Path
import pytest

@pytest.fixture(scope="module")
def shared():
    with open("made", "a") as made:
        made.write("x")

@pytest.mark.parametrize("number", range(6))
def test_it(number, shared):
    pass
"""


def test_one_worker_takes_all_tests_that_share_a_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest-xdist does not see groups with pytest 9.2: each worker would make what is dear, servers too."""
    (tmp_path / "test_shared.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_itemcollected\n")
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "pytest", "--numprocesses", "3", "--dist", "loadgroup", "-q", "."]
    ran = subprocess.run(
        command, check=False, capture_output=True, text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": "/usr/bin"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    assert (tmp_path / "made").read_text() == "x"
