"""No test meets the crawls of others on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from site_spider.observe import frontier_socket
from tools.console.browser import CHROMIUM, chromium


@pytest.fixture(autouse=True)
def own_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this process; what tests start gets XDG_RUNTIME_DIR."""
    monkeypatch.setattr(frontier_socket, "folders", lambda: iter([tmp_path / "site_spider"]))


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """A Chromium without a window. Without one the test fails under CI, else it is skipped."""
    if not CHROMIUM.exists():
        missing = f"{CHROMIUM} is missing: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    with chromium() as found:
        yield found
