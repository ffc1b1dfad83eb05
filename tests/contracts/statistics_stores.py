"""What the suite of stores of statistics has to know about each of them."""

from __future__ import annotations

import csv
import json
import math
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from docs.examples.csv_statistics import CsvStatistics
from site_spider.adapters.elasticsearch.sink import ElasticsearchSink
from site_spider.adapters.kafka.seed_log import KafkaSeedLog
from site_spider.adapters.local.results import FILE_NAME, LocalSink
from site_spider.adapters.redis.done import RedisStatistics
from site_spider.contracts.sink import StatisticsStore
from site_spider.errors import TopicMissing
from tests.contracts.sinks import NOBODY
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
    import sqlite3

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
    from redis import Redis

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
    settings = {
        "SITE_KAFKA_BROKERS": brokers,
        "SITE_KAFKA_OPTIONS": {},
        "SITE_SEED_TOPIC": topic,
        "SITE_CONSUMER_GROUP": topic,
    }

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


_WITH_SERVER = ("elasticsearch", "redis", "kafka")


def _case(request: pytest.FixtureRequest, folder: Path) -> StoreCase:
    match request.param:
        case "local":
            return local_case(folder)
        case "own":
            return own_case(folder)
        case "elasticsearch":
            return elasticsearch_case(request.getfixturevalue("elasticsearch_hosts"))
        case "redis":
            return redis_case(request.getfixturevalue("redis_url"))
        case _:
            return kafka_case(request.getfixturevalue("kafka_brokers"))


def _marked(*names: str) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.servers) if name in _WITH_SERVER else name for name in names]


@pytest.fixture(params=_marked("local", "own", "elasticsearch", "redis", "kafka"))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreCase]:
    """All that SITE_STATS_TO may name in turn, empty."""
    yield from _fresh(request, tmp_path)


@pytest.fixture(params=_marked("local", "own", "elasticsearch", "redis"))
def store_case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreCase]:
    """Those with a class of their own: the topic belongs to the seed log, which has a contract of its own."""
    yield from _fresh(request, tmp_path)


def _fresh(request: pytest.FixtureRequest, folder: Path) -> Iterator[StoreCase]:
    made = _case(request, folder)
    yield made
    if made.to == "elasticsearch":
        with elasticsearch_client(made.settings["SITE_ELASTICSEARCH_HOSTS"]) as client:
            index = made.settings["SITE_STATS_INDEX"]
            client.options(ignore_status=404).indices.delete(index=index)
            client.options(ignore_status=404).indices.delete_index_template(name=f"site_spider-{index}")
