"""A real crawl of a small site, and a real console beside it, as processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from site_spider.adapters.local.log import LocalSeedLog
from site_spider.seed.seed import seed_message

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
        assert process.stdout is not None
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
