"""A real crawl of a small site, and a real console beside it, as processes."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from site_spider.adapters.local.log import LocalSeedLog
from site_spider.seed.line import seed_message
from tests.commands.project import ROOT, SCRAPY, environment
from tests.contracts.seed_logs import wait_until

SCRIPT = "<script>window.owned=1</script>"
SECONDS = 60.0


class Site(BaseHTTPRequestHandler):
    """Pages that take a while; /fail answers 500 with mark-up in its reason."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        time.sleep(0.1)
        body = f"<title>{SCRIPT}</title><p>{self.path}</p>".encode()
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
    request_queue_size = 200

    def handle_error(self, request: object, client_address: object) -> None:
        """A crawler that is killed is no error."""


class Scene:
    """A folder with its seed log, crawl and console."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.log = LocalSeedLog(folder / "data")
        self._stack = stack
        server = CrawlServer(("127.0.0.1", 0), Site)
        threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        self.port = server.server_address[1]

    def produce(self, count: int, path: str = "/page", task_id: str = "spring", hosts: int = 4) -> None:
        """Seeds of some hosts, all on loopback."""
        producer = self.log.producer()
        futures = []
        for number in range(count):
            url = f"http://127.0.0.{2 + number % hosts}:{self.port}{path}{number}"
            key, value = seed_message(url, task_id=task_id)
            futures.append(producer.send("seeds", key, value))
        for future in futures:
            future.result(30)
        producer.close()

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """`scrapy ...`, ended with the scene."""
        own = {
            "XDG_RUNTIME_DIR": str(self.folder),
            "SITE_ALLOW_PRIVATE_HOSTS": "true",
            "SITE_STATS_INTERVAL_SECONDS": "1",
        }
        log = self._stack.enter_context((self.folder / f"{arguments[0]}.log").open("a"))
        process = subprocess.Popen(
            [*SCRAPY, *arguments],
            cwd=ROOT,
            env=environment(self.folder / "data", **own | variables),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        self._stack.callback(_end, process)
        return process

    def console(self, **variables: str) -> str:
        """Its address."""
        process = self.start("console", "--port", "0", **variables)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("The console is at "), (self.folder / "console.log").read_text()
        return line.removeprefix("The console is at ").strip()

    def crawl(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        process = self.start("crawl", "crawl_spider", *arguments, **variables)
        running = self.folder / "site_spider"
        wait_until(lambda: list(running.glob("*.frontier")), "the crawl listens", SECONDS)
        return process


@contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(folder, stack)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=45)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
