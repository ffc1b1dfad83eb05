"""A sink with an index of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from site_spider.adapters.elasticsearch.sink import ElasticsearchSink
from site_spider.contracts.sink import Record
from tests.contracts.sinks import drop_index
from tests.contracts.trials import written
from tests.real_servers import elasticsearch_client


def record(key: str, document: dict[str, Any]) -> Record:
    return Record(key, document, 100)


def settings_for(hosts: str, **more: Any) -> dict[str, Any]:
    index = f"test-{uuid.uuid4().hex}"
    return {"SITE_ELASTICSEARCH_HOSTS": hosts, "SITE_RESULTS_INDEX": index, **more}


write = written


@pytest.fixture
def settings(elasticsearch_hosts: str) -> Iterator[dict[str, Any]]:
    settings = settings_for(elasticsearch_hosts, SITE_STATS_INDEX=f"test-stats-{uuid.uuid4().hex}")
    yield settings
    drop_index(settings)
    drop_index({**settings, "SITE_RESULTS_INDEX": settings["SITE_STATS_INDEX"]})


@pytest.fixture
def index(settings: dict[str, Any]) -> str:
    return str(settings["SITE_RESULTS_INDEX"])


@pytest.fixture
def sink(settings: dict[str, Any]) -> ElasticsearchSink:
    return ElasticsearchSink.from_settings(settings)


@pytest.fixture
def of_statistics(settings: dict[str, Any]) -> ElasticsearchSink:
    return ElasticsearchSink.for_statistics(settings)


def fields_in(client: Any, index: str) -> dict[str, Any]:
    """The mapping of an index, whose documents can be found from now on."""
    client.indices.refresh(index=index)
    found: dict[str, Any] = client.indices.get_mapping(index=index)[index]["mappings"]["properties"]
    return found


@pytest.fixture
def client(settings: dict[str, Any]) -> Iterator[Any]:
    """Of the server alone."""
    with elasticsearch_client(settings["SITE_ELASTICSEARCH_HOSTS"]) as client:
        yield client
