"""Somebody else's Scrapy project: the wheel is installed, a line of settings and ten of spider are added."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.acceptance.pip import pip
from tests.commands.project import ROOT

pytestmark = [pytest.mark.index, pytest.mark.timeout(400)]
SECONDS = 60
PAGES = 5
SPIDERS = """
import json

import scrapy

from site_spider import SeedSpider


class BooksSpider(SeedSpider):
    name = "books"
    custom_settings = {"DOWNLOAD_DELAY": 0, "ROBOTSTXT_OBEY": False}

    async def parse(self, response):
        self.logger.info("books got %s", response.url)
        return await super().parse(response)


class PlainSpider(scrapy.Spider):
    name = "plain"

    async def start(self):
        print("SETTINGS", json.dumps(dict(sorted(self.crawler.settings.copy_to_dict().items())), default=str))
        engine = self.crawler.engine
        print("PARTS", type(engine.scheduler).__name__, type(engine.downloader).__name__)
        yield scrapy.Request(self.url, self.parse)

    def parse(self, response):
        yield {"url": response.url}
"""


SCRIPT = """
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.utils.project import get_project_settings

process = AsyncCrawlerProcess(get_project_settings())
process.crawl("books")
process.start()
"""


class Pages(BaseHTTPRequestHandler):
    """The first page links to the others."""

    def do_GET(self) -> None:
        links = "".join(f'<a href="/{n}">{n}</a>' for n in range(1, PAGES)) if self.path == "/" else ""
        body = f"<title>{self.path}</title>{links}".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of the first page."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def scrapy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an environment that has the wheel and what it asks for, without any extra."""
    folder = tmp_path_factory.mktemp("installed")
    pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True, timeout=SECONDS)
    python = str(folder / "venv" / "bin" / "python")
    pip("install", "--constraint", str(ROOT / "requirements.txt"), str(wheel), python=python)
    return folder / "venv" / "bin" / "scrapy"


class Project:
    """What `scrapy startproject` makes."""

    def __init__(self, scrapy: Path, folder: Path, **variables: str) -> None:
        self._scrapy = scrapy
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SITE_")}
        self._environment = kept | variables
        assert self.run("startproject", "shop", ".").returncode == 0
        (folder / "shop" / "spiders" / "books.py").write_text(SPIDERS)

    @property
    def settings(self) -> Path:
        return self.folder / "shop" / "settings.py"

    def add_on(self) -> None:
        text = self.settings.read_text()
        assert "ADDONS = {}" in text
        self.settings.write_text(text.replace("ADDONS = {}", 'ADDONS = {"site_spider.Addon": 300}'))

    def start(self, *arguments: str, program: str = "scrapy", **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self._scrapy.with_name(program)), *arguments],
            cwd=self.folder,
            env=self._environment | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments, **more) as running:
            try:
                output, complaints = running.communicate(timeout=SECONDS)
            finally:
                running.kill()
        return subprocess.CompletedProcess(arguments, running.returncode, output, complaints)


@pytest.fixture
def project(scrapy: Path, tmp_path: Path) -> Project:
    """In an empty folder."""
    return Project(scrapy, tmp_path, SITE_ALLOW_PRIVATE_HOSTS="true", SITE_STOP_GRACE_SECONDS="5")


def test_a_script_gets_the_guard_of_addresses_too(project: Project, url: str) -> None:
    """It makes its process with Scrapy's event loop and resolver, before the add-on is asked."""
    project.add_on()
    (project.folder / "script.py").write_text(SCRIPT)
    assert project.run("seed", *seeds(project, url.replace("127.0.0.1", "localhost"))).returncode == 0
    closed = {"SITE_ALLOW_PRIVATE_HOSTS": "false"}
    with project.start("script.py", program="python", **closed) as crawling:
        try:
            done = project.run("progress", "--until-done")
            crawling.send_signal(signal.SIGTERM)
            _, log = crawling.communicate(timeout=SECONDS)
        finally:
            crawling.kill()
    assert done.returncode == 0, done.stderr + log
    (document,) = map(json.loads, project.run("results", "--format", "json").stdout.splitlines())
    assert document["status"] is None
    assert "localhost has no public address" in document["description"]


def crawled(project: Project, url: str, **servers: str) -> dict[str, Any]:
    """The documents by URL, of a crawl of one seed."""
    produced = project.run("seed", *seeds(project, url), **servers)
    assert produced.returncode == 0, produced.stderr
    assert "produced 1, refused 0" in produced.stdout + produced.stderr
    with project.start("crawl", "books", **servers) as crawling:
        try:
            done = project.run("progress", "--until-done", **servers)
            crawling.send_signal(signal.SIGTERM)
            _, log = crawling.communicate(timeout=SECONDS)
        finally:
            crawling.kill()
    assert done.returncode == 0, done.stderr + log
    assert crawling.returncode == 0, log
    assert log.count("books got") == PAGES, log
    results = project.run("results", "--format", "json", **servers)
    assert results.returncode == 0, results.stderr
    return {document["url"]: document for document in map(json.loads, results.stdout.splitlines())}


