"""What the suite of sinks has to know about each of them."""

from __future__ import annotations

import math
import secrets
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from site_spider import settings as defaults
from site_spider.adapters.elasticsearch.results import ElasticsearchResults
from site_spider.adapters.elasticsearch.sink import ElasticsearchSink
from site_spider.adapters.hbase.connection import HBaseOptions
from site_spider.adapters.hbase.results import HBaseResults
from site_spider.adapters.hbase.sink import HBaseSink
from site_spider.adapters.kafka.client import KafkaConfig
from site_spider.adapters.kafka.sink import KafkaSink
from site_spider.adapters.local.results import LocalResults, LocalSink
from site_spider.adapters.warc.sink import WarcSink
from site_spider.contracts.sink import Record, ResultReader, Sink
from tests.contracts.folded_results import KafkaResults, WarcResults
from tests.real_servers import elasticsearch_client

NOBODY = "http://127.0.0.1:9"  # the discard port: nobody listens


@dataclass
class SinkCase:
    """A kind of sink, with its server if it has one; `poison` is a document that the server refuses."""

    name: str
    sink: type[Sink]
    reader: type[ResultReader]
    settings: dict[str, Any]
    poison: dict[str, Any]
    poison_reason: str  # the server's words
    away: dict[str, Any]  # settings that lead nowhere
    away_words: list[str] = field(default_factory=list)  # setting and address, in the error
    merges_objects: bool = True  # field by field; else the later one replaces the earlier

    def new(self) -> Sink:
        return self.sink.from_settings(self.settings)

    def new_reader(self) -> ResultReader:
        return self.reader.from_settings(self.settings)

    def new_for_items(self) -> Sink:
        return self.sink.for_items(self.settings)  # type: ignore[attr-defined]

    def new_reader_of_items(self) -> ResultReader:
        return self.reader.for_items(self.settings)


def record(key: str, document: dict[str, Any]) -> Record:
    return Record(key, document, 100)


def local_case(folder: Path) -> SinkCase:
    blocked = folder / "file"
    blocked.write_text("a file where a folder should be")
    return SinkCase(
        name="local",
        sink=LocalSink,
        reader=LocalResults,
        settings={"SITE_DATA_DIR": str(folder / "data")},
        poison={"latency_ms": math.nan},
        poison_reason="JSON",
        away={"SITE_DATA_DIR": str(blocked)},
        away_words=["SITE_DATA_DIR", str(blocked)],
    )


def elasticsearch_case(hosts: str) -> SinkCase:
    index = f"contract-{uuid.uuid4().hex}"
    settings = {"SITE_ELASTICSEARCH_HOSTS": hosts, "SITE_RESULTS_INDEX": index, "SITE_ITEMS_INDEX": f"items-of-{index}"}
    return SinkCase(
        name="elasticsearch",
        sink=ElasticsearchSink,
        reader=ElasticsearchResults,
        settings=settings,
        poison={"status": "not a number"},
        poison_reason="failed to parse field [status]",
        away={**settings, "SITE_ELASTICSEARCH_HOSTS": NOBODY},
        away_words=["SITE_ELASTICSEARCH_HOSTS", NOBODY],
    )


def hbase_settings(address: str, **more: Any) -> dict[str, Any]:
    """All settings of the HBase sink, with a table of its own."""
    host, _, port = address.rpartition(":")
    return {
        **{name: value for name, value in vars(defaults).items() if name.startswith("SITE_HBASE_")},
        "SITE_HBASE_HOST": host,
        "SITE_HBASE_PORT": port,
        "SITE_HBASE_TABLE": (table := f"test-{uuid.uuid4().hex}"),
        "SITE_HBASE_ITEMS_TABLE": f"{table}-items",
        **more,
    }


