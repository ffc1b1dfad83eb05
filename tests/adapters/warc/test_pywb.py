"""Archives of a crawl are replayed by pywb, in a real browser."""

from __future__ import annotations

import gzip
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from site_spider.service import config as parts
from tests.acceptance.pip import pip
from tests.adapters.raw_server import Asked, answering
from tests.adapters.warc.test_crawl import HEAD, crawler, wait
from tests.adapters.warc.test_crawl import page as answer
from tests.adapters.warc.test_sink import files, written
from tests.console.conftest import browser
from tests.in_process.engine import lag, produce, settings_for

__all__ = ["browser"]

HTML = b"Content-Type: text/html; charset=utf-8\r\n"
PACKED = HTML + b"Content-Encoding: gzip\r\n"
SCRIPT = b'document.getElementById("said").textContent = "the script of the archive ran"'
CHUNKS = b"14\r\n<p>joined from chunk\r\n1\r\ns\r\n0\r\n\r\n"
ANSWERS = {
    "/packed": answer(PACKED, gzip.compress(b"<p id=said></p><script src=/script></script>", mtime=0)),
    "/script": answer(b"Content-Type: text/javascript\r\n", SCRIPT),
    "/chunks": HEAD + HTML + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "/again": answer(HTML, b"<p>archived twice"),
}
TOOLS = {"manager": "pywb.manager.manager:main", "wayback": "pywb.apps.cli:wayback"}


def answer_to(asked: Asked) -> bytes:
    return ANSWERS.get(asked.path, answer(b"", b"", b"404 Gone"))


def crawl(folder: Path, urls: list[str]) -> None:
    log = parts.seed_log(settings_for(folder))
    produce(log, "seeds", [{"url": url, "meta": {"NotExtract": True}} for url in urls])
    with crawler(folder) as process:
        wait(lambda: lag(log) == 0, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0


class Pywb:
    """In a folder of its own, where its packages meet none of ours."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        pip("install", "--target", str(folder / "packages"), "pywb==2.10.0")
        self._environment = {**os.environ, "PYTHONPATH": str(folder / "packages")}

    def _command(self, tool: str, *arguments: str) -> list[str]:
        module, _, name = TOOLS[tool].partition(":")
        return [sys.executable, "-c", f"from {module} import {name}; {name}()", *arguments]

    def manage(self, *arguments: str) -> None:
        command = self._command("manager", *arguments)
        subprocess.run(command, cwd=self.folder, env=self._environment, check=True, timeout=300)

    @contextmanager
    def serving(self) -> Iterator[str]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        command = self._command("wayback", "--port", port, "--bind", "127.0.0.1")
        with subprocess.Popen(command, cwd=self.folder, env=self._environment) as process:
            try:
                address, until = f"http://127.0.0.1:{port}/", time.monotonic() + 300
                while not is_up(address):
                    assert process.poll() is None, "pywb has ended"
                    assert time.monotonic() < until
                    time.sleep(0.1)
                yield address
            finally:
                process.terminate()


def is_up(address: str) -> bool:
    try:
        with urlopen(address, timeout=60):
            return True
    except OSError:
        return False


@pytest.mark.nightly
def test_three_pages_of_an_archive_are_replayed_in_a_browser(tmp_path: Path, browser: Any) -> None:
    """Packed and with a script, in chunks, and one whose last capture is a revisit; the site is gone."""
    with answering(answer_to) as site:
        crawl(tmp_path, [site + path for path in ANSWERS])
        crawl(tmp_path, [f"{site}/again"])
    assert len(written(tmp_path, "revisit")) == 1
    pywb = Pywb(tmp_path)
    pywb.manage("init", "crawl")
    pywb.manage("add", "crawl", *map(str, files(tmp_path, "*.warc.gz")))
    with pywb.serving() as address:
        page = browser.new_page()
        page.set_default_timeout(300_000)
        for path, said in (
            ("/packed", "the script of the archive ran"),
            ("/chunks", "joined from chunks"),
            ("/again", "archived twice"),
        ):
            page.goto(f"{address}crawl/{site}{path}")  # which shows it in a frame
            page.frame_locator("iframe").locator("body", has_text=said).wait_for()
        page.close()
