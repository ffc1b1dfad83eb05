"""One suite over all sinks of items: a place of their own, and documents that are replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from site_spider.contracts.sink import Answer, Record
from site_spider.errors import ConfigError
from site_spider.results.delivery import OnDemand
from site_spider.results.document import SeedPage, item_record
from tests.contracts.sinks import OF_ITEMS, SinkCase, case, record
from tests.contracts.trials import answers, written

__all__ = ["case"]
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
def test_results_are_found_by_spider_host_and_url(case: SinkCase) -> None:
    common = {"status": 200, "host": "h.test", "spider": "shop"}
    written(
        case.new(),
        [
            record("a", {**common, "url": "http://h.test/a"}),
            record("b", {**common, "url": "http://h.test/b", "status": 404}),
            record("c", {**common, "url": "http://o.test/", "host": "o.test", "spider": "other"}),
        ],
    )
    with closing(case.new_reader()) as reader:

        def keys(**filters: Any) -> Iterator[str]:
            return (document["url_id"] for document in reader.search(**filters))

        assert set(keys(fields={"host": "h.test"})) == {"a", "b"}
        assert set(keys(fields={"spider": "other"})) == {"c"}
        assert set(keys(fields={"url": "http://h.test/b"})) == {"b"}
        assert set(keys(status=200, fields={"host": "h.test", "spider": "shop"})) == {"a"}
        assert reader.count(fields={"host": "h.test"}) == 2


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
