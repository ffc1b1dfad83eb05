"""Scrapy's commands for trying things out touch nothing of the crawl, and know the environment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module

import pytest

from site_spider.commands.site_command import Trial
from tests.adapters.raw_server import answering, said
from tests.commands.project import Project
from tests.in_process.engine import lag


@pytest.fixture
def url() -> Iterator[str]:
    """Of one page with a link."""
    with answering(lambda _asked: said(b"<p>hello</p><a href=/x>x</a>", kind="text/html")) as address:
        yield f"{address}/"


@pytest.mark.parametrize("name", ["bench", "check", "fetch", "list", "parse", "shell", "view"])
def test_each_is_scrapys_behind_what_keeps_it_from_the_crawl(name: str) -> None:
    command = import_module(f"site_spider.commands.{name}").Command
    trial, scrapys = command.__mro__[1:3]
    assert (trial, scrapys.__module__) == (Trial, f"scrapy.commands.{name}")
    assert command.__module__ == f"site_spider.commands.{name}"  # or Scrapy would not find it


def test_no_seed_is_taken_and_nothing_written(project: Project, url: str) -> None:
    """Of a topic in which a seed waits; the settings come from the environment."""
    project.produce("mine", (None, json.dumps({"url": url}).encode()))
    before = sorted(path for path in project.data.rglob("*") if path.is_file())
    environment = {"SITE_SEED_TOPIC": "mine", "SITE_ALLOW_PRIVATE_HOSTS": "true"}
    words = ["parse", "--nolog", "--spider", "crawl_spider", "--pipelines", url]
    ran = project.scrapy(*words, **environment)
    assert ran.returncode == 0, ran.stderr
    assert "'status': 200" in ran.stdout + ran.stderr
    assert lag(project.log, "mine", "site_spider") == 1
    assert sorted(path for path in project.data.rglob("*") if path.is_file()) == before


def test_the_guard_for_hosts_holds_here_too(project: Project, url: str) -> None:
    """Unless the environment says otherwise, as for a crawl."""
    ran = project.scrapy("fetch", url)
    assert "hello" not in ran.stdout
    assert "SITE_ALLOW_PRIVATE_HOSTS" in ran.stderr


@pytest.mark.nightly
def test_bench_reaches_its_own_server(project: Project) -> None:
    """Which listens on loopback."""
    ran = project.scrapy("bench", "-s", "CLOSESPIDER_TIMEOUT=2", "-s", "CLOSESPIDER_ITEMCOUNT=1")
    assert ran.returncode == 0
    assert "response_status_count/200" in ran.stderr
    assert not (project.data / "results.sqlite").exists()


def test_a_seed_without_a_url_is_for_spiders_that_make_requests_of_it(project: Project) -> None:
    """`scrapy seed --spider NAME` knows which do."""
    line = '{"meta": {"forum": 7}}\n'
    ran = project.scrapy("seed", "-", stdin=line)
    assert (ran.returncode, ran.stdout) == (1, "produced 0, refused 1\n")
    assert "url: missing" in ran.stderr
    modules = ("-s", "SPIDER_MODULES=tests.service.test_own_spiders,site_spider.spiders")
    ran = project.scrapy("seed", "-", "--spider", "forum", *modules, stdin=line)
    assert (ran.returncode, ran.stdout) == (0, "produced 1, refused 0\n"), ran.stderr
    (message,) = project.log.read("seeds")
    assert json.loads(message.value or b"") == {"meta": {"forum": 7}}
    assert message.key
