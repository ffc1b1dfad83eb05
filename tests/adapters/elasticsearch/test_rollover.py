"""Retention as docs/observability.md has it: an alias with a write index; old documents in a new index."""

from __future__ import annotations

from typing import Any

import pytest

from site_spider.adapters.elasticsearch.sink import ElasticsearchSink
from site_spider.contracts.sink import Answer
from tests.adapters.elasticsearch.sinks import record, settings, write
from tests.contracts.trials import answers
from tests.real_servers import elasticsearch_client

__all__ = ["settings"]


def document(number: int) -> dict[str, Any]:
    return {"@timestamp": f"2026-01-01T00:00:{number:02}Z", "process": "p", "interval_num": number}


@pytest.mark.servers
def test_statistics_go_to_the_write_index_of_an_alias(settings: dict[str, Any]) -> None:
    """Its indices have the mappings of the template; a document that is sent again stays one."""
    alias = settings["SITE_STATS_INDEX"]
    first, second = f"{alias}-000001", f"{alias}-000002"
    sink = ElasticsearchSink.for_statistics(settings)
    with elasticsearch_client(settings["SITE_ELASTICSEARCH_HOSTS"]) as client:
        try:
            client.indices.create(index=first, aliases={alias: {"is_write_index": True}})
            assert answers(write(sink, [record("p-1", document(1))])) == [Answer.ACKNOWLEDGED]
            client.indices.rollover(alias=alias)
            for _ in range(2):
                assert answers(write(sink, [record("p-2", document(2))])) == [Answer.ACKNOWLEDGED]
            client.indices.refresh(index=alias)
            assert [client.count(index=index)["count"] for index in (first, second)] == [1, 1]
            mapping = client.indices.get_mapping(index=second)[second]["mappings"]["properties"]
            assert mapping["process"]["type"] == "keyword"
            client.indices.delete(index=first)  # what a policy does when it is old
            assert client.count(index=alias)["count"] == 1
        finally:
            for index in (first, second):
                client.options(ignore_status=404).indices.delete(index=index)


@pytest.mark.servers
def test_a_result_of_a_page_stays_one_after_a_reindex(settings: dict[str, Any]) -> None:
    """As docs/observability.md says: another index, its documents, and the alias in place of the name."""
    name = settings["SITE_RESULTS_INDEX"]
    new = f"{name}-2"
    sink = ElasticsearchSink.from_settings(settings)
    with elasticsearch_client(settings["SITE_ELASTICSEARCH_HOSTS"]) as client:
        try:
            write(sink, [record("a", {"status": 200, "mine": "x"})])
            client.indices.refresh(index=name)
            client.indices.create(index=new)
            for hit in client.search(index=name)["hits"]["hits"]:  # _reindex, which the slim server lacks
                client.index(index=new, id=hit["_id"], document=hit["_source"])
            swap = [{"remove_index": {"index": name}}, {"add": {"index": new, "alias": name}}]
            client.indices.update_aliases(actions=swap)
            assert answers(write(sink, [record("a", {"status": 404})])) == [Answer.ACKNOWLEDGED]
            found = client.get(index=name, id="a")["_source"]
            assert (found["status"], found["mine"]) == (404, "x")
            mapping = client.indices.get_mapping(index=new)[new]["mappings"]["properties"]
            assert mapping["reason"]["type"] == "keyword"
        finally:
            client.options(ignore_status=404).indices.delete(index=new)
