"""A site with sitemaps and a feed is crawled, 100 pages change, and `scrapy recrawl` has it fetched again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter

import pytest

from tests.adapters.raw_server import Asked, answering, said
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


class Pages:
    """An index of sitemaps, these, a feed, and pages: each is found once, and answers conditions."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.versions = Counter[str]()
        self.answers: list[tuple[str, int]] = []  # path, bytes; none with a 304

    def page(self, asked: Asked) -> bytes:
        etag = f'"{self.versions[asked.path]}"'
        is_same = asked.headers.get("if-none-match") == etag
        body = b"" if is_same else self._body(asked.path, f"http://{asked.headers['host']}")
        self.answers.append((asked.path, len(body)))
        kind = "text/html" if asked.path.startswith("/page") else "text/xml"
        return said(body, 304 if is_same else 200, kind, f"ETag: {etag}\r\n".encode())

    def _body(self, path: str, here: str) -> bytes:
        if path == "/index":
            maps = "".join(f"<sitemap><loc>{here}/map{n}</loc></sitemap>" for n in range(MAPS))
            return f"<sitemapindex>{maps}</sitemapindex>".encode()
        if path == "/feed":
            items = "".join(f"<item><link>{here}/page{n}</link></item>" for n in self._shown(0))
            return f"<rss><channel>{items}</channel></rss>".encode()
        if number := re.fullmatch(r"/map(\d)", path):
            urls = "".join(f"<url><loc>{here}/page{n}</loc></url>" for n in self._shown(1 + int(number[1])))
            return f"<urlset>{urls}</urlset>".encode()
        return f"<h1>{path} version {self.versions[path]}</h1>{'x' * 5000}".encode()

    def _shown(self, first: int) -> range:
        return range(first, self.pages, MAPS + 1)


def recrawl(deployment: Deployment, *program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *program, "recrawl", "--older-than", "0s"],
        cwd=ROOT, env=deployment.environment(), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def messages(deployment: Deployment) -> dict[tuple[object, int], bytes | None]:
    """Of the seed topic."""
    found = deployment.log.read(deployment.topic)
    return {(message.partition, message.offset): message.value for message in found}


@pytest.mark.parametrize("pages", [300, pytest.param(3_000, marks=pytest.mark.nightly)])
def test_only_what_has_changed_is_fetched_again_over_two_kills(on_servers: Deployment, pages: int) -> None:
    """Of a run of the command, and of the crawler."""
    deployment, site = on_servers, Pages(pages)
    with answering(site.page) as url:
        deployment.produce(
            [(b"127.0.0.1", json.dumps({"url": f"{url}/{name}"}).encode()) for name in ("index", "feed")]
        )
        run = deployment.start()
        wait_until(deployment.is_done, 900, "all seeds")
        run.end()
        before, whole, sent = deployment.documents(), site.answers, messages(deployment)
        assert len(before) == pages + MAPS + 2

        site.versions.update({f"/page{n * 2}": 1 for n in range(CHANGED)})
        assert recrawl(deployment, "-c", KILLED).returncode == -signal.SIGKILL
        ran = recrawl(deployment, "-m", "scrapy")
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"produced {len(before) - FIRST}, refused 0\n", "")
        produced = [value for place, value in messages(deployment).items() if place not in sent]
        assert sorted(json.loads(value or b"")["meta"]["url_id"] for value in produced) == sorted(before)

        site.answers = []
        run = deployment.start()
        wait_until(lambda: len(site.answers) >= pages // 3, 900, "a third of the answers")
        os.killpg(run.process.pid, signal.SIGKILL)  # with the script that would start it again
        run = deployment.start()
        wait_until(deployment.is_done, 900, "all checks")
        run.end()
        check(before, deployment.documents(), {url + path for path in site.versions})
    assert {path for path, size in site.answers if size} == {*site.versions}
    sizes = [sum(size for _, size in answers) for answers in (whole, site.answers)]
    print(f"requests: {len(whole)}, {len(site.answers)}; bytes of bodies: {sizes}")  # docs/web.md
    assert sizes[1] < sizes[0] * 2 / 3
    assert deployment.dead_letters() == []


def check(before: dict[str, dict[str, object]], found: dict[str, dict[str, object]], changed: set[str]) -> None:
    """The documents say truthfully what has changed, and each check counted once."""
    assert found.keys() == before.keys()
    assert {document["url"] for document in found.values() if "version 1" in str(document["body"])} == changed
    for key, document in found.items():
        is_changed = document["url"] in changed
        assert document["unchanged"] is not is_changed
        assert (document["changed_at"] is not None) is is_changed
        assert str(document["checked_at"]) > str(before[key]["checked_at"])
        assert document["interval_s"] == (43_200 if is_changed else 129_600)
        assert str(document["next_at"]) > str(document["checked_at"])
