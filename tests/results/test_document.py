"""Documents as JSON."""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy.http import Headers

from site_spider.adapters.local.results import LocalSink
from site_spider.contracts.sink import Record
from site_spider.errors import ConfigError, SinkRejected
from site_spider.results.document import (
    ALWAYS,
    MARK,
    PAGE_FIELDS,
    Result,
    absent,
    encode,
    headers_json,
    looked_at,
    result_fields,
    settled,
    shortened,
    without_mark,
    written,
)
from tests.in_process.engine import crawl

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)


@given(st.dictionaries(st.text(), VALUES))
def test_a_document_is_one_line_that_reads_back_equal(document: dict[str, Any]) -> None:
    """Whatever text is in it: a line feed inside a bulk request would break it."""
    line = encode(document)
    assert b"\n" not in line
    assert b"\r" not in line
    assert json.loads(line) == document


@pytest.mark.parametrize(("status", "is_told"), [(200, True), (404, False), (None, False)])
def test_any_good_answer_takes_back_that_a_page_is_gone(status: int | None, is_told: bool) -> None:
    """Also of a sitemap that breaks off, or a page that not all could be extracted from."""
    document = Result("a", status, description="sitemap read up to 1 entries").document()
    assert ("gone_at" in document) is is_told


def nested(depth: int) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for _ in range(depth):
        document = {"deeper": document}
    return document


@dataclass
class Point:
    """orjson would write it."""

    x: int = 1


class Colour(Enum):
    """Likewise."""

    RED = "red"


class Word(StrEnum):
    """Text, so both write it."""

    YES = "yes"


@pytest.mark.parametrize(
    "value",
    [
        *(math.nan, math.inf, [math.nan], {"a": [1, {"b": -math.inf}]}, nested(200_000)),
        *(b"bytes", {1, 2}, object(), Point(), datetime.now(UTC), UUID(int=1), Colour.RED, [Point()]),
    ],
)
def test_what_json_has_no_words_for_is_refused(value: Any) -> None:
    """The record is at fault, and its error says so."""
    with pytest.raises(SinkRejected, match="cannot be written as JSON"):
        encode({"field": value})


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("half \ud83c of a pair", b'"half ? of a pair"'),
        ({"\udf89": 1}, b'{"?":1}'),
        (2**64, b"18446744073709551616"),
        ({1: None, "b": True}, b'{"1":null,"b":true}'),
        ((1.5, Word.YES), b'[1.5,"yes"]'),
        (nested(300), b'{"deeper":' * 300 + b"{}" + b"}" * 300),
        ('\x00\x1f\x7f"\\/\u2028é🎉', '"\\u0000\\u001f\x7f\\"\\\\/\u2028é🎉"'.encode()),
    ],
)
def test_what_orjson_refuses_is_written_as_by_json(value: Any, written: bytes) -> None:
    assert encode({"field": value}) == b'{"field":%b}' % written


