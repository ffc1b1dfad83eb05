"""A server that sends an answer more, late, on a connection that is kept: through both handlers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("handler", ["plain", "stock"])
def test_what_came_late_is_no_answer_to_the_next_request(handler: str) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.download.late_answers", handler]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["bodies"] == ["first", "second"]
    assert found["connections"] == 2
