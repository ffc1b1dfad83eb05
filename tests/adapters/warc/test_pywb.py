"""Archives of a crawl are replayed by pywb, in a real browser."""

from __future__ import annotations

import gzip
import os
import signal
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
from tests.adapters.warc.test_records import KEYS
from tests.adapters.warc.test_sink import written
from tests.console.conftest import browser
from tests.in_process.engine import lag, produce, settings_for
from tests.reader import kept_port

__all__ = ["browser"]

HTML = b"Content-Type: text/html; charset=utf-8\r\n"
PACKED = HTML + b"Content-Encoding: gzip\r\n"
SCRIPT = b'document.getElementById("said").textContent = "the script of the archive ran"'
CHUNKS = b"14\r\n<p>joined from chunk\r\n1\r\ns\r\n0\r\n\r\n"
ANSWERS = {
    "/packed": answer(PACKED, gzip.compress(b"<p id=said></p><script src=/script></script>", mtime=0)),
    "/script": answer(b"Content-Type: text/javascript\r\n", SCRIPT),
    "/chunks": HEAD + HTML + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    "/again/": answer(HTML, b"<p>archived twice"),
    "/same?B=1&a=%7E": answer(HTML + b"ETag: x\r\n", b"<p>not modified since"),
}


def answer_to(asked: Asked) -> bytes:
    if "if-none-match" in asked.headers:
        return HEAD.replace(b"200 OK", b"304 Not Modified") + b"\r\n"
    return ANSWERS.get(asked.path, answer(b"", b"", b"404 Gone"))


def crawl(folder: Path, urls: list[str]) -> None:
    log = parts.seed_log(settings_for(folder))
    produce(log, "seeds", [{"url": url, "if_changed": True, "meta": {"NotExtract": True}} for url in urls])
    with crawler(folder) as process:
        wait(lambda: lag(log) == 0, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0


class Pywb:
    """In a folder of its own, where its packages meet none of ours. It replays our files by our indices."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        pip("install", "--target", str(folder / "packages"), "pywb==2.10.0")
        self._environment = {**os.environ, "PYTHONPATH": str(folder / "packages")}
        paths = "{index_paths: ./warc, archive_paths: ./warc/}"
        (folder / "config.yaml").write_text(f"collections: {{crawl: {paths}}}\n", encoding="utf-8")

    def keys(self, urls: list[str]) -> list[str]:
        """What it looks up for them."""
        source = "import sys; from pywb.utils.canonicalize import canonicalize; print(*map(canonicalize, sys.argv[1:]))"
        command = [sys.executable, "-c", source, *urls]
        return subprocess.check_output(command, env=self._environment, text=True, timeout=300).split()

    @contextmanager
    def serving(self) -> Iterator[str]:
        source = "from pywb.apps.cli import wayback; wayback()"
        command = [sys.executable, "-c", source, "--bind", "127.0.0.1", "--port"]
        with (
            kept_port() as port,
            subprocess.Popen([*command, str(port)], cwd=self.folder, env=self._environment) as process,
        ):
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
def test_pages_of_an_archive_are_replayed_in_a_browser(tmp_path: Path, browser: Any) -> None:
    """Packed and with a script, in chunks, and two that were the same later; the site is gone."""
    with answering(answer_to) as site:
        crawl(tmp_path, [site + path for path in ANSWERS])
        crawl(tmp_path, [site + path for path in ANSWERS if path.startswith(("/again", "/same"))])
    profiles = sorted(one.headers["WARC-Profile"].rpartition("/")[2] for one in written(tmp_path, "revisit"))
    assert profiles == ["identical-payload-digest", "server-not-modified"]
    pywb = Pywb(tmp_path)
    assert pywb.keys([*KEYS]) == [*KEYS.values()]
    with pywb.serving() as address:
        page = browser.new_page()
        page.set_default_timeout(300_000)
        for path, said in (
            ("/packed", "the script of the archive ran"),
            ("/chunks", "joined from chunks"),
            ("/again/", "archived twice"),
            ("/same?B=1&a=%7E", "not modified since"),
        ):
            page.goto(f"{address}crawl/{site}{path}")  # which shows it in a frame
            page.frame_locator("iframe").locator("body", has_text=said).wait_for()
        page.close()
