"""No test meets the crawls of others on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from site_spider.console import server
from site_spider.observe import frontier_socket

CHROMIUM = Path("/usr/bin/chromium")  # Debian's
_FLAGS = (
    "--no-sandbox",  # as root, too: it meets pages of ours only
    *("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)


@pytest.fixture(autouse=True)
def own_sockets(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this process, below a short name; what tests start gets XDG_RUNTIME_DIR."""
    folder = tmp_path_factory.mktemp("s") / "site_spider"
    monkeypatch.setattr(frontier_socket, "folders", lambda: iter([folder]))


@pytest.fixture(autouse=True)
def patient_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine, a page waits for what was ordered."""
    monkeypatch.setattr(server, "_ORDER_SECONDS", 300.0)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """A Chromium without a window. Without one the test fails under CI, else it is skipped."""
    own = {**os.environ, "HOME": str(tmp_path_factory.mktemp("home"))}  # a run leaves nothing in that of its user
    if not CHROMIUM.exists():
        missing = f"{CHROMIUM} is missing: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=str(CHROMIUM), args=[*_FLAGS], env=own)
        yield found
        found.close()
