"""A site with sitemaps and a feed is crawled, a third changes, and `scrapy recrawl` has it fetched again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.commands.project import ROOT
from tools.deployment.deployment import Deployment, opened, wait_until

pytestmark = pytest.mark.servers

PAGES, CHANGED, MAPS = 300, 100, 4
# killed where it is worst: a batch is durable in the seed log, and nobody has noted that
KILLED = """
import os, signal, sys
from scrapy.cmdline import execute
from site_spider.adapters.elasticsearch.results import ElasticsearchResults
exchange = ElasticsearchResults.exchange
def guarded(self, name, changes):
    if any(new.startswith("produced") for _, new in changes.values()):
        os.kill(os.getpid(), signal.SIGKILL)
    return exchange(self, name, changes)
ElasticsearchResults.exchange = guarded
execute(["scrapy", *sys.argv[1:]])
"""


class Pages(BaseHTTPRequestHandler):
    """An index of sitemaps, these, a feed, and pages: each is found once, and answers conditions."""

    protocol_version = "HTTP/1.1"
    versions: ClassVar[Counter[str]] = Counter()
    answers: ClassVar[list[tuple[str, int, int]]] = []  # path, status, bytes

    def do_GET(self) -> None:
        body, etag = self._body(), f'"{self.versions[self.path]}"'
        status = 304 if self.headers["If-None-Match"] == etag else 200
        self.send_response(status)
        self.send_header("ETag", etag)
        self.send_header("Content-Type", "text/html" if self.path.startswith("/page") else "text/xml")
        if status == 200:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if status == 200 else b"")
        self.answers.append((self.path, status, len(body) if status == 200 else 0))

    def _body(self) -> bytes:
        here = f"http://{self.headers['Host']}"
        if self.path == "/index":
            found = "".join(f"<sitemap><loc>{here}/map{n}</loc></sitemap>" for n in range(MAPS))
            return f"<sitemapindex>{found}</sitemapindex>".encode()
        if self.path == "/feed":
            found = "".join(f"<item><link>{here}/page{n}</link></item>" for n in range(0, PAGES, MAPS + 1))
            return f"<rss><channel>{found}</channel></rss>".encode()
        if number := re.fullmatch(r"/map(\d)", self.path):
            pages = range(1 + int(number[1]), PAGES, MAPS + 1)
            found = "".join(f"<url><loc>{here}/page{n}</loc></url>" for n in pages)
            return f"<urlset>{found}</urlset>".encode()
        return f"<h1>{self.path} version {self.versions[self.path]}</h1>{'x' * 5000}".encode()

    def log_message(self, *arguments: Any) -> None:
        """Nothing."""


class Server(ThreadingHTTPServer):
    """Processes that are killed leave their connections."""

    daemon_threads = True

    def handle_error(self, *arguments: Any) -> None:
        """Nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    Pages.versions.clear()
    Pages.answers.clear()
    with Server(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def deployment(tmp_path: Path, kafka_brokers: str, elasticsearch_hosts: str) -> Iterator[Deployment]:
    settings = {
        "SITE_KAFKA_BROKERS": kafka_brokers,
        "SITE_ELASTICSEARCH_HOSTS": elasticsearch_hosts,
        "SITE_SINKS": "elasticsearch",
        "CONCURRENT_REQUESTS_PER_DOMAIN": "16",
    }
    yield from opened(tmp_path, settings)


def scrapy(deployment: Deployment, *arguments: str, program: tuple[str, ...] = ("-m", "scrapy")) -> Any:
    return subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=ROOT, env=deployment.environment(), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def crawl(deployment: Deployment, *, kill_at: int | None = None) -> None:
    """All that waits; or killed after so many answers, and done by another process."""
    run = deployment.start()
    if kill_at is not None:
        wait_until(lambda: len(Pages.answers) >= kill_at, 300, f"{kill_at} answers")
        os.killpg(run.process.pid, signal.SIGKILL)  # with the script that would start it again
        run = deployment.start()
    wait_until(deployment.is_done, 300, "all seeds")
    run.end()


def test_only_what_has_changed_is_fetched_again_over_two_kills(deployment: Deployment, url: str) -> None:
    """Of a run of the command, and of the crawler."""
    seeds = [json.dumps({"url": f"{url}/{name}"}).encode() for name in ("index", "feed")]
    deployment.produce([(b"127.0.0.1", seed) for seed in seeds])
    crawl(deployment)
    before, whole = deployment.documents(), sum(size for *_, size in Pages.answers)
    assert len(before) == PAGES + MAPS + 2
    Pages.answers.clear()
    Pages.versions.update({f"/page{n * 2}": 1 for n in range(CHANGED)})

    killed = scrapy(deployment, "recrawl", "--older-than", "0s", program=("-c", KILLED))
    assert killed.returncode == -signal.SIGKILL
    ran = scrapy(deployment, "recrawl", "--older-than", "0s")
    assert (ran.returncode, ran.stderr) == (0, "")
    again = [json.loads(message.value or b"")["meta"]["url_id"] for message in produced(deployment)]
    assert sorted(again) == sorted(before)
    assert ran.stdout == f"produced {len(before) - 200}, refused 0\n"

    crawl(deployment, kill_at=PAGES // 3)
    found = deployment.documents()
    assert found.keys() == before.keys()
    changed = {key for key, document in found.items() if "version 1" in (document["body"] or "")}
    assert {found[key]["url"].removeprefix(url) for key in changed} == set(Pages.versions)
    for key, document in found.items():
        assert document["unchanged"] is (key not in changed)
        assert (document["changed_at"] is not None) is (key in changed)
        assert document["checked_at"] > before[key]["checked_at"]
        assert document["interval_s"] == (43_200 if key in changed else 129_600)  # each counted once
        assert document["next_at"] > document["checked_at"]
    fetched = [path for path, status, _ in Pages.answers if status == 200]
    assert set(fetched) == set(Pages.versions)
    assert sum(size for *_, size in Pages.answers) < whole * 2 / 3
    assert deployment.dead_letters() == []


def produced(deployment: Deployment) -> list[Any]:
    """By the command."""
    return [message for message in deployment.log.read(deployment.topic) if dict(message.headers)]
