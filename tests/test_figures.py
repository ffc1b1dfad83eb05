"""The budget of a whole run (tests/figures.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = """
from pathlib import Path
from tests import figures

figures.BUDGET = Path(__file__).with_name("slow.toml")

def pytest_addoption(parser):
    parser.addoption("--figures", action="store_true")

def pytest_configure(config):
    config.pluginmanager.register(figures.Figures(config))
"""
WAITS = "threading.Event().wait(0.6)"
LARGE, SMALL = "cpu_minutes = 30\nloop_ms = 1e6", "cpu_minutes = 0.01\nloop_ms = 1e6"
SLOW = "cpu_minutes = 0.01\nloop_ms = 0.001"  # it takes thousands of times as long as there
BURNS = "while time.process_time() < 3: pass"


@pytest.mark.parametrize(
    ("body", "budget", "reasons", "exit_code", "said"),
    [
        pytest.param(WAITS, LARGE, "", 0, "1 tests took over 0.5 s by the clock alone", id="waits"),
        pytest.param(BURNS, LARGE, "", 1, "slow.toml has no reason for it: test_it.py::test_it", id="burns"),
        pytest.param(BURNS, LARGE, '"test_it.py" = "it burns"', 0, "0 tests took over", id="with a reason"),
        pytest.param(BURNS, SMALL, '"test_it.py" = "it burns"', 1, "over the budget of", id="burns more"),
        pytest.param(BURNS, SLOW, '"test_it.py" = "it burns"', 0, "0 tests took over", id="a slow machine"),
        pytest.param("", LARGE, '"test_gone.py" = "it burnt"', 1, "names test_gone.py, which", id="gone"),
    ],
)
def test_a_run_fails_by_its_cpu_time_and_not_by_the_clock(
    tmp_path: Path, body: str, budget: str, reasons: str, exit_code: int, said: str
) -> None:
    (tmp_path / "conftest.py").write_text(PLUGIN)
    (tmp_path / "slow.toml").write_text(f"{budget}\nseconds = 0.5\n[tests]\n{reasons}\n")
    (tmp_path / "test_it.py").write_text(f"import threading, time\ndef test_it():\n    {body or 'pass'}\n")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "--figures", "-q", "."],
        cwd=tmp_path, check=False, capture_output=True, text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": "/usr/bin"},
    )  # fmt: skip
    assert said in ran.stdout
    assert ran.returncode == exit_code, ran.stdout
