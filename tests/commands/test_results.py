"""`scrapy results`: one document, many, and those that failed."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from site_spider.adapters.local.results import RESULTS, LocalStore
from site_spider.contracts.sink import Record
from tests.commands.project import ROOT, SCRAPY, Project, environment


@pytest.fixture
def stored(project: Project) -> Project:
    """Four results of two jobs, one of them without an answer."""
    documents: list[dict[str, Any]] = [
        {"url_id": "1", "status": 200, "url": "http://b.test/", "response_size": 12, "body": "x\x1b" * 500},
        {"url_id": "2", "status": 404, "url": "http://a.test/", "description": "HTTP 404 Not Found"},
        {"url_id": "3", "status": None, "url": "http://c.test/", "description": "DNSLookupError: no address"},
        {"url_id": "4", "status": 200, "url": "http://a.test/\x9b", "task_id": "job", "response_size": 7},
    ]
    store = LocalStore(project.data, RESULTS)
    store.write([Record(d["url_id"], {"description": None, "task_id": None, **d}, 1) for d in documents])
    store.close()
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
    store = LocalStore(project.data, RESULTS)
    for number in "12":
        document = {
            "url_id": number,
            "status": 200,
            "job": number,
            "site": f"{number}.test",
            "their.address": f"http://{number}.test/",
        }
        store.write([Record(number, document, 1)])
    store.close()
    names = {"SITE_RESULT_FIELDS": json.dumps({"url": "their.address", "host": "site", "task_id": "job"})}
    for option, value in {"--url": "http://1.test/", "--host": "1.test", "--task-id": "1"}.items():
        ran = project.scrapy("results", option, value, **names)
        assert (ran.returncode, "http://1.test/" in ran.stdout, "2.test" in ran.stdout) == (0, True, False)
    assert "shown are 1 of 2" in project.scrapy("results", "--limit", "1", **names).stderr
    ran = project.scrapy("results", "--spider", "crawl_spider", **names)
    assert (ran.returncode, "SITE_RESULT_FIELDS leaves out 'spider'" in ran.stderr, ran.stdout) == (78, True, "")


def test_an_empty_store_has_no_results(project: Project) -> None:
    """No error, no table."""
    ran = project.direct("results")
    assert (ran.returncode, ran.stdout) == (0, "Results: 0\n\nFailures: 0\n")


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
    """Long fields are cut in the table, and whole in JSON."""
    ran = stored.direct("results", "--url-id", "1")
    body = next(line for line in ran.stdout.splitlines() if line.startswith("body: "))
    assert "status: 200" in ran.stdout.splitlines()
    assert body.isprintable()
    assert len(body) == len("body: ") + 300
    ran = stored.direct("results", "--url-id", "1", "--format", "json")
    assert json.loads(ran.stdout)["body"] == "x\x1b" * 500


def test_a_url_id_that_is_not_there_is_exit_code_1(stored: Project) -> None:
    """The line says where was looked."""
    ran = stored.direct("results", "--url-id", "none-such")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "'none-such'" in ran.stderr
    assert str(stored.data) in ran.stderr


def test_a_status_that_is_none_is_refused(project: Project) -> None:
    """Exit code 2."""
    ran = project.direct("results", "--status", "ok")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "scrapy results: --status is 'ok', but must be a number such as 404, or none\n"


def test_a_reader_that_leaves_early_is_no_error(stored: Project) -> None:
    """No traceback when the output goes to `head`."""
    ran = subprocess.Popen(
        [*SCRAPY, "results", "--format", "json"],
        cwd=ROOT,
        env=environment(stored.data),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert ran.stdout is not None
    ran.stdout.close()
    _, complaints = ran.communicate(timeout=300)
    assert (ran.returncode, complaints) == (1, b"")
