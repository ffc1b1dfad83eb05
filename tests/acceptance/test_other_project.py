"""Somebody else's Scrapy project: the wheel is installed, a line of settings and ten of spider are added."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import hatch_build
from site_spider.adapters.local.log import LocalSeedLog
from tests.acceptance.pip import pip
from tests.adapters.raw_server import Asked, Said, answering, said
from tests.commands.project import ROOT
from tests.debian import program
from tests.in_process.engine import lag, produce
from tools.deployment.deployment import wait_until

pytestmark = [pytest.mark.index, pytest.mark.xdist_group("other_project")]
SECONDS = 900
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


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of the first page, which links to the others."""

    def page(asked: Asked) -> Said:
        links = "".join(f'<a href="/{n}">{n}</a>' for n in range(1, PAGES)) if asked.path == "/" else ""
        return said(f"<title>{asked.path}</title>{links}".encode(), kind="text/html")

    with answering(page) as address:
        yield f"{address}/"


@pytest.fixture(scope="module")
def scrapy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("installed"))


def installed(folder: Path) -> Path:
    """The command of an environment that has the wheel and what it asks for, without any extra."""
    pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=SECONDS)
    (packages,) = venv.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (metadata,) = packages.glob("*.dist-info")
    link(needed(PathDistribution(metadata)), packages)
    command = venv / "bin" / "scrapy"
    command.write_text(f"#!{venv}/bin/python\nfrom scrapy.cmdline import execute\nexecute()\n")
    command.chmod(0o755)
    return command


def needed(of: Distribution) -> dict[str, Distribution]:
    """What it asks for, and what that asks for, by name."""
    found: dict[str, Distribution] = {}
    waiting = [(of, "")]
    while waiting:
        one, extra = waiting.pop()
        for requirement in map(Requirement, one.requires or ()):
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            other = distribution(requirement.name)
            assert other.version in requirement.specifier, f"{one.name} wants {requirement}"
            if requirement.name not in found or requirement.extras:
                found[requirement.name] = other
                waiting += [(other, extra) for extra in ("", *requirement.extras)]
    return found


def link(distributions: dict[str, Distribution], packages: Path) -> None:
    """As they are installed here, with their bytecode: pip would take half a minute of CPU."""
    for one in distributions.values():
        for name in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(Path(str(one.locate_file(name))))


class Project:
    """A folder of what `scrapy startproject` makes, with spiders, and with the add-on or without."""

    def __init__(self, scrapy: Path, folder: Path) -> None:
        self._scrapy = scrapy
        self.folder = folder
        # nothing is compiled yet, and each process would do it again
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("SITE_") and name != "PYTHONDONTWRITEBYTECODE"
        }
        self._environment = kept | {"SITE_ALLOW_PRIVATE_HOSTS": "true", "SITE_STOP_GRACE_SECONDS": "5"}

    @contextmanager
    def start(self, *arguments: str, program: str = "scrapy", **more: str) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            [str(self._scrapy.with_name(program)), *arguments],
            cwd=self.folder,
            env=self._environment | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as running:
            try:
                yield running
            finally:
                running.kill()

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments, **more) as running:
            output, complaints = running.communicate(timeout=SECONDS)
        return subprocess.CompletedProcess(arguments, running.returncode, output, complaints)


