"""A site with sitemaps and a feed is crawled, 100 pages change, and `scrapy recrawl` has it fetched again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar

import pytest

from tests.commands.project import ROOT
from tools.deployment.deployment import Deployment, wait_until

pytestmark = pytest.mark.servers

CHANGED, MAPS = 100, 4
FIRST = 1  # pages that a run of the command claims first
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
    pages = 0
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
            pages = range(0, self.pages, MAPS + 1)
            found = "".join(f"<item><link>{here}/page{n}</link></item>" for n in pages)
            return f"<rss><channel>{found}</channel></rss>".encode()
        if number := re.fullmatch(r"/map(\d)", self.path):
            pages = range(1 + int(number[1]), self.pages, MAPS + 1)
            found = "".join(f"<url><loc>{here}/page{n}</loc></url>" for n in pages)
            return f"<urlset>{found}</urlset>".encode()
        return f"<h1>{self.path} version {self.versions[self.path]}</h1>{'x' * 5000}".encode()

    def log_message(self, *arguments: Any) -> None:
        """Nothing."""


def scrapy(deployment: Deployment, *arguments: str, program: tuple[str, ...] = ("-m", "scrapy")) -> Any:
    return subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=ROOT, env=deployment.environment(), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def crawl(deployment: Deployment, *, kill_at: int | None = None) -> None:
    """All that waits; or killed after so many answers, and done by another process."""
    run = deployment.start()
    if kill_at is not None:
        wait_until(lambda: len(Pages.answers) >= kill_at, 900, f"{kill_at} answers")
        os.killpg(run.process.pid, signal.SIGKILL)  # with the script that would start it again
        run = deployment.start()
    wait_until(deployment.is_done, 900, "all seeds")
    run.end()


@pytest.mark.parametrize("pages", [300, pytest.param(3_000, marks=pytest.mark.nightly)])
def test_only_what_has_changed_is_fetched_again_over_two_kills(on_servers: Deployment, url: str, pages: int) -> None:
    """Of a run of the command, and of the crawler."""
    deployment, Pages.pages = on_servers, pages
    Pages.answers.clear()
    Pages.versions.clear()
    seeds = [json.dumps({"url": f"{url}/{name}"}).encode() for name in ("index", "feed")]
    deployment.produce([(b"127.0.0.1", seed) for seed in seeds])
    crawl(deployment)
    before, asked = deployment.documents(), len(Pages.answers)
    whole = sum(size for *_, size in Pages.answers)
    assert len(before) == pages + MAPS + 2
    Pages.answers.clear()
    Pages.versions.update({f"/page{n * 2}": 1 for n in range(CHANGED)})

    killed = scrapy(deployment, "recrawl", "--older-than", "0s", program=("-c", KILLED))
    assert killed.returncode == -signal.SIGKILL
    ran = scrapy(deployment, "recrawl", "--older-than", "0s")
    assert (ran.returncode, ran.stderr) == (0, "")
    again = [json.loads(message.value or b"")["meta"]["url_id"] for message in produced(deployment)]
    assert sorted(again) == sorted(before)
    assert ran.stdout == f"produced {len(before) - FIRST}, refused 0\n"

    crawl(deployment, kill_at=pages // 3)
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
    again_bytes = sum(size for *_, size in Pages.answers)
    print(f"{asked} requests and {whole} bytes, then {len(Pages.answers)} and {again_bytes}")  # docs/web.md
    assert again_bytes < whole * 2 / 3
    assert deployment.dead_letters() == []


def produced(deployment: Deployment) -> list[Any]:
    """By the command."""
    return [message for message in deployment.log.read(deployment.topic) if dict(message.headers)]
