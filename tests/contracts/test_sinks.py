"""One suite over all sinks and sinks of items: what `site_spider/contracts/sink.py` promises."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import fields, replace
from typing import Any

import pytest

from site_spider.contracts.sink import Answer, Record, Verdict
from site_spider.errors import ConfigError, SinkUnavailable
from site_spider.results.delivery import Delivery, OnDemand
from site_spider.results.document import CHECK_FIELDS, PAGE_FIELDS, Result, SeedPage, item_record
from tests.contracts.sinks import OF_ITEMS, SinkCase, case, record
from tests.contracts.trials import answers, written

__all__ = ["case"]

# not those that only append, a log and an archive: nothing in them is changed, and their readers merge
every_store = pytest.mark.parametrize("case", OF_ITEMS[:3], indirect=True)
RICH: dict[str, Any] = {
    "url_id": "rich",
    "status": 200,
    "headers": '{"Content-Type": ["text/html; charset=utf-8"], "Set-Cookie": ["a=1", "b=2"]}',
    "body": 'Grüße, 漢字, emoji 🎉👩‍👩‍👧, NUL \0, line\u2028separator, \ttab "quotes" \\ and \' too',
    "description": None,
    "url": "http://host.test/ä?q=🎉",
    "depth": 3,
    "latency_ms": 12.5,
    "body_truncated": False,
    "fetched_at": "2026-01-02T03:04:05.678+00:00",
    "meta": {"mine": [1, "two", None, {"three": 3.5}], "empty": {}, "dotted.name": True, "deep": {"er": "x" * 9000}},
}


def write(case: SinkCase, *batches: Sequence[Record]) -> list[Verdict]:
    return written(case.new(), *batches)


def read(case: SinkCase, key: str) -> Any:
    with closing(case.new_reader()) as reader:
        return reader.get(key)


def keys(case: SinkCase, **filters: Any) -> set[str]:
    with closing(case.new_reader()) as reader:
        found = [document["url_id"] for document in reader.search(**filters)]
        assert len(found) == len(set(found))
        filters.pop("limit", None)
        assert reader.count(**filters) >= len(found)
        return set(found)


def test_odd_keys_are_keys(case: SinkCase) -> None:
    """A url_id is text: no sign in it has a meaning of its own."""
    odd = ["ä🎉", "a/b?c#d%20", "with blank", '"quoted"', "-1", "x" * 512]
    verdicts = write(case, [record(key, {"url_id": key, "status": 200}) for key in odd])
    assert {verdict.answer for verdict in verdicts} == {Answer.ACKNOWLEDGED}
    assert keys(case) == set(odd)
    for key in odd:
        assert read(case, key) == {"url_id": key, "status": 200}


def test_a_document_comes_back_as_it_was_written_however_often(case: SinkCase) -> None:
    """Unicode, emoji, NUL, nulls, nesting and numbers survive; idempotence (rule 4).

    A body of 1 MB, a header of 100 KB and a URL of 60 KB are no reason to refuse a result, nor is a broken character.
    """
    large = {
        "url_id": "large",
        "status": 200,
        "body": "word 🎉 " * 125_000,
        "headers": "h" * 100_000,
        "url": "http://host.test/" + "é" * 30_000,
        "meta": {"note": "漢" * 40_000},
    }
    batch = [record("a", RICH), record("b", {"status": None, "description": "no answer"}), record("large", large)]
    batch.append(record("half", {"body": "x\ud800y"}))
    verdicts = write(case, batch, batch)
    assert {verdict.answer for verdict in verdicts} == {Answer.ACKNOWLEDGED}
    assert keys(case) == {"rich", "b", "large", "half"}
    assert read(case, "a") == RICH
    assert read(case, "large") == large
    assert read(case, "half") == {"url_id": "half", "body": "x?y"}


def test_fields_of_others_survive(case: SinkCase) -> None:
    """A write changes the fields it has, also to null, and leaves the rest alone; the last one wins.

    Objects are merged as well, where the store knows what an object is.
    """
    write(
        case,
        [record("a", {"producer": "theirs", "status": 500, "body": "old", "meta": {"x": 1, "y": 2}})],
        [record("a", {"status": 404, "meta": {"y": 3}})],
        [record("a", {"status": 200, "body": None})],
    )
    assert read(case, "a") == {
        "url_id": "a",
        "producer": "theirs",
        "status": 200,
        "body": None,
        "meta": {"x": 1, "y": 3} if case.merges_objects else {"y": 3},
    }


def test_a_later_result_leaves_nothing_of_the_earlier_one(case: SinkCase) -> None:
    """A page that was an image and is gone now; only what the producer wrote survives, `meta` included.

    What checks have found stays until the next one.
    """
    samples: dict[str, Any] = {"str": "QUJD", "int": 7, "float": 7.5, "bool": True, "dict": {"mine": 1}, "list": ["x"]}
    kept = {"url_id", "meta", "additional_urls", "gone_at", *CHECK_FIELDS}
    ours = [field for field in fields(Result) if field.name not in kept]
    values = {field.name: samples[re.split(r"\W", str(field.type))[0]] for field in ours}
    times = ("fetched_at", "published_at", "changed_at", "checked_at")
    at = dict.fromkeys(times, "2026-01-02T03:04:05.678+00:00")
    full = Result("a", **values | at | {"unchanged": False})
    nulls = dict.fromkeys(PAGE_FIELDS)  # that Results adds with SITE_TEXT
    verdicts = write(
        case,
        [record("a", {"producer": "theirs"})],
        [record("a", full.document())],
        [record("a", nulls | Result("a", description="gone").document())],
    )
    assert {verdict.answer for verdict in verdicts} == {Answer.ACKNOWLEDGED}
    document = read(case, "a")
    left = {name: value for name, value in document.items() if value not in (None, False)}
    assert left == {"url_id": "a", "producer": "theirs", "description": "gone"}


def test_a_check_that_fails_leaves_the_content(case: SinkCase) -> None:
    """Of the failure nothing stays when the page answers again; what a producer wrote stays in any case."""
    good = Result("a", 200, "{}", "text", url="http://a.test/", etag="1", fetched_at="2026-01-02T03:04:05.678+00:00")
    failure = {"description": "gone", "reason": "HTTP 404", "status": 404, "unchanged": None, "proxy": "http://p:1"}
    failed = replace(good, body=None, etag=None, gone_at=good.fetched_at, next_at=good.fetched_at, **failure)
    write(case, [record("a", {"encoding": "theirs"})], [record("a", good.document())])
    verdicts = write(case, [record("a", failed.document())])
    assert {verdict.answer for verdict in verdicts} == {Answer.ACKNOWLEDGED}
    document = read(case, "a") or {}
    theirs = None if case.name == "kafka" else "theirs"  # a topic's readers see every null
    said = ("status", "body", "etag", "encoding", "reason", "proxy", "unchanged")
    assert [document[name] for name in said] == [404, "text", "1", theirs, "HTTP 404", "http://p:1", False]
    write(case, [record("a", good.document())])
    document = read(case, "a") or {}
    back = [document.get(name) for name in (*said, "gone_at", "description")]
    assert back == [200, "text", "1", theirs, None, None, False, None, None]


def test_one_bad_record_does_not_stop_the_others(case: SinkCase) -> None:
    """Of a thousand, 998 are stored, one is refused in the server's words, and one for which JSON has no words.

    An empty batch has no verdict.
    """
    batch = [record(str(number), {"status": 200, "body": "text " * 20}) for number in range(1000)]
    batch[500], batch[700] = record("poison", case.poison), record("a", {"x": {1, 2}})
    verdicts = write(case, [], batch)
    refused = [number for number, verdict in enumerate(verdicts) if verdict.answer is Answer.REJECTED]
    assert refused == [500, 700]
    assert case.poison_reason in verdicts[500].reason
    assert sum(verdict.answer is Answer.ACKNOWLEDGED for verdict in verdicts) == 998
    assert len(keys(case, limit=None)) == 998


def test_readers_filter_by_status_task_spider_host_and_url(case: SinkCase) -> None:
    one = {"task_id": "Job One", "host": "h.test", "spider": "shop"}
    two = {"task_id": "Job Two", "host": "o.test", "spider": "other"}
    write(
        case,
        [
            record("a", {**one, "status": 200, "url": "http://h.test/a"}),
            record("b", {**one, "status": 404, "url": "http://h.test/b"}),
            record("c", {**two, "status": None, "url": "http://o.test/"}),
            record("d", {**two, "status": 200, "url": "http://o.test/d"}),
        ],
    )
    assert keys(case) == {"a", "b", "c", "d"}
    assert keys(case, status=200) == {"a", "d"}
    assert keys(case, status="none") == keys(case, status="failed") == {"c"}
    assert keys(case, status=500) == set()
    for name, value in one.items():
        assert keys(case, fields={name: value}) == {"a", "b"}, name
    assert keys(case, status=200, fields={"task_id": "Job Two"}) == {"d"}
    assert keys(case, fields={"url": "http://h.test/b"}) == {"b"}
    assert keys(case, status=200, fields={"host": "h.test", "spider": "shop"}) == {"a"}
    assert len(keys(case, limit=3)) == 3
    assert keys(case, limit=0) == set()
    reader = case.new_reader()
    assert reader.count() == 4
    assert reader.count(status=200, fields={"task_id": "Job One"}) == 1
    reader.close()


def test_readers_page_through_everything(case: SinkCase) -> None:
    assert keys(case) == set()
    assert read(case, "a") is None
    write(case, [record(f"{number:04}", {"status": 200}) for number in range(1234)])
    assert len(keys(case, limit=None)) == 1234
    assert len(keys(case)) == 1000
    reader = case.new_reader()
    some = reader.search(limit=None)
    next(some)
    some.close()  # type: ignore[attr-defined]
    reader.close()


async def test_several_writers_share_the_store(case: SinkCase) -> None:
    async def one(number: int) -> None:
        sink = case.new()
        delivery = Delivery(sink)
        await delivery.open(300)
        answers: list[Verdict] = []
        for key in range(100):
            delivery.submit(record(str(key), {f"field_{number}": number}), answers.append)
        assert await delivery.close(300) == 0
        assert {verdict.answer for verdict in answers} == {Answer.ACKNOWLEDGED}

    await asyncio.gather(*(one(number) for number in range(4)))
    assert read(case, "7") == {"url_id": "7", **{f"field_{number}": number for number in range(4)}}


async def test_a_server_that_is_away_is_named(case: SinkCase) -> None:
    sink = case.sink.from_settings(case.away)
    async with asyncio.timeout(300):
        with pytest.raises((SinkUnavailable, ConfigError)) as caught:  # a folder that can never be
            await Delivery(sink).open(1)
    for word in case.away_words:
        assert word in str(caught.value)
    reader = case.reader.from_settings(case.away)
    for ask in (lambda: reader.get("a"), lambda: list(reader.search()), reader.count):
        with pytest.raises((SinkUnavailable, ConfigError), match=case.away_words[0]):
            ask()
    reader.close()


async def test_a_sink_can_be_opened_again(case: SinkCase) -> None:
    sink = case.new()
    for act in (sink.open, sink.open, sink.close, sink.close, sink.open):
        await act()
    assert (await sink.write([record("a", {"status": 200})]))[0].answer is Answer.ACKNOWLEDGED
    await sink.close()


@every_store
def test_a_producers_value_is_not_replaced_by_null(case: SinkCase) -> None:
    """Neither by the first result, nor by later ones; also one that the producer writes after a result.

    What we wrote over a producer's is ours: the next result without a value leaves null there.
    """
    theirs = {"task_id": "theirs", "host": "theirs.test", "encoding": "theirs", "status": 7}
    none = Result("a", description="no answer").document()
    write(case, [record("a", theirs)], [record("a", none)], [record("a", none)])
    document = read(case, "a")
    assert {name: document[name] for name in theirs} == theirs | {"status": None}
    write(case, [record("a", {"content_type": "theirs"})], [record("a", none)])
    document = read(case, "a")
    assert (document["content_type"], document["task_id"]) == ("theirs", "theirs")
    full = Result("a", 200, encoding="utf-8", task_id="ours").document()
    write(case, [record("a", full)], [record("a", none)])
    document = read(case, "a")
    assert (document["encoding"], document["task_id"], document["host"]) == (None, None, "theirs.test")


def test_what_is_known_of_many_documents_is_one_question(case: SinkCase) -> None:
    if case.name == "warc":  # an archive is no store to look pages up in
        return
    reader = case.reader.from_settings(case.settings)
    assert reader.known(["a"], ["status"]) == {}
    at = "2026-01-02T03:04:05.678+00:00"
    page = Result("a", 200, body="long", etag='W/"1"', body_hash="0", checked_at=at)
    write(case, [record("a", page.document()), record("b", {"unchanged": True}), record("c", {})])
    found = reader.known(["a", "b", "none", "é" * 10], ["status", "etag", "checked_at", "unchanged"])
    reader.close()
    assert found.keys() - {"c"} == {"a", "b"}
    said = {name: found["a"].get(name) for name in ("status", "etag", "checked_at", "unchanged")}
    assert said == {"status": 200, "etag": 'W/"1"', "checked_at": at, "unchanged": False}
    assert found["b"].get("unchanged") is True
    assert "body" not in found["a"]


@every_store
def test_documents_are_found_by_times_that_they_must_not_exceed(case: SinkCase) -> None:
    """A time that a document lacks, or has as null, exceeds none. Only what is asked for has to come."""
    reader = case.new_reader()
    assert list(reader.search(before={"checked_at": "2026-01-01T00:00:00.000+00:00"})) == []
    pages = {
        name: Result(name, 200, host="a.test", body="long", checked_at=f"2026-01-0{name}T00:00:00.000+00:00")
        for name in "123"
    }
    pages["4"] = Result("4", None, host="a.test", description="no answer")
    pages["5"] = Result("5", 200, host="b.test", body="long")
    write(case, [record(name, page.document()) for name, page in pages.items()])
    before = {"checked_at": "2026-01-02T00:00:00.000+00:00", "next_at": "2026-01-02T00:00:00.000+00:00"}
    found = {one["url_id"]: one for one in reader.search(before=before, names=["checked_at", "status"])}
    assert found.keys() == {"1", "2", "4", "5"}
    assert (found["1"]["checked_at"], found["1"]["status"]) == ("2026-01-01T00:00:00.000+00:00", 200)
    assert "body" not in found["1"]
    in_host = reader.search(limit=None, fields={"host": "a.test"}, before=before, names=["status"])
    assert {one["url_id"] for one in in_host} == {"1", "2", "4"}
    assert len(list(reader.search(limit=2, before=before, names=["status"]))) == 2
    reader.close()


@every_store
def test_of_two_who_exchange_a_field_one_succeeds(case: SinkCase) -> None:
    write(case, [record(name, Result(name, 200, body="b").document()) for name in "ab"])
    reader, other = case.new_reader(), case.new_reader()
    assert reader.exchange("recrawl", {"a": (None, "one"), "c": (None, "one")}) == {"a"}
    assert other.exchange("recrawl", {"a": (None, "two"), "b": (None, "two")}) == {"b"}
    assert reader.exchange("recrawl", {"b": ("one", "three"), "a": ("one", "three")}) == {"a"}
    known = reader.known(["a", "b", "c"], ["recrawl"])
    assert {url_id: document["recrawl"] for url_id, document in known.items()} == {"a": "three", "b": "two"}
    reader.close()
    other.close()
    document = read(case, "a")
    assert (document["status"], document["body"]) == (200, "b")


@every_store
def test_the_document_of_a_page_that_is_gone_is_deleted(case: SinkCase) -> None:
    page = Result("a", 404, description="HTTP 404", gone_at="2026-01-01T00:00:00.000+00:00").document()
    write(case, [record("a", {"own": "x"}), record("b", {"status": 200})])
    write(case, [replace(record("a", page), is_gone=True), record("b", {"status": 201})])
    write(case, [replace(record("a", page), is_gone=True)])
    assert read(case, "a") is None
    write(case, [record("a", {"status": 202})])
    assert [(read(case, name) or {}).get("status") for name in "ab"] == [202, 201]


# --- sinks of items: a place of their own, and documents that are replaced -------------------------------


every_sink, with_a_reader, with_names = (
    pytest.mark.parametrize("case", some, indirect=True) for some in (OF_ITEMS, OF_ITEMS[:3], OF_ITEMS[1:3])
)


def item(place: int, fields: dict[str, Any], url: str = "http://h.test/p", task_id: str = "t") -> Record:
    return item_record(fields, SeedPage(url, "page", task_id=task_id), place, "shop")


def found(case: SinkCase, **filters: Any) -> dict[str, dict[str, Any]]:
    with closing(case.new_reader_of_items()) as reader:
        documents = list(reader.search(limit=None, **filters))
        assert reader.count(**filters) == len(documents)
    return {document["_page"]["url_id"] + str(document["n"]): document for document in documents}


@every_sink
def test_items_come_back_as_they_were_written(case: SinkCase) -> None:
    """Nested, in any script, also what is called as fields of results are; results are elsewhere."""
    rich = {
        "n": 1,
        "title": "Grüße 🎉",
        "body": "mine" * 10,
        "price": 12.5,
        "tags": [{"b": [1, None]}],
        "url_id": "mine, too",
        "language": ["en", "fr"],
        "absent": "Ann, Bo",
        "body_bytes": "12 kB",
        "empty": None,
    }
    one = item(1, rich)
    assert answers(written(OnDemand(case.new_for_items()), [one])) == [Answer.ACKNOWLEDGED]
    with closing(case.new_reader_of_items()) as reader:
        document = reader.get("page-1")
    assert document is not None
    document.pop("_id", None)
    assert document == one.document
    with closing(case.new_reader()) as reader:
        assert list(reader.search()) == []


@every_sink
def test_an_item_that_is_written_again_is_the_later_one(case: SinkCase) -> None:
    earlier, later = item(1, {"n": 1, "deep": {"old": 1}}), item(1, {"n": 1, "deep": {"new": 2}})
    verdicts = written(OnDemand(case.new_for_items()), [earlier], [later], [later])
    assert answers(verdicts) == [Answer.ACKNOWLEDGED] * 3
    (document,) = found(case).values()
    if case.name != "kafka":  # a log keeps both
        assert document["deep"] == {"new": 2}


@every_sink
def test_a_bad_item_is_refused_alone(case: SinkCase) -> None:
    """An item_id of any length is for the server to refuse."""
    bad = record("x", {"n": float("nan")})
    verdicts = written(OnDemand(case.new_for_items()), [item(1, {"n": 1}), bad, item(2, {"n": 2})])
    assert answers(verdicts) == [Answer.ACKNOWLEDGED, Answer.REJECTED, Answer.ACKNOWLEDGED]
    assert set(found(case)) == {"page1", "page2"}


@with_a_reader
def test_items_are_found_by_what_their_page_is(case: SinkCase) -> None:
    records = [
        item(1, {"n": 1}, "http://h.test/p"),
        item(2, {"n": 2}, "https://h.test:8443/q", "other"),
        item(3, {"n": 3}, "http://h.test.evil/p"),
    ]
    written(OnDemand(case.new_for_items()), records)
    assert set(found(case, fields={"task_id": "t"})) == {"page1", "page3"}
    assert set(found(case, fields={"host": "h.test"})) == {"page1", "page2"}
    assert set(found(case, fields={"url": "http://h.test/p"})) == {"page1"}
    assert set(found(case, fields={"spider": "shop"})) == {"page1", "page2", "page3"}
    assert found(case, fields={"task_id": "t", "spider": "other"}) == {}


@with_a_reader
def test_items_are_known_by_their_ids(case: SinkCase) -> None:
    """As those of `item_id`, which lists that grow are compared by; their values are as they were written."""
    records = [item(n, {"item_id": name, "language": ["en"], "url_id": "mine"}) for n, name in enumerate(["a", "b/ü"])]
    written(OnDemand(case.new_for_items()), records)
    with closing(case.new_reader_of_items()) as reader:
        known = reader.known(["a", "b/ü", "c"], ["_page", "language"])
    assert {key: (one["_page"]["fetched_at"], one["language"]) for key, one in known.items()} == {
        one.key: (one.document["_page"]["fetched_at"], ["en"]) for one in records
    }


@with_names
def test_one_place_for_results_and_items_is_refused(case: SinkCase) -> None:
    """They would overwrite each other, or share a mapping. That two topics are one is said with all topics."""
    pairs = {
        "elasticsearch": ("SITE_ITEMS_INDEX", "SITE_RESULTS_INDEX"),
        "hbase": ("SITE_HBASE_ITEMS_TABLE", "SITE_HBASE_TABLE"),
    }
    items, results = pairs[case.name]
    with pytest.raises(ConfigError, match=f"{items} and {results} are both"):
        case.sink.for_items(case.settings | {items: case.settings[results]})  # type: ignore[attr-defined]
