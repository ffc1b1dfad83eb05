"""The budget of a whole run (tests/figures.py)."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import figures
from tests.inner_run import inner_run

PLUGIN = """
from pathlib import Path
from tests import figures

figures.BUDGET = Path(__file__).with_name("slow.toml")

def pytest_addoption(parser):
    parser.addoption("--figures", action="store_true")

def pytest_configure(config):
    config.pluginmanager.register(figures.Figures(config))
"""
TEST = """
import time

def test_it():
    began = time.process_time()
    while time.process_time() < began + 0.3: pass
"""
LARGE, SMALL = "cpu_minutes = 1e6\nloop_ms = 1e6", "cpu_minutes = 0\nloop_ms = 1e6"
SLOW = "cpu_minutes = 1e-3\nloop_ms = 1e-9"  # it takes millions of times as long as there
REASON = '"test_it.py" = "it burns"'


@pytest.mark.parametrize(
    ("seconds", "budget", "reasons", "said"),
    [
        pytest.param((0.6, 0.1), LARGE, "", "1 tests took over 0.5 s by the clock alone", id="waits"),
        pytest.param((3, 3), LARGE, "", "3.0 s of CPU, and slow.toml has no reason for it: test_it", id="burns"),
        pytest.param((3, 3), LARGE, REASON, "0 tests took over", id="with a reason"),
        pytest.param((3, 3), SMALL, REASON, "over the budget of", id="burns more"),
        pytest.param((3, 3), SLOW, REASON, "0 tests took over", id="a slow machine"),
        pytest.param((0, 0), LARGE, '"test_gone.py" = "it burnt"', "names test_gone.py, which", id="gone"),
        pytest.param((0, 0), LARGE, "\n".join(f"{n} = ''" for n in range(31)), "names 31 tests, more", id="many"),
    ],
)
def test_the_budget_is_in_cpu_time_and_the_clock_is_told_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, float], budget: str, reasons: str, said: str
) -> None:
    (tmp_path / "slow.toml").write_text(f"{budget}\nseconds = 0.5\n[tests]\n{reasons}\n")
    monkeypatch.setattr(figures, "BUDGET", tmp_path / "slow.toml")
    monkeypatch.setattr(sys, "addaudithook", lambda _hook: None)  # it could not be taken away
    config: Any = SimpleNamespace()
    run = figures.Figures(config)
    wall, cpu = seconds
    run.pytest_runtest_logreport(
        SimpleNamespace(nodeid="test_it.py::test_it", duration=wall, cpu_seconds=cpu, starts=0)
    )
    table, faults = [*run._table()], [*run._judged()]
    assert said in "\n".join(table + faults)
    assert bool(faults) is ("tests took over" not in said), faults


def test_a_run_over_the_budget_fails(tmp_path: Path) -> None:
    (tmp_path / "slow.toml").write_text(f"{LARGE}\nseconds = 0.1\n[tests]\n")
    ran = inner_run(tmp_path, PLUGIN, TEST, "--figures")
    assert "slow.toml has no reason for it: test_some.py::test_it" in ran.stdout
    assert ran.returncode == 1, ran.stdout


def test_of_a_worker_that_dies_the_tests_are_told_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "slow.toml").write_text(f"{LARGE}\nseconds = 9\n[tests]\n")
    ran = inner_run(tmp_path, PLUGIN, "import os\n\ndef test_it():\n    os._exit(9)\n", "--figures", "-n1")
    assert "crashed while running 'test_some.py::test_it'" in ran.stdout
    assert "what it took" in ran.stdout
