"""The tools run where `quickstart.sh` has installed requirements.txt, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_TOOLS = [
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for file in sorted((ROOT / "tools").rglob("*.py"))
]
_PROGRAMS = ["tools.race", "tools.chaos", "tools.site"]


def distributions(file: str) -> set[str]:
    """The names of what a file of requirements pins, as pip compares them."""
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    names = (re.match(r"[\w.-]+", line) for line in lines)
    return {re.sub(r"[-_.]+", "-", name[0]).lower() for name in names if name}


def packages_of_tests_alone() -> set[str]:
    """What `import` finds only where requirements-dev.txt is installed."""
    needless = distributions("requirements-dev.txt") - distributions("requirements.txt")
    return {
        package
        for package, names in packages_distributions().items()
        if {re.sub(r"[-_.]+", "-", name).lower() for name in names} <= needless
    } | {"tests"}


def run_without_those(code: str) -> subprocess.CompletedProcess[str]:
    hidden = f"import sys\nsys.modules.update(dict.fromkeys({sorted(packages_of_tests_alone())!r}))\n"
    return subprocess.run(
        [sys.executable, "-c", hidden + code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )


def test_each_module_and_program_of_the_tools_runs_without_what_tests_need() -> None:
    assert {"pytest", "hypothesis", "mypy", "tests"} <= packages_of_tests_alone()
    assert "ModuleNotFoundError: import of pytest halted" in run_without_those("import pytest").stderr
    ended = run_without_those(f"""
import importlib, runpy
for name in {_TOOLS!r}:
    importlib.import_module(name)
for program in {_PROGRAMS!r}:
    sys.argv[:] = [program, "--help"]
    try:
        runpy.run_module(program, run_name="__main__")
    except SystemExit as ended:
        print(program, "ended with", ended.code)
""")
    assert ended.returncode == 0, ended.stderr
    assert [line for line in ended.stderr.splitlines() if "RuntimeWarning" not in line and line[:1] != " "] == []
    for program in _PROGRAMS:
        assert f"{program} ended with 0" in ended.stdout
    assert ended.stdout.count("usage: ") == len(_PROGRAMS)
