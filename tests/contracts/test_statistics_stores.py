"""The contract of a store of statistics, over all of them, and a crawl that writes to each."""

from __future__ import annotations

from pathlib import Path

import pytest

from site_spider.contracts.sink import Answer, Record
from site_spider.errors import ConfigError, SinkUnavailable
from tests.contracts.statistics_stores import NAN, StoreCase, case, store_case
from tests.contracts.trials import written
from tests.in_process.engine import crawl

__all__ = ["case", "store_case"]

SEEDS = [{"url": f"http://h.test/{number}", "meta": {"task_id": "t"}} for number in range(5)]


def test_a_crawl_writes_each_interval_and_the_end(case: StoreCase, tmp_path: Path) -> None:
    settings = {**case.settings, "SITE_STATS_TO": case.to, "SITE_STOP_GRACE_SECONDS": 300}
    found = crawl(tmp_path / "crawl", SEEDS, **settings)
    assert found.lag == 0
    documents = case.read()
    [last] = [document for document in documents.values() if document["moment"] == "close"]
    assert int(last["total_num"]) == 5
    if case.to == "local":
        assert last["seeds"]["completed"] == 5


def test_a_document_that_is_written_twice_is_one(store_case: StoreCase) -> None:
    store = store_case.new()
    first, second = Record("p-0", {"process": "p", "total_num": 1}, 50), Record("p-1", {"process": "p"}, 50)
    verdicts = written(store, [first], [first, second])
    assert [verdict.answer for verdict in verdicts] == [Answer.ACKNOWLEDGED] * 3
    found = store_case.read()
    assert found.keys() == {"p-0", "p-1"}
    assert int(found["p-0"]["total_num"]) == 1


def test_a_store_opens_again_after_it_was_closed(store_case: StoreCase) -> None:
    store = store_case.new()
    for number in range(2):
        written(store, [Record(f"p-{number}", {"process": "p"}, 50)])
    assert len(store_case.read()) == 2


def test_a_bad_document_is_refused_alone(store_case: StoreCase) -> None:
    store = store_case.new()
    good = Record("p-0", {"process": "p"}, 50)
    verdicts = written(store, [good, Record("p-1", NAN, 50), Record("p-2", {"process": "p"}, 50)])
    assert [verdict.answer for verdict in verdicts] == [
        Answer.ACKNOWLEDGED,
        Answer.REJECTED if store_case.refuses_nan else Answer.ACKNOWLEDGED,  # CSV has words for anything
        Answer.ACKNOWLEDGED,
    ]
    assert store_case.read().keys() - {"p-1"} == {"p-0", "p-2"}


def test_a_store_that_is_away_says_so_with_its_setting(store_case: StoreCase) -> None:
    assert store_case.kind is not None
    store = store_case.kind.for_statistics(store_case.away)
    with pytest.raises((SinkUnavailable, ConfigError)) as raised:  # a folder that can never be
        written(store, [Record("p-0", {"process": "p"}, 50)])
    assert all(words in str(raised.value) for words in store_case.away_words)