def hbase_case(address: str) -> SinkCase:
    settings = hbase_settings(address)
    return SinkCase(
        name="hbase",
        sink=HBaseSink,
        reader=HBaseResults,
        settings=settings,
        poison={"headers": "h" * 11_000_000},  # only a body may be cut
        poison_reason="KeyValue size too large",
        away={**settings, "SITE_HBASE_HOST": "127.0.0.1", "SITE_HBASE_PORT": 9},
        away_words=["SITE_HBASE_HOST", "SITE_HBASE_PORT", "127.0.0.1:9"],
        merges_objects=False,
    )


def kafka_settings(brokers: str, **more: Any) -> dict[str, Any]:
    """All settings of the Kafka sink, with a topic of its own."""
    topic = f"test-{uuid.uuid4().hex}"
    topics = {"SITE_RESULTS_TOPIC": topic, "SITE_ITEMS_TOPIC": f"{topic}-items"}
    return {"SITE_KAFKA_BROKERS": brokers, **topics, **more}


def kafka_case(brokers: str) -> SinkCase:
    settings = kafka_settings(brokers)
    return SinkCase(
        name="kafka",
        sink=KafkaSink,
        reader=KafkaResults,
        settings=settings,
        poison={"headers": secrets.token_hex(1_500_000)},  # cannot be compressed enough, nor cut
        poison_reason="Message size too large",
        away={**settings, "SITE_KAFKA_BROKERS": "127.0.0.1:9"},
        away_words=["SITE_KAFKA_BROKERS", "127.0.0.1:9"],
    )


def warc_case(folder: Path) -> SinkCase:
    """It takes no items and has no fields of producers."""
    usual = {"SITE_WARC_MAX_BYTES": 1_000_000_000, "SITE_WARC_PREFIX": "test"}
    blocked = local_case(folder).away["SITE_DATA_DIR"]
    return SinkCase(
        name="warc",
        sink=WarcSink,
        reader=WarcResults,
        settings={**usual, "SITE_WARC_DIR": str(folder / "warc")},
        poison={"body_base64": "not base64"},
        poison_reason="body_base64 is not base64",
        away={**usual, "SITE_WARC_DIR": blocked},
        away_words=["SITE_WARC_DIR", blocked],
    )


OF_ITEMS = ["local", *(pytest.param(name, marks=pytest.mark.servers) for name in ("elasticsearch", "hbase", "kafka"))]


@pytest.fixture(params=["warc", *OF_ITEMS])
def case(request: pytest.FixtureRequest) -> Iterator[SinkCase]:
    make, place, drop = {
        "local": (local_case, "tmp_path", None),
        "warc": (warc_case, "tmp_path", None),
        "elasticsearch": (elasticsearch_case, "elasticsearch_hosts", drop_index),
        "hbase": (hbase_case, "hbase_address", drop_table),
        "kafka": (kafka_case, "kafka_brokers", drop_topic),
    }[request.param]
    made = make(request.getfixturevalue(place))
    yield made
    if drop is not None:
        drop(made.settings)


def drop_index(settings: dict[str, Any]) -> None:
    """Remove an index of a test, those whose names begin so, and its template."""
    names = ("SITE_RESULTS_INDEX", "SITE_ITEMS_INDEX")
    with elasticsearch_client(settings["SITE_ELASTICSEARCH_HOSTS"]) as client:
        for index in (settings[name] for name in names if name in settings):
            for found in client.indices.get(index=f"{index}*"):
                client.indices.delete(index=found)
            client.options(ignore_status=404).indices.delete_index_template(name=f"site_spider-{index}")


def drop_table(settings: dict[str, Any]) -> None:
    with closing(HBaseOptions.from_settings(settings).connect(300)) as connection:
        for table in (settings["SITE_HBASE_TABLE"], settings["SITE_HBASE_ITEMS_TABLE"]):
            if table.encode() in connection.tables():
                connection.delete_table(table, disable=True)


def drop_topic(settings: dict[str, Any]) -> None:
    names = ("SITE_RESULTS_TOPIC", "SITE_ITEMS_TOPIC")
    client = AdminClient(KafkaConfig.from_settings(settings).admin(lambda _: None))
    for future in client.delete_topics([settings[name] for name in names]).values():
        with suppress(KafkaException):
            future.result(timeout=300)
