"""Two processes over the embedded seed log, and a disk that takes nothing for a while."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.acceptance.test_deadly_seeds import crawlers
from tools.deployment.deployment import Deployment, Run, wait_until
from tools.site.handle import Site

SEEDS = 250
SETTINGS = {"SITE_DUPEFILTER": "local"}
LIMIT_BYTES = 100_000  # of a file: less than the databases have by then, more than the log


def limit(pids: list[int], size_bytes: int) -> None:
    """As a full disk or a quota does: a write beyond it fails."""
    for pid in pids:
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, hard))


def says_away(run: Run, slot: str) -> bool:
    """Whether the process has logged that it waits for the disk."""
    return any(line.startswith(f"[{slot}] ") and "is away" in line for line in run.text().splitlines())


@pytest.mark.nightly
def test_a_full_disk_is_waited_for_and_restarts_nothing(deployment: Deployment, tmp_path: Path) -> None:
    with Site(tmp_path / "record.jsonl", hosts=20) as site:
        paths = [f"/slow/100/{number}" for number in range(SEEDS)]
        deployment.produce_pages(site.url, paths, 20)
        run = deployment.start("-n", "2", "-c", "2")
        wait_until(lambda: len(site.entries()) > 80, 300, "the crawl under way")
        pids = crawlers(run)
        assert len(pids) == 2
        limit(pids, LIMIT_BYTES)
        for slot in "12":  # each process has said it, and lives
            wait_until(lambda slot=slot: says_away(run, slot), 300, f"a line about it of process {slot}")
        assert sorted(crawlers(run)) == sorted(pids)
        limit(pids, resource.RLIM_INFINITY)
        wait_until(deployment.is_done, 300, "the end of the lag")
        assert sorted(crawlers(run)) == sorted(pids)
        run.terminate()
        assert run.wait(300) == 0
    assert set(deployment.documents()) == set(paths)
    assert deployment.dead_letters() == []
    assert "starting again" not in run.text()
    assert "Traceback" not in run.text()