def seeds(project: Project, url: str) -> list[str]:
    file = project.folder / "seeds.txt"
    file.write_text(f"{url}\n")
    return [str(file)]


def test_a_projects_own_spider_crawls_from_the_embedded_log(project: Project, url: str) -> None:
    """Without any server, and without the clients of Redis and HBase."""
    project.add_on()
    documents = crawled(project, url)
    assert documents.keys() == {url, *(f"{url}{n}" for n in range(1, PAGES))}
    assert {document["status"] for document in documents.values()} == {200}
    assert {document["spider"] for document in documents.values()} == {"books"}


@pytest.mark.servers
def test_a_projects_own_spider_crawls_from_kafka(project: Project, url: str, kafka_brokers: str) -> None:
    """Which the environment names."""
    project.add_on()
    topic = f"other-{uuid4().hex[:8]}"
    servers = {"SITE_KAFKA_BROKERS": kafka_brokers, "SITE_SEED_TOPIC": topic, "SITE_CONSUMER_GROUP": topic}
    documents = crawled(project, url, **servers)
    assert documents.keys() == {url, *(f"{url}{n}" for n in range(1, PAGES))}


def test_several_processes_crawl_until_done(project: Project, url: str) -> None:
    """A process that dies is started again, and the spider that `genspider` makes is crawled the same way."""
    project.add_on()
    assert project.run("genspider", "-t", "seed", "leaflets", "127.0.0.1").returncode == 0
    shown = project.run("settings", "--spider", "books", "--get", "DOWNLOAD_DELAY").stdout
    assert shown == "0\n"
    for spider in ("books", "leaflets"):
        own = {"SITE_SEED_TOPIC": spider, "SITE_CONSUMER_GROUP": spider}
        assert project.run("seed", *seeds(project, url), **own).returncode == 0
        ran = project.run("service", spider, "-n", "2", "--until-done", "-s", "DOWNLOAD_DELAY=0", **own)
        assert ran.returncode == 0, ran.stderr
        assert "[1] " in ran.stderr
    rows = project.run("results", "--format", "json").stdout.splitlines()
    assert {document["url"] for document in map(json.loads, rows)} == {
        url,
        *(f"{url}{n}" for n in range(1, PAGES)),
    }
    refused = project.run("service", "plain")
    assert refused.returncode == 78
    assert "Spider plain takes no seeds" in refused.stderr


def test_a_spider_without_seeds_behaves_as_without_the_add_on(project: Project, url: str) -> None:
    """The same settings, parts and items; the environment has no say in them."""
    arguments = "crawl", "plain", "-a", f"url={url}", "-s", "ROBOTSTXT_OBEY=False", "-s", "LOG_LEVEL=WARNING"
    before = project.run(*arguments, "-O", "before.jsonl", CONCURRENT_REQUESTS="3")
    project.add_on()
    after = project.run(*arguments, "-O", "after.jsonl", CONCURRENT_REQUESTS="3")
    assert (before.returncode, after.returncode) == (0, 0), before.stderr + after.stderr
    assert _without_addons(before.stdout) == _without_addons(after.stdout)
    assert "PARTS Scheduler Downloader" in after.stdout
    items = [(project.folder / name).read_text() for name in ("before.jsonl", "after.jsonl")]
    assert items == [json.dumps({"url": url}) + "\n"] * 2


def _without_addons(output: str) -> list[str]:
    lines = output.splitlines()
    (line,) = [line for line in lines if line.startswith("SETTINGS ")]
    settings = json.loads(line.removeprefix("SETTINGS "))
    del settings["ADDONS"], settings["FEEDS"]
    return [json.dumps(settings), *(line for line in lines if line.startswith("PARTS"))]


def test_what_is_missing_is_said_with_its_remedy(project: Project) -> None:
    """The add-on, for commands and spiders; and the extra of a part that settings name."""
    commands = [project.run(*words) for words in (["seed", "-"], ["results"], ["progress"])]
    assert {ran.returncode for ran in commands} == {2}
    assert all('ADDONS = {"site_spider.Addon": 300}' in ran.stderr for ran in commands)
    crawling = project.run("crawl", "books")
    assert crawling.returncode == 78
    assert crawling.stderr.splitlines()[-1].endswith(
        'ADDONS = {"site_spider.Addon": 300} to its settings.py.'
    )
    project.add_on()
    for settings, needed in (("SITE_DUPEFILTER=redis", "'redis>="), ("SITE_SINKS=hbase", "'happybase>=")):
        refused = project.run("crawl", "books", "-s", settings)
        assert refused.returncode == 78
        assert f"pip install {needed}" in refused.stderr