@pytest.fixture(scope="module")
def started(scrapy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = Project(scrapy, tmp_path_factory.mktemp("project"))
    assert project.run("startproject", "shop", ".").returncode == 0
    (project.folder / "shop" / "spiders" / "books.py").write_text(SPIDERS)
    return project.folder


@pytest.fixture
def bare(scrapy: Path, started: Path, tmp_path: Path) -> Project:
    return Project(scrapy, Path(shutil.copytree(started, tmp_path / "bare")))


@pytest.fixture
def project(scrapy: Path, started: Path, tmp_path: Path) -> Project:
    made = Project(scrapy, Path(shutil.copytree(started, tmp_path / "with-add-on")))
    settings = made.folder / "shop" / "settings.py"
    text = settings.read_text()
    assert "ADDONS = {}" in text
    settings.write_text(text.replace("ADDONS = {}", 'ADDONS = {"site_spider.Addon": 300}'))
    return made


def test_a_script_gets_the_guard_of_addresses_too(project: Project, url: str) -> None:
    """It makes its process with Scrapy's event loop and resolver, before the add-on is asked."""
    (project.folder / "script.py").write_text(SCRIPT)
    log = LocalSeedLog(project.folder / "data")
    produce(log, "seeds", [json.dumps({"url": url.replace("127.0.0.1", "localhost")}).encode()])
    with project.start("script.py", program="python", SITE_ALLOW_PRIVATE_HOSTS="false") as crawling:
        wait_until(lambda: not lag(log) or crawling.poll() is not None, SECONDS, "the end of the crawl")
        crawling.send_signal(signal.SIGTERM)
        _, complaints = crawling.communicate(timeout=SECONDS)
    log.close()
    assert crawling.returncode == 0, complaints
    ran = project.run("results", "--format", "json")
    (document,) = map(json.loads, ran.stdout.splitlines())
    assert (document["status"], document["spider"]) == (None, "books")
    assert "localhost has no public address" in document["description"]


@pytest.mark.nightly
def test_several_processes_crawl_until_done(project: Project, url: str) -> None:
    """The spider that `genspider` makes, without any server, and without the clients of Redis and HBase."""
    assert project.run("genspider", "-t", "seed", "leaflets", "127.0.0.1").returncode == 0
    (project.folder / "seeds.txt").write_text(f"{url}\n")
    produced = project.run("seed", "seeds.txt")
    assert "produced 1, refused 0" in produced.stdout + produced.stderr
    ran = project.run("service", "leaflets", "-n", "2", "--until-done", "-s", "DOWNLOAD_DELAY=0")
    assert ran.returncode == 0, ran.stderr
    assert "[1] " in ran.stderr
    documents = [*map(json.loads, project.run("results", "--format", "json").stdout.splitlines())]
    assert {document["url"] for document in documents} == {url, *(f"{url}{n}" for n in range(1, PAGES))}
    assert {document["status"] for document in documents} == {200}
    assert {document["spider"] for document in documents} == {"leaflets"}


def test_a_spider_without_seeds_behaves_as_without_the_add_on(bare: Project, project: Project, url: str) -> None:
    """The same settings, parts and items; the environment has no say in them."""
    arguments = "crawl", "plain", "-a", f"url={url}", "-s", "ROBOTSTXT_OBEY=False", "-s", "LOG_LEVEL=WARNING"
    before, after = (each.run(*arguments, "-O", "items.jsonl", CONCURRENT_REQUESTS="3") for each in (bare, project))
    assert (before.returncode, after.returncode) == (0, 0), before.stderr + after.stderr
    assert _without_addons(before.stdout) == _without_addons(after.stdout)
    assert "PARTS Scheduler Downloader" in after.stdout
    items = [(each.folder / "items.jsonl").read_text() for each in (bare, project)]
    assert items == [json.dumps({"url": url}) + "\n"] * 2


def _without_addons(output: str) -> list[str]:
    lines = output.splitlines()
    (line,) = [line for line in lines if line.startswith("SETTINGS ")]
    settings = json.loads(line.removeprefix("SETTINGS "))
    del settings["ADDONS"], settings["FEEDS"]
    return [json.dumps(settings), *(line for line in lines if line.startswith("PARTS"))]


@pytest.mark.nightly
def test_a_wheel_has_compiled_modules_where_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program("gcc", "build-essential python3-dev")
    monkeypatch.setenv("HATCH_BUILD_HOOK_ENABLE_CUSTOM", "1")
    monkeypatch.setenv("COMPILE_LEVEL", "0")
    said = Project(installed(tmp_path), tmp_path).run("version", "-v").stdout
    assert f"site_spider is compiled ({len(hatch_build.modules())} modules)" in said


def test_what_is_missing_is_said_with_its_remedy(bare: Project, project: Project) -> None:
    """The add-on, for commands and spiders; and the extra of a part that settings name."""
    command = bare.run("results")
    assert command.returncode == 2
    assert 'ADDONS = {"site_spider.Addon": 300}' in command.stderr
    crawling = bare.run("crawl", "books")
    assert crawling.returncode == 78
    assert crawling.stderr.splitlines()[-1].endswith('ADDONS = {"site_spider.Addon": 300} to its settings.py.')
    refused = project.run("crawl", "books", "-s", "SITE_DUPEFILTER=redis")
    assert refused.returncode == 78
    assert "pip install 'redis>=" in refused.stderr
