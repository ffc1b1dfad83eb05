"""The console in a real browser, beside a real crawl."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from site_spider.adapters.local.log import LocalSeedLog
from site_spider.seed.seed import seed_message
from tests.console.consoles import PAGES
from tests.console.snapshots import host, snapshot

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "<script>window.owned=1</script>"
LONGEST_SECONDS = 300.0  # for a start or an end


class Site(BaseHTTPRequestHandler):
    """Pages that take a while; /fail answers 404 with mark-up in its reason."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        time.sleep(0.1)
        body = f"<title>{SCRIPT}</title><p>{self.path}</p>".encode() + b" " * 4_000
        if self.path.startswith("/fail"):
            self.send_response(404, f"Gone {SCRIPT}")
        else:
            self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_said: object) -> None:
        """Silent."""


class CrawlServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 500

    def handle_error(self, request: object, client_address: object) -> None:
        """A crawler that is killed is no error."""


class Scene:
    """A folder with its seed log, site, crawls and console; all ends with the stack."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.log = LocalSeedLog(folder / "data")
        self._stack = stack
        server = CrawlServer(("0.0.0.0", 0), Site)  # the hosts are addresses of loopback
        threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        self.port = server.server_address[1]

    def produce(self, count: int, path: str = "/page", task_id: str = "spring") -> None:
        """Seeds of four hosts in turn."""
        producer = self.log.producer()
        urls = (f"http://127.0.0.{2 + n % 4}:{self.port}{path}{n}" for n in range(count))
        futures = [producer.send("seeds", *seed_message(url, task_id=task_id)) for url in urls]
        for future in futures:
            future.result(30)
        producer.close()

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """`scrapy ...`; its log lies in the folder."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SITE_")}
        own = {
            "XDG_RUNTIME_DIR": str(self.folder),
            "TMPDIR": str(self.folder),  # where the sockets of others would be looked for
            "SITE_DATA_DIR": str(self.folder / "data"),
            "SITE_ALLOW_PRIVATE_HOSTS": "true",
            "SITE_STATS_INTERVAL_SECONDS": "1",
        }
        log = self._stack.enter_context((self.folder / f"{arguments[0]}.log").open("a"))
        process = subprocess.Popen(
            [sys.executable, "-m", "scrapy", *arguments],
            cwd=ROOT,
            env=kept | own | variables,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        self._stack.callback(_end, process)
        return process

    def console(self, **variables: str) -> str:
        process = self.start("console", "--port", "0", **variables)
        line = process.stdout.readline()
        if not line.startswith("The console is at "):
            raise RuntimeError((self.folder / "console.log").read_text())
        return line.removeprefix("The console is at ").strip()

    def crawl(self, spider: str = "crawl_spider", **variables: str) -> subprocess.Popen[str]:
        """Another process of the group; returns when it can be asked."""
        before = len(self._sockets())
        process = self.start("crawl", spider, **variables)
        deadline = time.monotonic() + LONGEST_SECONDS
        while len(self._sockets()) <= before:
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError((self.folder / "crawl.log").read_text())
            time.sleep(0.05)
        return process

    def _sockets(self) -> list[Path]:
        return list((self.folder / "site_spider").glob("*.frontier"))


@contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    """Of an empty folder with a short name, because sockets lie in it."""
    with ExitStack() as stack:
        yield Scene(folder, stack)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


WAIT_MS = 300_000
# what a tile may say, however the crawl goes just then
LONGEST = """document.querySelectorAll('.tile b').forEach(
    tile => { tile.textContent = tile.className ? '20 h 59 min to 23 h 59 min' : '123,456,789'; })"""


@pytest.fixture(scope="module")
def crawling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Scene, str]]:
    """A crawl of some minutes, with a web that has something against us; the address of its console."""
    with scene(tmp_path_factory.mktemp("s")) as made:
        made.produce(4000)
        made.produce(20, "/fail?q=%3Cscript%3E", task_id=SCRIPT)
        producer = made.log.producer()
        producer.send("seeds", b"k", f'{{"url": "{SCRIPT}"}}'.encode()).result(300)
        evil = snapshot(9, at=time.time(), largest_hosts=[host(SCRIPT, 30)], host_name=SCRIPT)
        producer.send("seeds.stats", b"evil", json.dumps(evil).encode()).result(300)
        producer.close()
        address = made.console()
        made.crawl(DOWNLOAD_DELAY="0.2")
        yield made, address