@given(st.text(st.characters(exclude_categories=())))
def test_a_long_body_is_written_as_a_short_one(some: str) -> None:
    """In slices, half surrogate pairs included."""
    body = some * (70_000 // (len(some) or 1) + 1) if some else "x" * 70_000
    expected = json.dumps({"a": 1, "body": body, "b": "é"}, ensure_ascii=False, separators=(",", ":"))
    assert encode({"a": 1, "body": body, "b": "é"}) == expected.encode("utf-8", "replace")


def test_a_body_is_halved_until_nothing_is_left() -> None:
    """By characters, never within one; all other fields stay."""
    document = {"body": "🎉🎈", "description": "why", "headers": "{}"}
    assert shortened(document, 0) == document
    assert shortened(document, 1) == {**document, "body": "🎉", "body_truncated": True}
    assert shortened(document, 2) == {**document, "body": "", "body_truncated": True}
    assert shortened(document, 3) is None
    assert shortened({"body": None}, 1) is None
    assert shortened({}, 1) is None


def test_binary_content_is_cut_to_what_can_be_decoded() -> None:
    """Base64 has four characters for three bytes."""
    document = {"body": None, "body_base64": b64encode(b"0123456789").decode()}  # 16 characters
    cut = shortened(document, 1)
    assert (b64decode(cut["body_base64"]), cut["body_truncated"]) == (b"012345", True)
    assert shortened(document, 3) == {"body": None, "body_base64": "", "body_truncated": True}


# --- Whose a field is that a result has no value for


NONE = Result("a", description="no answer").document()


@pytest.mark.parametrize(
    ("stored", "is_kept"),
    [
        ({"proxy": "x"}, True),
        ({"proxy": None}, False),
        ({}, False),
        ({"proxy": "x", MARK: "encoding,proxy"}, True),
        ({"proxy": "x", MARK: ""}, False),
        ({"proxy": "x", MARK: ["proxy"]}, True),  # somebody's own field of this name
        ({"proxy": "x", "latency_ms": None, "redirects": 0}, False),  # of an earlier version
        ({"proxy": "x", "latency_ms": None, "redirects": 0, MARK: "encoding,proxy"}, True),
    ],
)
def test_a_value_is_the_producers_unless_we_wrote_it(stored: dict[str, Any], is_kept: bool) -> None:
    over = settled(stored, NONE)
    assert ("proxy" not in over) is is_kept
    assert over[MARK] == ",".join(absent(NONE))


@pytest.mark.parametrize(
    ("before", "after"), [({MARK: "etag,proxy,title"}, "etag,title"), ({MARK: ""}, ""), ({}, "body_hash")]
)
def test_a_check_that_fails_leaves_in_the_mark_what_it_does_not_write(before: dict[str, Any], after: str) -> None:
    """Of what nobody has written a mark for, the content is not ours either."""
    failed = Result("a", description="no answer", unchanged=None, proxy="http://p:1", reason="x")
    mark = settled(before, failed.document())[MARK].split(",")
    assert set(filter(None, after.split(","))) <= set(mark)
    assert {"body_hash", "etag"}.isdisjoint(mark) is (before == {MARK: ""})
    assert {"proxy", "reason"}.isdisjoint(mark)


FAILED = Result("a", 500, "{}", description="x", url="http://a/", unchanged=None).document()
OURS: dict[str, Any] = dict.fromkeys(PAGE_FIELDS) | Result("a", 200, "{}", "text", url="http://a/").document()


@pytest.mark.parametrize("stored", [{MARK: "title"}, {"latency_ms": 1.5, "redirects": 0}])
@pytest.mark.parametrize("names", ["url,etag,title", "proxy,etag,title", "latency_ms,redirects,url,etag,title"])
def test_what_a_failed_check_leaves_is_whose_it_was(stored: dict[str, Any], names: str) -> None:
    """Also where the failure has a value for all that it writes; in an earlier version all was ours."""
    chosen = result_fields({"SITE_RESULT_FIELDS": names})
    before = {**stored, "etag": "1", "title": "x", "proxy": "x"}
    failed = written({**FAILED, "latency_ms": 2.5, "redirects": 1}, chosen)
    seen = {name: before[name] for name in looked_at([failed]) if name in before}
    after = {**before, **settled(seen, failed, [*chosen.values()])}
    over = settled(after, written(OURS, chosen))
    assert over["etag"] is None
    assert ("title" in over) is (MARK not in stored)
    assert ("proxy" in over) is ("proxy" in chosen)


@pytest.mark.parametrize("field", ["encoding", "title", "proxy"])
@pytest.mark.parametrize("names", ["", '{"encoding": "e", "title": "t", "url": "u", "spider": "s"}', '{"proxy": "by"}'])
def test_a_failed_check_leaves_a_producers_values_under_any_name(field: str, names: str) -> None:
    """Of a document that no result was written to before, and of fields that a failure does not have."""
    chosen = result_fields({"SITE_RESULT_FIELDS": names})
    name = chosen.get(field, field)
    stored: dict[str, Any] = {name: "theirs"}
    for document in (FAILED, OURS):
        stored |= settled(stored, written(document, chosen), [*chosen.values()])
    assert stored[name] == "theirs"


def test_fields_of_the_contract_are_always_written_and_what_is_no_result_as_it_is() -> None:
    """A null in a document of a pipeline of one's own is meant. Readers do not see the mark."""
    stored = {"status": 7, "headers": "x", "body": "x", "description": "x"}
    over = settled(stored, Result("a").document())
    assert {name: over[name] for name in stored} == dict.fromkeys(stored)
    document = {"url_id": "a", "task_id": None}
    assert settled({"task_id": "x"}, document) is document
    assert without_mark(dict(settled({}, NONE))) == NONE


# --- SITE_RESULT_FIELDS: which fields of a result are written, and under which names


FULL = Result("a", 200, "{}", "text", None, task_id="t", url="http://a/", meta={"x": 1}).document()


def chosen(value: Any) -> dict[str, Any]:
    return written(FULL, result_fields({"SITE_RESULT_FIELDS": value}))


LINK_AND_JOB = {name: FULL[name] for name in ALWAYS} | {"link": "http://a/", "job": "t"}
URL_AND_TASK = {name: FULL[name] for name in ALWAYS | {"url", "task_id"}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((value, FULL) for value in ("", None, [], {}, "{}", " , ")),  # all are written by default
        *((value, URL_AND_TASK) for value in ("url,task_id", ["url", "task_id"], '["url", "task_id"]')),
        (" url , task_id,status", URL_AND_TASK),
        ({"url": "link", "task_id": "job"}, LINK_AND_JOB),
        ('{"url": "link", "task_id": "job"}', LINK_AND_JOB),
    ],
)
def test_a_list_names_those_that_are_written_beside_the_contracts_and_a_mapping_gives_other_names(
    value: Any, expected: dict[str, Any]
) -> None:
    assert chosen(value) == expected


