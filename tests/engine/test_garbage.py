"""What pages leave behind: cycles wait for a full collection, ten thousands of pages later."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def left() -> dict[str, dict[str, int]]:
    """By sort of page, then by type: how many wait for the collector, where nearly every page has one."""
    command = [sys.executable, "-m", "tests.engine.garbage_trial"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, dict[str, int]] = json.loads(ran.stdout)
    return found


@pytest.mark.parametrize("sort", ["page", "linking", "moved", "absent", "failing", "unanswered"])
def test_no_page_waits_for_the_collector(left: dict[str, dict[str, int]], sort: str) -> None:
    assert left[sort] == {}
