"""SITE_RESULT_FIELDS: which fields of a result are written, and under which names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from site_spider.adapters.local.results import LocalSink
from site_spider.contracts.sink import Record
from site_spider.errors import ConfigError
from site_spider.results.document import ALWAYS, Result, result_fields, written
from tests.in_process.engine import crawl

FULL = Result("a", 200, "{}", "text", None, task_id="t", url="http://a/", meta={"x": 1}).document()


def chosen(value: Any) -> dict[str, Any]:
    return written(FULL, result_fields({"SITE_RESULT_FIELDS": value}))


@pytest.mark.parametrize("value", ["", None, [], {}, "{}", " , "])
def test_all_are_written_by_default(value: Any) -> None:
    assert chosen(value) == FULL


@pytest.mark.parametrize(
    "value", ["url,task_id", ["url", "task_id"], '["url", "task_id"]', " url , task_id,status"]
)
def test_a_list_names_those_that_are_written_beside_the_contracts(value: Any) -> None:
    assert chosen(value).keys() == ALWAYS | {"url", "task_id"}


@pytest.mark.parametrize("value", [{"url": "link", "task_id": "job"}, '{"url": "link", "task_id": "job"}'])
def test_a_mapping_gives_other_names(value: Any) -> None:
    assert chosen(value) == {name: FULL[name] for name in ALWAYS} | {"link": "http://a/", "job": "t"}


def test_two_fields_may_change_names() -> None:
    assert chosen({"url": "final_url", "final_url": "url"})["final_url"] == "http://a/"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("urls", "names 'urls', but a result has: url, final_url"),
        ({"url": 7}, "maps url to 7, but"),
        ({"url": ""}, "maps url to '', but"),
        ({"url": "_id"}, "maps url to '_id', but"),
        ({"url": "a,b"}, "maps url to 'a,b', but"),
        ({"url": "absent"}, "maps url to 'absent', but"),
        ({"body": "text"}, "the name of this field is fixed"),
        ({"url": "x", "host": "x"}, "gives two fields one name"),
        ({"url": "status"}, "gives two fields one name"),
        ('{"url": ', "must be a JSON object"),
        ('["url"', "must be a JSON array"),
        ("url_id;url", "names 'url_id;url'"),
    ],
)
def test_what_cannot_be_is_refused(value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        result_fields({"SITE_RESULT_FIELDS": value})
    assert said in str(caught.value)
    assert "SITE_RESULT_FIELDS" in str(caught.value)


def test_fields_that_no_result_has_stay() -> None:
    names = result_fields({"SITE_RESULT_FIELDS": "url"})
    assert written({"url_id": "a", "mine": 1, "host": "x"}, names) == {"url_id": "a", "mine": 1}


async def _store(sink: LocalSink, document: dict[str, Any]) -> None:
    await sink.open()
    await sink.write([Record(document["url_id"], document, 100)])
    await sink.close()


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("", {"task_id": "theirs", "host": "h.test", "encoding": "utf-8"}),
        ("url", {"task_id": "theirs", "host": "theirs", "encoding": "theirs"}),
        (
            json.dumps({"host": "site"}),
            {"task_id": "theirs", "host": "theirs", "encoding": "theirs", "site": "h.test"},
        ),
    ],
)
def test_a_crawl_leaves_the_fields_of_a_producers_document(
    tmp_path: Path, setting: str, expected: dict[str, str]
) -> None:
    """Crawled twice: the second result knows which fields are not ours."""
    import asyncio

    theirs = {"url_id": "1", "task_id": "theirs", "host": "theirs", "encoding": "theirs", "mine": 1}
    asyncio.run(_store(LocalSink(tmp_path), theirs))
    for _ in range(2):
        found = crawl(
            tmp_path, [{"url": "http://h.test/x", "meta": {"url_id": "1"}}], SITE_RESULT_FIELDS=setting
        )
    document = found.documents["1"]
    assert {name: document[name] for name in expected} == expected
    assert (document["status"], document["mine"]) == (200, 1)