class Reader:
    """A page of a browser that hears what goes wrong."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.wrong: list[str] = []
        self.page.on("console", lambda said: self.wrong.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_error: object) -> None:
        self.context.close()


def test_every_page_works_and_no_script_of_the_web_runs(browser: Any, crawling: tuple[Scene, str]) -> None:
    """In a URL, a title, a failure, a host, a task and a dead letter."""
    _, address = crawling
    with Reader(browser) as reader:
        page = reader.page
        page.goto(address)
        page.wait_for_function("document.querySelector('#conservation b').textContent !== '0'")
        seen = ""
        for path in PAGES:
            query = "?url=http://127.0.0.2/" if path == "/url" else ""
            page.goto(f"{address.rstrip('/')}{path}{query}")
            seen += page.inner_text("main")
            assert page.evaluate("window.owned") is None
            assert page.evaluate("document.scripts.length") == 2
            assert page.evaluate("document.querySelectorAll('main script').length") == 0
        assert reader.wrong == []
        page.goto(f"{address}failures")
        page.wait_for_function(f"document.body.innerText.includes({json.dumps(SCRIPT)})")
        assert SCRIPT in seen, "the test has shown nothing"
        assert page.evaluate("window.owned") is None


def test_curves_and_numbers_move_while_a_crawl_runs(browser: Any, crawling: tuple[Scene, str]) -> None:
    _, address = crawling
    with Reader(browser) as reader:
        page = reader.page
        page.goto(address)
        page.wait_for_selector(".chart[data-series=pages] canvas")
        results, last = (
            page.inner_text("#conservation .outcome-1 b"),
            page.get_attribute(".chart[data-series=lag]", "data-last"),
        )
        page.wait_for_function(
            "([before, last]) => document.querySelector('.outcome-1 b').textContent !== before"
            " && document.querySelector('.chart[data-series=lag]').dataset.last !== last",
            arg=[results, last],
        )
        points = int(page.get_attribute(".chart[data-series=pages]", "data-points"))
        page.wait_for_function(
            "before => +document.querySelector('.chart[data-series=pages]').dataset.points > before"
            " && +document.querySelector('.chart[data-series=pages]').dataset.last > 0",
            arg=points,
        )
        assert reader.wrong == []


def test_pages_are_reached_with_the_keyboard(browser: Any, crawling: tuple[Scene, str]) -> None:
    _, address = crawling
    with Reader(browser) as reader:
        page = reader.page
        page.goto(address)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        for _ in range(3):  # the overview, tasks, processes
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_url("**/processes")
        assert "running" in page.inner_text("#processes")


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_a_phone_shows_all_without_scrolling_sideways(browser: Any, crawling: tuple[Scene, str], scheme: str) -> None:
    _, address = crawling
    with Reader(browser, viewport={"width": 360, "height": 740}, color_scheme=scheme) as reader:
        for path in PAGES:
            reader.page.goto(f"{address.rstrip('/')}{path}")
            reader.page.evaluate(LONGEST)
            assert reader.page.evaluate("document.documentElement.scrollWidth") <= 360, path
        back = reader.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(int(part) for part in back[4:-1].split(",")) < 3 * 128) == (scheme == "dark")
        assert reader.wrong == []


def test_chosen_dead_letters_are_put_back_by_a_click(browser: Any, crawling: tuple[Scene, str]) -> None:
    _, address = crawling
    with Reader(browser) as reader:
        page = reader.page
        page.goto(f"{address}failures")
        page.wait_for_function(
            "document.querySelector('#dead-letters input[type=checkbox]') || (location.reload(), false)"
        )
        page.check("#dead-letters input[type=checkbox] >> nth=0")
        page.click("#dead-letters button")
        page.wait_for_selector(".said")
        assert "1 dead letter of 1 put back." in page.inner_text(".said")
        assert "put back" in page.inner_text("#dead-letters tbody")
