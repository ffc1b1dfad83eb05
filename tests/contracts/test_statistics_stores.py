"""The contract of a store of statistics, over all of them, and a crawl that writes to each."""

from __future__ import annotations

import csv
import json
import math
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from docs.examples.csv_statistics import CsvStatistics
from site_spider.adapters.elasticsearch.sink import ElasticsearchSink
from site_spider.adapters.kafka.seed_log import KafkaSeedLog
from site_spider.adapters.local.results import FILE_NAME, LocalSink
from site_spider.adapters.redis.done import RedisStatistics
from site_spider.contracts.sink import Answer, Record, StatisticsStore
from site_spider.errors import ConfigError, SinkUnavailable, TopicMissing
from tests.contracts.sinks import NOBODY, drop_index
from tests.contracts.trials import answers, written
from tests.in_process.engine import crawl
from tests.real_servers import elasticsearch_client

Documents = dict[str, dict[str, Any]]  # by their ids


@dataclass
class StoreCase:
    """A kind of store; `settings` lead to an empty one, `away` nowhere; `to` is its name in SITE_STATS_TO."""

    to: str
    kind: type[StatisticsStore] | None  # None: the statistics topic
    settings: dict[str, Any]
    away: dict[str, Any]
    away_words: list[str]
    read: Callable[[], Documents]
    refuses_nan: bool = True

    def new(self) -> StatisticsStore:
        assert self.kind is not None
        return self.kind.for_statistics(self.settings)


NAN = {"process": "p", "rate": math.nan}  # that no JSON has


def local_case(folder: Path) -> StoreCase:
    data, blocked = folder / "data", folder / "file"
    blocked.write_text("a file where a folder should be")

    def read() -> Documents:
        with closing(sqlite3.connect(data / FILE_NAME)) as connection:
            rows = connection.execute("SELECT id, document FROM statistics").fetchall()
        return {key: json.loads(text) for key, text in rows}

    away = {"SITE_DATA_DIR": str(blocked)}
    words = ["SITE_DATA_DIR", str(blocked)]
    return StoreCase("local", LocalSink, {"SITE_DATA_DIR": str(data)}, away, words, read)


def own_case(folder: Path) -> StoreCase:
    local = local_case(folder)
    data = Path(local.settings["SITE_DATA_DIR"])

    def read() -> Documents:
        found: Documents = {}
        for path in data.glob("statistics-*.csv"):
            with path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            assert len({row["key"] for row in rows}) == len(rows)
            found |= {row.pop("key"): dict(row) for row in rows}
        return found

    to = "docs.examples.csv_statistics.CsvStatistics"
    return StoreCase(to, CsvStatistics, local.settings, local.away, local.away_words, read, refuses_nan=False)


def elasticsearch_case(hosts: str) -> StoreCase:
    index = f"stats-{uuid.uuid4().hex}"
    settings = {"SITE_ELASTICSEARCH_HOSTS": hosts, "SITE_ELASTICSEARCH_OPTIONS": {}, "SITE_STATS_INDEX": index}

    def read() -> Documents:
        with elasticsearch_client(hosts) as client:
            client.indices.refresh(index=index)
            hits = client.search(index=index, size=1000)["hits"]["hits"]
        return {hit["_id"]: hit["_source"] for hit in hits}

    away = {**settings, "SITE_ELASTICSEARCH_HOSTS": NOBODY}
    words = ["SITE_ELASTICSEARCH_HOSTS", NOBODY]
    return StoreCase("elasticsearch", ElasticsearchSink, settings, away, words, read)


def redis_case(url: str) -> StoreCase:
    group = f"stats-{uuid.uuid4().hex}"
    settings = {"SITE_REDIS_URL": url, "SITE_CONSUMER_GROUP": group}

    def read() -> Documents:
        with Redis.from_url(url) as client:
            prefix = f"site_spider:{group}:statistics:"
            keys: Any = client.zrange(f"{prefix}ids", 0, -1)
            assert all(client.ttl(prefix + key.decode()) > 0 for key in keys)
            return {key.decode(): json.loads(client.get(prefix + key.decode()) or "null") for key in keys}

    away = {**settings, "SITE_REDIS_URL": "redis://127.0.0.1:9/0"}
    return StoreCase("redis", RedisStatistics, settings, away, ["SITE_REDIS_URL", "127.0.0.1:9"], read)