def test_two_fields_may_change_names_and_those_that_no_result_has_stay() -> None:
    assert chosen({"url": "final_url", "final_url": "url"})["final_url"] == "http://a/"
    names = result_fields({"SITE_RESULT_FIELDS": "url"})
    assert written({"url_id": "a", "mine": 1, "host": "x"}, names) == {"url_id": "a", "mine": 1}


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


async def _store(sink: LocalSink, document: dict[str, Any]) -> None:
    await sink.open()
    await sink.write([Record(document["url_id"], document, 100)])
    await sink.close()


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("", {"task_id": "theirs", "host": "h.test", "encoding": "utf-8"}),
        ("url", {"task_id": "theirs", "host": "theirs", "encoding": "theirs"}),
        (json.dumps({"host": "site"}), {"task_id": "theirs", "host": "theirs", "encoding": "theirs", "site": "h.test"}),
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
        found = crawl(tmp_path, [{"url": "http://h.test/x", "meta": {"url_id": "1"}}], SITE_RESULT_FIELDS=setting)
    document = found.documents["1"]
    assert {name: document[name] for name in expected} == expected
    assert (document["status"], document["mine"]) == (200, 1)


# --- headers of a response -------------------------------------------------------------------------------

LINES = st.lists(st.tuples(st.binary(min_size=1), st.binary()))


@given(LINES)
def test_headers_are_spelled_as_python_spells_json(lines: list[tuple[bytes, bytes]]) -> None:
    """Whatever bytes a server sends; indices hold this text."""
    headers = Headers()
    for name, value in lines:
        headers.appendlist(name, value)
    read = {name.decode("latin-1"): [value.decode("latin-1") for value in values] for name, values in headers.items()}
    assert headers_json(headers) == json.dumps(read, ensure_ascii=False)
