"""Requests that need a proxy, with a real one on loopback: http, and https by CONNECT."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.proxy import LocalProxy, ShySite
from tests.commands.project import ROOT, Project, environment
from tests.in_process.engine import lag
from tools.deployment.deployment import wait_until
from tools.site.certificate import tls_for

PUBLIC = "127.0.0.9"  # plays a public address; the proxies at 127.0.0.1 are at private ones
CREDENTIALS = "operator:hush%3Ahush"
BASIC = f"Basic {b64encode(b'operator:hush:hush').decode()}"
SECRETS = ("hush", BASIC, BASIC.removeprefix("Basic "))
STOCK_AIOHTTP = dict.fromkeys(("http", "https"), "scrapy.core.downloader.handlers._aiohttp.AiohttpDownloadHandler")
ON_AIOHTTP = {
    "DOWNLOAD_HANDLERS": json.dumps(STOCK_AIOHTTP),
    "SITE_ALLOW_PRIVATE_HOSTS": "true",  # this one knows nothing of our guard
}
HANDLERS = pytest.mark.parametrize(
    "handlers",
    [pytest.param({}, id="of the settings"), pytest.param(ON_AIOHTTP, id="on aiohttp", marks=pytest.mark.nightly)],
)


class Sites:
    """The same site over http and https."""

    def __init__(self, plain: ShySite, secure: ShySite, trusted: Path) -> None:
        self.plain, self.secure, self.trusted = plain, secure, trusted

    def url(self, scheme: str) -> str:
        port = (self.plain if scheme == "http" else self.secure).port
        return f"{scheme}://{PUBLIC}:{port}"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Its data folder does not exist yet."""
    return Project(tmp_path / "data")


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    tls, trusted = tls_for(PUBLIC, tmp_path)
    with ShySite(PUBLIC) as plain, ShySite(PUBLIC, tls) as secure:
        yield Sites(plain, secure, trusted)


def run(project: Project, sites: Sites, urls: list[str], **settings: str) -> dict[str, dict[str, Any]]:
    """Crawl until all is done. The documents by URL; neither the log nor they hold the credentials."""
    project.produce("seeds", *((None, json.dumps({"url": url}).encode()) for url in urls))
    fixed = {
        "SSL_CERT_FILE": str(sites.trusted),
        "LOG_LEVEL": "DEBUG",
        "RETRY_TIMES": "0",
        "DOWNLOAD_TIMEOUT": "300",
        "SITE_SINK_FLUSH_SECONDS": "0.05",
    }
    arguments = [sys.executable, "-m", "tests.acceptance.crawl_of_proxies", PUBLIC, "crawl", "crawl_spider"]
    log = project.data.parent / "crawl.log"
    own = environment(project.data, **fixed | settings)
    with log.open("wb") as output, subprocess.Popen(arguments, cwd=ROOT, env=own, stderr=output) as crawling:
        wait_until(lambda: not lag(project.log) or crawling.poll() is not None, 300, "the end of the crawl")
        crawling.send_signal(signal.SIGTERM)
        assert crawling.wait(300) == 0, log.read_text()
    written = log.read_text()
    results = project.direct("results", "--limit", "0", "--format", "json").stdout
    stored = b"".join(file.read_bytes() for file in project.data.rglob("*") if file.is_file())
    for secret in SECRETS:
        assert secret not in written + results
        assert secret.encode() not in stored
    assert "Traceback" not in written
    documents = [json.loads(line) for line in results.splitlines()]
    return {document["url"]: document for document in documents}


@HANDLERS
def test_http_and_https_through_a_proxy_with_credentials(
    project: Project, sites: Sites, handlers: dict[str, str]
) -> None:
    """The proxy is at a private address, which is its operator's choice; for pages the guard is on."""
    with LocalProxy("operator:hush:hush") as proxy:
        urls = [f"{sites.url(scheme)}/{number}" for scheme in ("http", "https") for number in range(3)]
        found = run(project, sites, urls, SITE_PROXIES=f"http://{CREDENTIALS}@localhost:{proxy.port}", **handlers)
    assert len(found) == 6
    for url, document in found.items():
        assert (document["status"], document["description"]) == (200, None)
        assert document["body"] == f"<p>/{url[-1]}"
        assert document["proxy"] == f"http://localhost:{proxy.port}"
    assert {seen.authorization for seen in proxy.seen} == {BASIC}
    plain = {seen.target for seen in proxy.seen if seen.method == "GET"}
    assert plain == {url for url in urls if url.startswith("http:")}
    assert {seen.target for seen in proxy.seen if seen.method == "CONNECT"} == {f"{PUBLIC}:{sites.secure.port}"}
    for site in (sites.plain, sites.secure):  # the site never sees what is the proxy's
        assert {seen.authorization for seen in site.seen} == {None}
        assert {seen.peer for seen in site.seen} > {"127.0.0.77"}


def test_a_private_proxy_opens_no_way_to_private_hosts(project: Project, sites: Sites) -> None:
    """Neither to what else listens at its address, nor, through it, to anything private."""
    with LocalProxy() as proxy, ShySite("127.0.0.1") as inside:
        urls = [
            f"{sites.url('http')}/",
            f"{sites.url('https')}/",
            f"http://127.0.0.1:{inside.port}/",
            f"https://127.0.0.1:{inside.port}/",
            f"http://localhost:{inside.port}/",
            f"http://127.0.0.1:{proxy.port}/",
        ]
        found = run(project, sites, urls, SITE_PROXIES=f"http://127.0.0.1:{proxy.port}")
    assert [found[url]["status"] for url in urls] == [200, 200, None, None, None, None]
    assert all(found[url]["description"].startswith("PrivateHostError: ") for url in urls[2:])
    assert not inside.seen
    assert {seen.target for seen in proxy.seen} == {urls[0], f"{PUBLIC}:{sites.secure.port}"}
