"""Pages are searched as text, and indices of earlier versions go on working."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from site_spider.adapters.elasticsearch.client import IndexTemplate
from site_spider.adapters.elasticsearch.sink import TEMPLATES, ElasticsearchSink
from site_spider.contracts.sink import Answer
from site_spider.results.document import PAGE_FIELDS, Result
from tests.adapters.elasticsearch.sinks import record, settings, write
from tests.contracts.trials import answers
from tests.real_servers import elasticsearch_client

__all__ = ["settings"]

CAFE = '<html><a href="/menu" class="big">Le Café</a><script>var hidden</script><p>M&uuml;nchen</html>'
PLAIN = "<p>nothing of the kind</p>"


def page(key: str, body: str | None) -> Any:
    result = Result(key, 200, body=body, url=f"http://h.test/{key}", reason=None, registered_domain="h.test")
    return record(key, result.document())


def test_both_templates_search_text_not_mark_up() -> None:
    for name in ("results", "items"):
        template = IndexTemplate(TEMPLATES / f"{name}-template.json", "x").content["template"]
        analyzer = template["settings"]["analysis"]["analyzer"]["page_text"]
        assert analyzer["char_filter"] == ["html_strip"]
        assert analyzer["filter"] == ["lowercase", "asciifolding"]
        assert '"analyzer": "page_text"' in json.dumps(template["mappings"])


@pytest.mark.servers
def test_a_server_finds_words_without_accents_and_no_mark_up(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """One without the module for that finds them as they stand, which is said and no trouble."""
    caplog.set_level(logging.INFO)
    for key, body in (("a", CAFE), ("b", PLAIN)):
        sink = ElasticsearchSink.from_settings(settings)
        assert answers(write(sink, [page(key, body), page(f"{key}-none", None)])) == [Answer.ACKNOWLEDGED] * 2
    is_slim = any("lacks the module analysis-common" in one.message for one in caplog.records)
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []
    with elasticsearch_client(settings["SITE_ELASTICSEARCH_HOSTS"]) as client:
        index = settings["SITE_RESULTS_INDEX"]
        client.indices.refresh(index=index)

        def found(words: str) -> list[str]:
            hits = client.search(index=index, query={"match": {"body": words}})["hits"]["hits"]
            return sorted(hit["_id"] for hit in hits)

        assert found("CAFÉ") == found("hidden menu") == ["a"]
        assert found("cafe") == ([] if is_slim else ["a"])
        assert found("href") == (["a"] if is_slim else [])
        assert client.get(index=index, id="a")["_source"]["body"] == CAFE


def failure(key: str) -> Any:
    result = Result(
        key, description="TimeoutError: x", reason="TimeoutError", url="http://h/", registered_domain="h"
    )
    return record(key, result.document())


def old_mapping(**more: Any) -> dict[str, Any]:
    """What the version before had, as somebody copied it."""
    properties = dict(IndexTemplate(TEMPLATES / "results-template.json", "x").properties)
    for name in ("reason", "registered_domain", "absent", *PAGE_FIELDS):
        del properties[name]
    return {**more, "properties": {**properties, "body": {"type": "text"}}}


@pytest.mark.servers
@pytest.mark.parametrize("is_old", [False, True])
def test_titles_and_texts_are_searched_and_languages_counted(settings: dict[str, Any], is_old: bool) -> None:
    """Also in an index of an earlier version, without the folding of accents."""
    index = settings["SITE_RESULTS_INDEX"]
    said = {
        "title": "Le Café",
        "text": "Bonjour à tous",
        "language": "fr",
        "published_at": "2026-01-01T00:00:00+00:00",
    }
    result = Result("a", 200, links_out=3, additional_urls=["http://h/x", "http://h/y"], **said)
    with elasticsearch_client(settings["SITE_ELASTICSEARCH_HOSTS"]) as client:
        if is_old:
            client.indices.create(index=index, mappings=old_mapping())
        sink = ElasticsearchSink.from_settings(settings)
        assert answers(write(sink, [record("a", result.document())])) == [Answer.ACKNOWLEDGED]
        client.indices.refresh(index=index)
        mapping = client.indices.get_mapping(index=index)[index]["mappings"]["properties"]
        cafe, hello = ("cafe", "a") if "analyzer" in mapping["title"] else ("café", "À")
        assert not (is_old and "analyzer" in mapping["title"])
        for query in (
            {"match": {"title": cafe}},
            {"match": {"text": hello}},
            {"term": {"title.keyword": "Le Café"}},
            {"term": {"language": "fr"}},
            {"range": {"published_at": {"gte": "2026-01-01"}}},
            {"term": {"additional_urls": "http://h/y"}},
        ):
            assert client.count(index=index, query=query)["count"] == 1, query


@pytest.mark.servers
@pytest.mark.parametrize("dynamic", ["strict", "true", "false", "runtime"])
def test_an_index_of_an_earlier_version_takes_results(settings: dict[str, Any], dynamic: str) -> None:
    index = settings["SITE_RESULTS_INDEX"]
    with elasticsearch_client(settings["SITE_ELASTICSEARCH_HOSTS"]) as client:
        client.indices.create(index=index, mappings=old_mapping(dynamic=dynamic))
        sink = ElasticsearchSink.from_settings(settings)
        assert answers(write(sink, [failure("a"), page("b", CAFE)])) == [Answer.ACKNOWLEDGED] * 2
        client.indices.refresh(index=index)
        assert client.get(index=index, id="a")["_source"]["reason"] == "TimeoutError"
        found = client.count(index=index, query={"term": {"reason": "TimeoutError"}})["count"]
        assert found == (0 if dynamic == "false" else 1)


@pytest.mark.servers
def test_a_strict_mapping_that_may_not_be_changed_refuses_no_result(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """What it has no field for is left out, and said once."""
    index = settings["SITE_RESULTS_INDEX"]
    with elasticsearch_client(settings["SITE_ELASTICSEARCH_HOSTS"]) as client:
        client.indices.create(index=index, mappings=old_mapping(dynamic="strict"))
        client.indices.put_settings(index=index, settings={"index.blocks.metadata": True})
        sink = ElasticsearchSink.from_settings(settings)
        wrong = record("w", {"status": "no number"})
        verdicts = [answers(write(sink, [failure("a"), wrong, page("b", CAFE)])) for _ in range(2)]
        assert verdicts == [[Answer.ACKNOWLEDGED, Answer.REJECTED, Answer.ACKNOWLEDGED]] * 2
        client.indices.put_settings(index=index, settings={"index.blocks.metadata": False})
        stored = client.get(index=index, id="a")["_source"]
    assert stored["description"] == "TimeoutError: x"
    assert stored.keys().isdisjoint({"reason", "registered_domain", "absent"})
    said = [one for one in caplog.records if "has a strict mapping without" in one.message]
    assert 1 <= len(said) <= 4


@pytest.mark.servers
def test_batches_at_the_same_time_meet_a_strict_mapping_together(settings: dict[str, Any]) -> None:
    index = settings["SITE_RESULTS_INDEX"]

    async def both() -> list[Any]:
        sink = ElasticsearchSink.from_settings(settings)
        await sink.open()
        try:
            return await asyncio.gather(
                *(sink.write([failure(f"{n}"), page(f"p{n}", CAFE)]) for n in range(4))
            )
        finally:
            await sink.close()

    with elasticsearch_client(settings["SITE_ELASTICSEARCH_HOSTS"]) as client:
        client.indices.create(index=index, mappings=old_mapping(dynamic="strict"))
        client.indices.put_settings(index=index, settings={"index.blocks.metadata": True})
        verdicts = asyncio.run(both())
        client.indices.put_settings(index=index, settings={"index.blocks.metadata": False})
    assert [answers(some) for some in verdicts] == [[Answer.ACKNOWLEDGED] * 2] * 4


@pytest.mark.servers
def test_a_field_that_is_not_ours_is_refused_as_before(settings: dict[str, Any]) -> None:
    with elasticsearch_client(settings["SITE_ELASTICSEARCH_HOSTS"]) as client:
        client.indices.create(index=settings["SITE_RESULTS_INDEX"], mappings=old_mapping(dynamic="strict"))
        (verdict,) = write(ElasticsearchSink.from_settings(settings), [record("a", {"colour": "red"})])
    assert verdict.answer is Answer.REJECTED
    assert "colour" in verdict.reason
