"""What the suite of sinks has to know about each of them."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from site_spider.adapters.elasticsearch import ElasticsearchSink
from site_spider.adapters.elasticsearch_results import ElasticsearchResults
from site_spider.adapters.local_results import LocalResults, LocalSink
from site_spider.core.results_reader import ResultReader
from site_spider.core.sink import Record, Sink

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

    def new(self) -> Sink:
        return self.sink.from_settings(self.settings)

    def new_reader(self) -> ResultReader:
        return self.reader.from_settings(self.settings)


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
    settings = {"SITE_ELASTICSEARCH_HOSTS": hosts, "SITE_RESULTS_INDEX": index}
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


@pytest.fixture(params=["local", pytest.param("elasticsearch", marks=pytest.mark.servers)])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SinkCase]:
    """Each sink in turn, empty."""
    if request.param == "local":
        yield local_case(tmp_path)
        return
    case = elasticsearch_case(request.getfixturevalue("elasticsearch_hosts"))
    yield case
    drop_index(case.settings)


def drop_index(settings: dict[str, Any]) -> None:
    """Remove an index of a test and its template."""
    from elasticsearch import Elasticsearch

    index = settings["SITE_RESULTS_INDEX"]
    with Elasticsearch(settings["SITE_ELASTICSEARCH_HOSTS"]) as client:
        client.options(ignore_status=404).indices.delete(index=index)
        client.options(ignore_status=404).indices.delete_index_template(name=f"site_spider-{index}")
