"""`task_shell/bench.sh`: a short race, with real Kafka, that ends with the table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.test_chaos import still_running
from tools.deployment.deployment import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.nightly]
SCRIPT = Path(__file__).resolve().parents[2] / "task_shell" / "bench.sh"
RUN_SECONDS = 500


def bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One run from another directory, its own folder inside of the test's."""
    return subprocess.run(
        [str(SCRIPT), *arguments],
        env=os.environ | {"TMPDIR": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )


def test_a_quick_race_prints_the_table_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Few pages, half of them found by links: both crawlers do the whole work, and are compared."""
    options = "--quick --pages 400 --workload links --peers ours,stock --json race.json"
    finished = bench(tmp_path, *options.split())
    assert finished.returncode == 0, finished.stderr
    rows = [line.split() for line in finished.stdout.splitlines() if line.startswith("links ")]
    assert [row[1] for row in rows] == ["site_spider", "Scrapy"]
    assert rows[1][4] == "1.00"  # times the economy of stock Scrapy
    runs = {run["crawler"]: run for run in json.loads((tmp_path / "race.json").read_text())["runs"]}
    assert float(rows[0][4]) == pytest.approx(runs["stock"]["cpu_us"] / runs["ours"]["cpu_us"], abs=0.01)
    assert runs["stock"]["latencies"] is None
    assert 0 < runs["ours"]["latencies"][0] <= runs["ours"]["latencies"][1]
    assert still_running(tmp_path) == []
    assert list(tmp_path.glob("bench-*")) == []


def test_an_interrupted_race_leaves_nothing_behind(tmp_path: Path) -> None:
    """Ctrl-C while a crawler runs: processes and files are gone, and the exit code says so."""
    log = tmp_path / "log"
    options = ["--workload", "links", "--pages", "50000", "--peers", "ours", "--runs", "1"]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [str(SCRIPT), *options],
            env=os.environ | {"TMPDIR": str(tmp_path)},
            stdout=stream,
            stderr=stream,
        )
    wait_until(
        lambda: process.poll() is not None or any("crawl_spider" in line for line in still_running(tmp_path)),
        RUN_SECONDS,
        "a crawler",
    )
    process.send_signal(signal.SIGINT)
    assert process.wait(RUN_SECONDS) == 130, log.read_text()
    # a sleep of a second may outlast what began it
    wait_until(lambda: not still_running(tmp_path), 300, "the end of all processes")
    assert list(tmp_path.glob("bench-*")) == []
