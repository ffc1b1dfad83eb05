"""`task_shell/bench.sh`: a short race, with real Kafka, that ends with the table."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.test_chaos_sh import still_running

pytestmark = [pytest.mark.servers, pytest.mark.nightly]
SCRIPT = Path(__file__).resolve().parents[2] / "task_shell" / "bench.sh"
RUN_SECONDS = 1500  # on a busy machine, with the compilation


def bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One run from another directory, its own folder inside of the test's."""
    return subprocess.run(
        [str(SCRIPT), *arguments],
        env=os.environ | {"TMPDIR": str(folder), "COMPILE_LEVEL": "0"},  # as in tests/test_compiled.py
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )


def test_a_quick_race_prints_the_table_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Few pages, half of them found by links: all crawlers do the whole work, and are compared."""
    options = "--quick --pages 400 --workload links --peers ours,warc,stock --compiled --json race.json"
    finished = bench(tmp_path, *options.split())
    assert finished.returncode == 0, finished.stderr
    rows = [re.split("  +", line) for line in finished.stdout.splitlines() if line.startswith("links ")]
    assert [row[1] for row in rows] == ["site_spider", "site_spider compiled", "site_spider with warc", "Scrapy"]
    assert rows[3][4] == "1.00"  # times the economy of stock Scrapy
    runs = {run["crawler"]: run for run in json.loads((tmp_path / "race.json").read_text())["runs"]}
    assert float(rows[0][4]) == pytest.approx(runs["stock"]["cpu_us"] / runs["ours"]["cpu_us"], abs=0.01)
    assert still_running(tmp_path) == []
    assert list(tmp_path.glob("bench-*")) == []
