"""`scrapy items`: what spiders extracted, and the filters that it shares with `scrapy results`."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from site_spider.adapters.local.results import ITEMS, RESULTS, LocalStore
from site_spider.contracts.sink import Record
from site_spider.results.document import SeedPage, item_record
from tests.commands.project import ROOT, SCRAPY, Project, environment
from tests.real_servers import elasticsearch_client


@pytest.fixture
def stored(project: Project) -> Project:
    """Three items of two spiders, tasks and hosts, and the results of their pages."""
    pages = [
        ("crawl_spider", SeedPage("http://a.test/", "1", task_id="spring")),
        ("crawl_spider", SeedPage("https://b.test/x", "2", task_id="autumn")),
        ("gone", SeedPage("http://a.test/y", "3")),
    ]
    records = [item_record({"title": f"one \x1b[31m{page.url_id}"}, page, 1, name) for name, page in pages]
    documents: list[dict[str, Any]] = [
        {"url_id": page.url_id, "url": page.url, "host": page.url.split("/")[2], "spider": name, "status": 200}
        for name, page in pages
    ]
    for table, some in (
        (ITEMS, records),
        (RESULTS, [Record(d["url_id"], {"description": None, **d}, 1) for d in documents]),
    ):
        store = LocalStore(project.data, table)
        store.write(some)
        store.close()
    return project


def test_items_stand_in_a_table(stored: Project) -> None:
    """With their page, and without a character that a terminal takes for a command."""
    ran = stored.scrapy("items", "--task-id", "spring")
    assert (ran.returncode, ran.stderr) == (0, "")
    head, titles, row = ran.stdout.splitlines()
    assert (head, titles.split()) == ("Items: 1", ["ID", "ITEM", "PAGE"])
    assert row.split()[0] == "1-1"
    assert row.endswith("http://a.test/")
    assert "\x1b" not in ran.stdout


@pytest.mark.parametrize("command", ["items", "results"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--host", "A.test"], {"1", "3"}),
        (["--url", "https://b.test/x"], {"2"}),
        (["--spider", "crawl_spider"], {"1", "2"}),
        (["--spider", "crawl_spider", "--host", "a.test"], {"1"}),
        (["--host", "none.test"], set()),
    ],
)
def test_filters_choose(command: str, options: list[str], expected: set[str], stored: Project) -> None:
    """The same for both commands."""
    ran = stored.direct(command, *options, "--format", "json")
    documents = [json.loads(line) for line in ran.stdout.splitlines()]
    assert {document.get("url_id") or document["_page"]["url_id"] for document in documents} == expected


@pytest.mark.parametrize("command", ["items", "results"])
def test_a_limit_says_of_how_many(command: str, stored: Project) -> None:
    """On stderr."""
    ran = stored.direct(command, "--limit", "1", "--format", "json")
    assert len(ran.stdout.splitlines()) == 1
    assert ran.stderr == f"scrapy {command}: shown are 1 of 3; --limit 0 shows all\n"


def test_one_item_is_shown_in_full(stored: Project) -> None:
    """Or said not to be there, with exit code 1."""
    ran = stored.direct("items", "--id", "2-1", "--format", "json")
    assert json.loads(ran.stdout)["_page"]["task_id"] == "autumn"
    ran = stored.direct("items", "--id", "none-such")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "'none-such'" in ran.stderr


def test_an_empty_store_has_no_items(project: Project) -> None:
    """No error, no table."""
    ran = project.direct("items")
    assert (ran.returncode, ran.stdout) == (0, "Items: 0\n")


def test_a_spider_that_is_not_there_is_refused(project: Project) -> None:
    """With those that are."""
    ran = project.scrapy("items", "--spider", "typo")
    assert ran.returncode == 2
    assert "no spider 'typo'; there is crawl_spider" in ran.stderr + ran.stdout


@pytest.mark.servers
def test_a_reader_of_elasticsearch_that_leaves_early_is_no_error(project: Project, elasticsearch_hosts: str) -> None:
    """No traceback when the output goes to `head`."""
    index = f"head-{id(project)}"
    with elasticsearch_client(elasticsearch_hosts) as client:
        lines: list[Any] = []
        for number in range(300):
            lines += [{"index": {"_id": str(number)}}, {"url": "x" * 2000, "description": None}]
        client.bulk(index=index, operations=lines, refresh=True)
        try:
            ran = subprocess.Popen(
                [*SCRAPY, "results", "--format", "json"],
                cwd=ROOT,
                env=environment(
                    project.data,
                    SITE_SINKS="elasticsearch",
                    SITE_ELASTICSEARCH_HOSTS=elasticsearch_hosts,
                    SITE_RESULTS_INDEX=index,
                ),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            assert ran.stdout is not None
            ran.stdout.readline()
            ran.stdout.close()
            _, complaints = ran.communicate(timeout=300)
            assert (ran.returncode, complaints) == (1, b"")
        finally:
            client.options(ignore_status=404).indices.delete(index=index)