def kafka_case(brokers: str) -> StoreCase:
    topic = f"seeds-{uuid.uuid4().hex}"
    settings = {"SITE_KAFKA_BROKERS": brokers, "SITE_KAFKA_OPTIONS": {}}
    settings |= {"SITE_SEED_TOPIC": topic, "SITE_CONSUMER_GROUP": topic}

    def read() -> Documents:
        log = KafkaSeedLog.from_settings(settings)
        with closing(log):
            try:
                messages = list(log.read(f"{topic}.stats"))
            except TopicMissing:
                return {}
        documents = [json.loads(message.value or b"null") for message in messages]
        assert all(message.key == d["process"].encode() for message, d in zip(messages, documents, strict=True))
        return {f"{document['process']}-{document['interval']}": document for document in documents}

    return StoreCase("kafka", None, settings, {}, [], read)


STORES = ["local", "own", *(pytest.param(name, marks=pytest.mark.servers) for name in ("elasticsearch", "redis"))]
TOPIC = pytest.param("kafka", marks=pytest.mark.servers)  # the seed log's, which has a contract of its own


@pytest.fixture(params=STORES)
def case(request: pytest.FixtureRequest) -> Iterator[StoreCase]:
    """Each store in turn, empty."""
    make, place = {
        "local": (local_case, "tmp_path"),
        "own": (own_case, "tmp_path"),
        "elasticsearch": (elasticsearch_case, "elasticsearch_hosts"),
        "redis": (redis_case, "redis_url"),
        "kafka": (kafka_case, "kafka_brokers"),
    }[request.param]
    made = make(request.getfixturevalue(place))
    yield made
    if request.param == "elasticsearch":
        drop_index({**made.settings, "SITE_RESULTS_INDEX": made.settings["SITE_STATS_INDEX"]})


SEEDS = [{"url": f"http://h.test/{number}", "meta": {"task_id": "t"}} for number in range(5)]


@pytest.mark.parametrize("case", [*STORES, TOPIC], indirect=True)
def test_a_crawl_writes_each_interval_and_the_end(case: StoreCase, tmp_path: Path) -> None:
    settings = {**case.settings, "SITE_STATS_TO": case.to, "SITE_STOP_GRACE_SECONDS": 300}
    found = crawl(tmp_path / "crawl", SEEDS, **settings)
    assert found.lag == 0
    documents = case.read()
    [last] = [document for document in documents.values() if document["moment"] == "close"]
    assert int(last["total_num"]) == 5
    if case.to == "local":
        assert last["seeds"]["completed"] == 5


def test_a_document_that_is_written_twice_is_one(case: StoreCase) -> None:
    store = case.new()
    first, second = Record("p-0", {"process": "p", "total_num": 1}, 50), Record("p-1", {"process": "p"}, 50)
    for _ in range(2):
        assert answers(written(store, [first], [first, second])) == [Answer.ACKNOWLEDGED] * 3
    found = case.read()
    assert found.keys() == {"p-0", "p-1"}
    assert int(found["p-0"]["total_num"]) == 1


def test_a_bad_document_is_refused_alone(case: StoreCase) -> None:
    store = case.new()
    good = Record("p-0", {"process": "p"}, 50)
    verdicts = written(store, [good, Record("p-1", NAN, 50), Record("p-2", {"process": "p"}, 50)])
    of_nan = Answer.REJECTED if case.refuses_nan else Answer.ACKNOWLEDGED  # CSV has words for anything
    assert answers(verdicts) == [Answer.ACKNOWLEDGED, of_nan, Answer.ACKNOWLEDGED]
    assert case.read().keys() - {"p-1"} == {"p-0", "p-2"}


def test_a_store_that_is_away_says_so_with_its_setting(case: StoreCase) -> None:
    assert case.kind is not None
    with pytest.raises((SinkUnavailable, ConfigError)) as raised:  # a folder that can never be
        written(case.kind.for_statistics(case.away), [Record("p-0", {"process": "p"}, 50)])
    assert all(words in str(raised.value) for words in case.away_words)
