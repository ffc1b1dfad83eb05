"""`scrapy results` and `scrapy items`: one document, many, those that failed, and those that are not ours."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from site_spider.adapters.local.results import ITEMS, RESULTS, LocalStore
from site_spider.contracts.seed_log import Message, Partition
from site_spider.contracts.sink import ACKNOWLEDGED, Record
from site_spider.dead_letter_replay import Letter
from site_spider.results.document import SeedPage, item_record
from tests.commands.project import Project
from tests.real_servers import elasticsearch_client


def record(document: dict[str, Any]) -> Record:
    return Record(document["url_id"], {"description": None, "task_id": None, **document}, 1)


def write(folder: Path, table: Any, *records: Record) -> None:
    with closing(LocalStore(folder, table)) as store:
        assert store.write(list(records)) == [ACKNOWLEDGED] * len(records)


@pytest.fixture
def stored(project: Project) -> Project:
    """Four results of two jobs, one of them without an answer."""
    documents: list[dict[str, Any]] = [
        {"url_id": "1", "status": 200, "url": "http://b.test/", "response_size": 12, "body": "x\x1b" * 500},
        {"url_id": "2", "status": 404, "url": "http://a.test/", "description": "HTTP 404 Not Found"},
        {"url_id": "3", "status": None, "url": "http://c.test/", "description": "DNSLookupError: no address"},
        {"url_id": "4", "status": 200, "url": "http://a.test/\x9b", "task_id": "job", "response_size": 7},
    ]
    write(project.data, RESULTS, *map(record, documents))
    return project


def test_results_and_failures_stand_in_two_tables(stored: Project) -> None:
    """Each with its number, in the order of status and URL."""
    ran = stored.scrapy("results")
    assert ran.returncode == 0
    assert [line.split() for line in ran.stdout.splitlines()] == [
        ["Results:", "2"],
        ["STATUS", "SIZE", "TYPE", "URL", "URL_ID"],
        ["200", "7", "-", "http://a.test/\\x9b", "4"],
        ["200", "12", "-", "http://b.test/", "1"],
        [],
        ["Failures:", "2"],
        ["STATUS", "URL", "DESCRIPTION", "URL_ID"],
        ["-", "http://c.test/", "DNSLookupError:", "no", "address", "3"],
        ["404", "http://a.test/", "HTTP", "404", "Not", "Found", "2"],
    ]


def test_fields_are_filtered_and_shown_by_the_names_that_they_have(project: Project) -> None:
    for number in "12":
        named = {"job": number, "site": f"{number}.test", "their.address": f"http://{number}.test/"}
        write(project.data, RESULTS, Record(number, {"url_id": number, "status": 200, **named}, 1))
    names = {"SITE_RESULT_FIELDS": json.dumps({"url": "their.address", "host": "site", "task_id": "job"})}
    for option, value in {"--url": "http://1.test/", "--host": "1.test", "--task-id": "1"}.items():
        ran = project.scrapy("results", option, value, **names)
        assert (ran.returncode, "http://1.test/" in ran.stdout, "2.test" in ran.stdout) == (0, True, False)
    assert "shown are 1 of 2" in project.scrapy("results", "--limit", "1", **names).stderr
    ran = project.scrapy("results", "--spider", "crawl_spider", **names)
    assert (ran.returncode, "SITE_RESULT_FIELDS leaves out 'spider'" in ran.stderr, ran.stdout) == (78, True, "")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--status", "none"], {"3"}),
        (["--status", "404"], {"2"}),
        (["--task-id", "job"], {"4"}),
        (["--task-id", "job", "--status", "404"], set()),
    ],
)
def test_filters_choose_documents(stored: Project, options: list[str], expected: set[str]) -> None:
    """In JSON, one document a line, without a character that a terminal takes for a command."""
    ran = stored.direct("results", *options, "--format", "json")
    assert ran.returncode == 0
    assert {json.loads(line)["url_id"] for line in ran.stdout.splitlines()} == expected
    assert "\x9b" not in ran.stdout


def test_one_document_is_shown_field_by_field(stored: Project) -> None:
    """Long fields are cut in the table, and whole in JSON. One that is not there is exit code 1."""
    ran = stored.direct("results", "--url-id", "1")
    body = next(line for line in ran.stdout.splitlines() if line.startswith("body: "))
    assert "status: 200" in ran.stdout.splitlines()
    assert body.isprintable()
    assert len(body) == len("body: ") + 300
    ran = stored.direct("results", "--url-id", "1", "--format", "json")
    assert json.loads(ran.stdout)["body"] == "x\x1b" * 500
    ran = stored.direct("results", "--url-id", "none-such")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert f"no result has the url_id 'none-such' in {stored.data}" in ran.stderr


@pytest.mark.parametrize(
    ("options", "fits"),
    [
        (["--status", "200", "--task-id", "job", "--url", "http://a.test/\x9b"], True),
        (["--status", "404"], False),
        (["--status", "none"], False),
        (["--task-id", "other"], False),
        (["--host", "a.test"], False),  # the document has no such field
    ],
)
def test_one_document_is_shown_where_it_fits_the_other_filters(stored: Project, options: list[str], fits: bool) -> None:
    ran = stored.direct("results", "--url-id", "4", *options, "--format", "json")
    assert (ran.returncode, bool(ran.stdout)) == ((0, True) if fits else (1, False))
    assert fits or "the document '4' in " in ran.stderr


def assert_no_error_for_who_leaves_after(lines: int, project: Project, **variables: str) -> None:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with project.started("results", "--format", "json", **variables, **pipes) as ran:
        for _ in range(lines):
            ran.stdout.readline()
        ran.stdout.close()
        _, complaints = ran.communicate(timeout=300)
    assert (ran.returncode, complaints) == (1, b"")


def test_a_reader_that_leaves_early_is_no_error(project: Project) -> None:
    """No traceback when the output goes to `head`. It is more than a pipe holds, so that nobody ends before."""
    write(project.data, RESULTS, Record("1", {"body": "x" * 200_000}, 1))
    assert_no_error_for_who_leaves_after(0, project)


def test_a_table_keeps_no_bodies(project: Project) -> None:
    write(project.data, RESULTS, *(Record(f"{n}", {"status": 200, "body": "x" * 1_000_000}, 1) for n in range(20)))
    tracemalloc.start()
    assert project.direct("results").stdout.startswith("Results: 20\n")
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(("command", "said"), [("results", "Results: 0\n\nFailures: 0\n"), ("items", "Items: 0\n")])
def test_an_empty_store_has_none(project: Project, command: str, said: str) -> None:
    ran = project.direct(command)
    assert (ran.returncode, ran.stdout) == (0, said)
    assert f"nothing was found in {project.data}" in ran.stderr  # the folder may be mistyped


@pytest.fixture
def extracted(project: Project) -> Project:
    """Three items of two spiders, tasks and hosts, and the results of their pages."""
    pages = [
        ("crawl_spider", SeedPage("http://a.test/", "1", task_id="spring")),
        ("crawl_spider", SeedPage("https://xn--bcher-kva.test/x", "2", task_id="autumn")),
        ("gone", SeedPage("http://a.test/y", "3")),
    ]
    records = [item_record({"title": f"one \x1b[31m{page.url_id}"}, page, 1, name) for name, page in pages]
    documents: list[dict[str, Any]] = [
        {"url_id": page.url_id, "url": page.url, "host": page.url.split("/")[2], "spider": name, "status": 200}
        for name, page in pages
    ]
    write(project.data, ITEMS, *records)
    write(project.data, RESULTS, *map(record, documents))
    return project


def test_items_stand_in_a_table(extracted: Project) -> None:
    """With their page, and without a character that a terminal takes for a command."""
    ran = extracted.scrapy("items", "--task-id", "spring")
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
        (["--url", "https://xn--bcher-kva.test/x"], {"2"}),
        (["--host", "Bücher.test."], {"2"}),
        (["--spider", "crawl_spider"], {"1", "2"}),
        (["--spider", "crawl_spider", "--host", "a.test"], {"1"}),
        (["--host", "none.test"], set()),
    ],
)
def test_filters_choose(command: str, options: list[str], expected: set[str], extracted: Project) -> None:
    ran = extracted.direct(command, *options, "--format", "json")
    documents = [json.loads(line) for line in ran.stdout.splitlines()]
    assert {document.get("url_id") or document["_page"]["url_id"] for document in documents} == expected


@pytest.mark.parametrize("command", ["items", "results"])
def test_a_limit_says_of_how_many(command: str, extracted: Project) -> None:
    ran = extracted.direct(command, "--limit", "1", "--format", "json")
    assert len(ran.stdout.splitlines()) == 1
    assert ran.stderr == f"scrapy {command}: shown are 1 of 3; --limit 0 shows all\n"
    assert f"{command.title()}: 2 among the first 2 of 3 doc" in extracted.direct(command, "--limit", "2").stdout


def test_one_item_is_shown_in_full(extracted: Project) -> None:
    ran = extracted.direct("items", "--id", "2-1", "--format", "json")
    assert json.loads(ran.stdout)["_page"]["task_id"] == "autumn"
    assert extracted.direct("items", "--id", "2-1", "--host", "Bücher.test", "--spider", "crawl_spider").returncode == 0
    ran = extracted.direct("items", "--id", "2-1", "--host", "a.test")
    assert (ran.returncode, ran.stdout) == (1, "")
    ran = extracted.direct("items", "--id", "none-such")
    assert (ran.returncode, ran.stdout, "no item has the _id 'none-such'" in ran.stderr) == (1, "", True)


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
            store = {"SITE_SINKS": "elasticsearch", "SITE_ELASTICSEARCH_HOSTS": elasticsearch_hosts}
            assert_no_error_for_who_leaves_after(1, project, **store, SITE_RESULTS_INDEX=index)
        finally:
            client.options(ignore_status=404).indices.delete(index=index)


ODD: list[Any] = [
    {},
    {"status": "text", "url": 7, "description": ["list"]},
    {"status": 1e300, "url": None, "description": "\x1b[2J\r\n"},
    {"status": None, "url": {"a": "b"}, "body": "x" * 1_000_000},
    {"status": True, "content_type": "\ud800", "response_size": [1]},
    {"url_id": None, "description": {"deep": [[[]]]}},
]
RAW = ["null", "[1]", "7", "{", "", "[" * 100_000, None, b"\xff\x00", 3.5]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write(tmp_path, RESULTS, *(Record(str(number), one, 10) for number, one in enumerate(ODD)))
    with closing(sqlite3.connect(tmp_path / "results.sqlite")) as file, file:
        for number, text in enumerate(RAW):
            if text is not None:
                file.execute("INSERT INTO results (url_id, document) VALUES (?, ?)", (f"raw{number}", text))
    return tmp_path


@pytest.mark.parametrize("arguments", [(), ("--format", "json"), ("--url-id", "raw5"), ("--status", "none")])
def test_results_that_are_not_ours_are_shown(data: Path, arguments: tuple[str, ...]) -> None:
    """No traceback, and nothing that a terminal obeys."""
    shown = Project(data).scrapy("results", *arguments)
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr == ""
    assert "\x1b" not in shown.stdout
    if arguments == ("--format", "json"):
        assert len([json.loads(line) for line in shown.stdout.splitlines()]) == len(ODD) + len(RAW) - 1


def test_a_row_that_is_no_document_is_replaced(data: Path) -> None:
    """It must not keep the new result from being stored."""
    records = [Record(f"raw{number}", {"status": 200}, 10) for number in range(len(RAW))]
    with closing(LocalStore(data, RESULTS)) as store:
        assert store.write(records) == [ACKNOWLEDGED] * len(RAW)


@pytest.mark.parametrize("timestamp_ms", [-1, 0, 2**62, -(2**62), 253402300800000])
def test_a_dead_letter_of_any_time_is_shown(timestamp_ms: int) -> None:
    """Producers set the time of a message."""
    message = Message(Partition("t", 0), 0, b"\xff", None, (("error", b"\xff"),), timestamp_ms)
    json.dumps(Letter(message, {"error": "\xff"}, replayed=False).document())
