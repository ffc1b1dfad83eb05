"""The mappings of results and statistics, and templates that others changed."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from site_spider.adapters.elasticsearch.index_template import IndexTemplate, closing_changes
from site_spider.adapters.elasticsearch.results import ElasticsearchResults
from site_spider.adapters.elasticsearch.sink import MOST_CHARACTERS, ElasticsearchSink, page_text
from site_spider.contracts.sink import Answer
from site_spider.errors import ConfigError
from site_spider.observe.counters import counters
from site_spider.results.document import PAGE_FIELDS, Result
from tests.adapters.elasticsearch.conftest import fields_in, record, write
from tests.contracts.trials import answers
from tests.growth import assert_grows
from tests.in_process.engine import crawl

OLD_MAPPINGS: list[dict[str, Any]] = [
    {},
    {"properties": {"meta": {"properties": {"n": {"type": "long"}}}}},
    {"properties": {"meta": {"type": "nested"}}},
]


TEMPLATES = {"results": (7, 3289100627), "items": (2, 3255519513), "stats": (4, 3243316281)}


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_template_with_other_content_has_another_version(kind: str) -> None:
    """Or it would never replace the one that an earlier release has installed."""
    template = IndexTemplate(kind, "x")
    content = json.dumps(template.content["template"])
    assert (template.version, crc32(content.encode())) == TEMPLATES[kind]


@pytest.mark.servers
@pytest.mark.parametrize("mappings", OLD_MAPPINGS, ids=str)
def test_no_producers_meta_harms_others_results(
    sink: ElasticsearchSink, client: Any, index: str, mappings: dict[str, Any]
) -> None:
    """In an index that was made before us, with 1,000 fields at most, of which one task sends 5,000.

    Odd names may be refused there, for their own sake.
    """
    hostile: list[dict[str, Any]] = [
        {f"key{number}": number for number in range(5000)},
        {f"more{number}.a.b": "text" for number in range(5000)},
        {"": 1, ".": 2, "a..b": 3},
        {"o": {"": {"x": [{"y": 1}, "text", [2]]}}},
        {"k": "v" * 40_000, "o": "text"},
    ]
    for _ in range(40):
        hostile.append({"deep": hostile[-1]} if "deep" in hostile[-1] else {"deep": {}})
    records = [record(f"h{number}", {"status": 200, "meta": meta}) for number, meta in enumerate(hostile)]
    others = [record(f"o{number}", {"status": 200, "meta": {f"new{number}": 1}}) for number in range(5)]
    client.indices.create(index=index, mappings=mappings)
    verdicts = write(sink, [*records, *others])
    kept = [verdicts[0], verdicts[1], *verdicts[len(records) :]]
    assert answers(kept) == [Answer.ACKNOWLEDGED] * len(kept)
    assert client.get(index=index, id="h1")["_source"]["meta"] == hostile[1]
    assert len(fields_in(client, index)["meta"].get("properties", {})) <= 1


@pytest.mark.servers
def test_the_template_gives_the_index_its_mappings(sink: ElasticsearchSink, client: Any, index: str) -> None:
    """Long and strange values are stored, and what people filter by can be aggregated."""
    strange = {
        "meta": {"a.b": 1, "a": {"b": "text"}, "": 2, "漢" * 1000: "漢" * 30_000},
        "url": "http://h/" + "🎉" * 20_000,
        "task_id": "🎉" * 20_000,
        "headers": "x" * 1_000_000,
        "own": "2026/01/01",
    }
    later = {"meta": {"a": "other type"}, "own": "no date"}
    assert answers(write(sink, [record("a", strange), record("b", later)])) == [Answer.ACKNOWLEDGED] * 2
    mapping = fields_in(client, index)
    assert [mapping[name]["type"] for name in ("body", "meta", "own")] == ["text", "flattened", "keyword"]


@pytest.mark.servers
def test_statistics_can_be_summed(of_statistics: ElasticsearchSink, client: Any, settings: dict[str, Any]) -> None:
    """Numbers by status are numbers, and a fraction after a whole number is not cut."""
    documents = [
        {"@timestamp": "2026-01-01T00:00:00Z", "process": "p", "total_num": 1, "by_status": {"200": 3}, "rate": 1},
        {"@timestamp": "2026-01-01T00:00:10Z", "process": "p", "total_num": 3, "by_status": {"200": 4}, "rate": 1.5},
    ]
    records = [record(f"p-{number}", document) for number, document in enumerate(documents)]
    assert answers(write(of_statistics, records, records)) == [Answer.ACKNOWLEDGED] * 4
    index = settings["SITE_STATS_INDEX"]
    assert fields_in(client, index)["process"] == {"type": "keyword", "ignore_above": 1024}
    fields = ("total_num", "by_status.200", "rate")
    sums = client.search(index=index, size=0, aggs={field: {"sum": {"field": field}} for field in fields})
    assert [sums["aggregations"][field]["value"] for field in fields] == [4, 7, 2.5]


@pytest.mark.servers
def test_a_template_that_somebody_changed_is_left_alone(
    settings: dict[str, Any], sink: ElasticsearchSink, client: Any, index: str
) -> None:
    """Ten processes that start at once install it; none writes over the same or a newer version."""

    async def ten() -> None:
        await asyncio.gather(*(opened(ElasticsearchSink.from_settings(settings)) for _ in range(10)))

    asyncio.run(ten())
    name = f"site_spider-{index}"
    mine = {"mappings": {"properties": {"status": {"type": "keyword"}}}}
    client.indices.put_index_template(
        name=name, version=99, index_patterns=[index, f"{index}-*"], priority=20, template=mine
    )
    assert answers(write(sink, [record("a", {"status": "as I like"})])) == [Answer.ACKNOWLEDGED]
    found = client.indices.get_index_template(name=name)["index_templates"][0]
    assert found["index_template"]["version"] == 99


@pytest.mark.servers
def test_an_index_that_was_there_keeps_its_mappings(settings: dict[str, Any], client: Any, index: str) -> None:
    """Results go into an index of the producer's, beside its own fields, and can be filtered there."""
    client.index(index=index, id="a", document={"mine": "x", "task_id": "Job One"})
    before = fields_in(client, index)
    write(ElasticsearchSink.from_settings(settings), [record("a", {"status": 200, "body": "text"})])
    after = fields_in(client, index)
    assert {name: after[name] for name in before} == before
    reader = ElasticsearchResults.from_settings(settings)
    expected = {"url_id": "a", "mine": "x", "task_id": "Job One", "status": 200, "body": "text"}
    assert list(reader.search(fields={"task_id": "Job One"})) == [expected]
    reader.close()


def test_names_of_producers_and_spiders_fill_no_index_of_statistics() -> None:
    """An index of items neither."""
    templates = [IndexTemplate(name, "x") for name in ("stats", "items")]
    for template in templates:
        settings = template.content["template"]["settings"]["index"]
        assert settings["mapping"]["total_fields"] == {"ignore_dynamic_beyond_limit": True}
    assert templates[0].properties["unknown_fields"]["dynamic"] is False


@pytest.mark.servers
@pytest.mark.parametrize("ignores", [True, False], ids=["ignores", "refuses"])
def test_an_index_with_too_many_fields_takes_statistics_all_the_same(
    settings: dict[str, Any], client: Any, tmp_path: Path, ignores: bool
) -> None:
    """Without counters by name where a server refuses them; and one whose type changes costs nothing at all."""
    index = settings["SITE_STATS_INDEX"]
    asyncio.run(opened(ElasticsearchSink.for_statistics(settings)))
    client.indices.create(index=index)
    fields = len(fields_of(client.indices.get_mapping(index=index)[index]["mappings"]))
    limit = {"limit": fields + 20} | ({} if ignores else {"ignore_dynamic_beyond_limit": False})
    client.indices.put_settings(index=index, settings={"index.mapping.total_fields": limit})
    crawl(tmp_path, [{"url": "http://h.test/"}], **settings, SITE_STATS_TO="elasticsearch")
    client.indices.refresh(index=index)
    hits = client.search(index=index, size=100)["hits"]["hits"]
    [last] = [hit["_source"] for hit in hits if hit["_source"]["moment"] == "close"]
    assert last["seeds"]["completed"] == 1
    assert ("counters" in last) is ignores


@pytest.mark.servers
def test_counters_of_any_name_and_type_are_stored(
    settings: dict[str, Any], of_statistics: ElasticsearchSink, client: Any
) -> None:
    """A number in one process and a text in another, and names within names."""
    names = ("my/custom", "my", "a", "a.b", "a.b.c", "..", "", " ", "_id", "x" * 600)
    index = settings["SITE_STATS_INDEX"]
    for key, odd in (("p-0", 1), ("p-1", "text")):
        found = counters(dict.fromkeys(names, odd))
        document = {"process": key, "counters": found.numbers, "texts": found.texts}
        assert answers(write(of_statistics, [record(key, document)])) == [Answer.ACKNOWLEDGED]
    assert client.get(index=index, id="p-1")["_source"]["texts"]["my/custom"] == "text"
    client.indices.refresh(index=index)
    total = client.search(index=index, size=0, aggs={"a": {"max": {"field": "counters.my/custom"}}})
    assert total["aggregations"]["a"]["value"] == 1


async def opened(sink: ElasticsearchSink) -> None:
    await sink.open()
    await sink.close()


def fields_of(mapping: dict[str, Any]) -> list[str]:
    """Objects and leaves, as the limit counts them."""
    found = []
    for name, field in mapping.get("properties", {}).items():
        found += [name, *fields_of(field)]
    return found


# --- which indices make fields of a producer's keys, and what they are told -----------------------


WANTED = {"type": "flattened"}
CLOSED = {"type": "object", "dynamic": False}


@pytest.mark.parametrize(
    ("mappings", "change"),
    [
        ({}, WANTED),
        ({"properties": {"url": {"type": "keyword"}}}, WANTED),
        ({"properties": {"meta": {"properties": {}}}}, CLOSED),
        ({"properties": {"meta": {"type": "object", "dynamic": "true"}}}, CLOSED),
        ({"dynamic": "strict", "properties": {"meta": {"dynamic": "runtime"}}}, CLOSED),
        ({"properties": {"meta": {"type": "nested"}}}, {"type": "nested", "dynamic": False}),
        ({"properties": {"meta": {"type": "flattened"}}}, None),
        ({"properties": {"meta": {"type": "keyword"}}}, None),
        ({"properties": {"meta": {"dynamic": "false"}}}, None),
        ({"properties": {"meta": {"dynamic": False}}}, None),
        ({"properties": {"meta": {"dynamic": "strict"}}}, None),
        ({"dynamic": "false"}, None),
        ({"dynamic": "strict", "properties": {"meta": {"properties": {}}}}, None),
    ],
)
def test_an_index_is_closed_unless_it_is(mappings: dict[str, Any], change: dict[str, Any] | None) -> None:
    """What somebody has closed already is his."""
    found = list(closing_changes({"index": {"mappings": mappings}}, "meta", WANTED))
    assert found == ([("index", {"meta": change})] if change else [])


@pytest.mark.parametrize("answer", [None, [], 7, "x", {"a": False}, {"i": {"mappings": []}}, {"i": None}])
def test_an_answer_that_is_none_changes_nothing(answer: Any) -> None:
    """A proxy's, say."""
    assert not list(closing_changes(answer, "meta", WANTED))


# --- retention as docs/observability.md has it; old documents in a new index ----------------------


def document(number: int) -> dict[str, Any]:
    return {"@timestamp": f"2026-01-01T00:00:{number:02}Z", "process": "p", "interval_num": number}


@pytest.mark.servers
def test_statistics_go_to_the_write_index_of_an_alias(
    settings: dict[str, Any], of_statistics: ElasticsearchSink, client: Any
) -> None:
    """Its indices have the mappings of the template; a document that is sent again stays one."""
    alias = settings["SITE_STATS_INDEX"]
    first, second = f"{alias}-000001", f"{alias}-000002"
    client.indices.create(index=first, aliases={alias: {"is_write_index": True}})
    assert answers(write(of_statistics, [record("p-1", document(1))])) == [Answer.ACKNOWLEDGED]
    client.indices.rollover(alias=alias)
    assert answers(write(of_statistics, *[[record("p-2", document(2))]] * 2)) == [Answer.ACKNOWLEDGED] * 2
    assert fields_in(client, second)["process"]["type"] == "keyword"
    client.indices.refresh(index=first)
    assert [client.count(index=index)["count"] for index in (first, second)] == [1, 1]
    client.indices.delete(index=first)  # what a policy does when it is old
    assert client.count(index=alias)["count"] == 1


@pytest.mark.servers
def test_pages_are_not_looked_up_in_several_indices(settings: dict[str, Any], client: Any, index: str) -> None:
    """An alias of them has every document, and finds none by its id: nobody is to think that the server is away."""
    for name, is_written in ((f"{index}-1", False), (f"{index}-2", True)):
        client.indices.create(index=name, aliases={index: {"is_write_index": is_written}})
    client.index(index=f"{index}-1", id="a", document={"url_id": "a"}, refresh=True)
    with closing(ElasticsearchResults.from_settings(settings)) as reader:
        assert [found["url_id"] for found in reader.search()] == ["a"]
        asks: list[Any] = [partial(reader.get, "a"), partial(reader.known, ["a"], ["url"])]
        for ask in [*asks, partial(reader.exchange, "x", {"a": (None, "1")})]:
            with pytest.raises(ConfigError, match=r"SITE_RESULTS_INDEX is .*make it an alias of one index"):
                ask()


@pytest.mark.servers
def test_a_result_of_a_page_stays_one_after_a_reindex(sink: ElasticsearchSink, client: Any, index: str) -> None:
    """As docs/observability.md says: another index, its documents, and the alias in place of the name."""
    write(sink, [record("a", {"status": 200, "mine": "x"})])
    client.indices.refresh(index=index)
    client.indices.create(index=f"{index}-2")
    for hit in client.search(index=index)["hits"]["hits"]:  # _reindex, which the slim server lacks
        client.index(index=f"{index}-2", id=hit["_id"], document=hit["_source"])
    swap = [{"remove_index": {"index": index}}, {"add": {"index": f"{index}-2", "alias": index}}]
    client.indices.update_aliases(actions=swap)
    assert answers(write(sink, [record("a", {"status": 404})])) == [Answer.ACKNOWLEDGED]
    found = client.get(index=index, id="a")["_source"]
    assert (found["status"], found["mine"]) == (404, "x")
    assert fields_in(client, f"{index}-2")["reason"]["type"] == "keyword"


# --- Pages are searched as text, and indices of earlier versions go on working


CAFE = '<html><a href="/menu" class="big">Le Café</a><script>var hidden</script><p>M&uuml;nchen</html>'
PLAIN = "<p>nothing of the kind</p>"


def page(key: str, body: str | None) -> Any:
    result = Result(key, 200, body=body, url=f"http://h.test/{key}", reason=None, registered_domain="h.test")
    return record(key, result.document())


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        (CAFE, "Le Cafe Munchen"),
        ("a < b and c > d", "a < b and c > d"),
        ("<!-- href -->x<STYLE>.a{}</style >y<script>1 < 2", "x y"),
        ("<a title='cafe", ""),
        ("<script>1 < 2</script><p>x</script", "x"),
        (f"x&#{'9' * 5_000};", "x\ufffd"),
        ("ＡÅﬁ ß", "AAfi ß"),
        ("", ""),
    ],
)
def test_the_text_of_a_page_is_what_a_reader_sees(markup: str, text: str) -> None:
    assert page_text(markup) == text


@pytest.mark.parametrize("bad", ["<a", "<!--", "<script>", "<script></scrip", "<", "&#", "é", "<style"])
def test_no_page_holds_up_the_event_loop(bad: str) -> None:
    assert len(page_text(bad * 2_000_000)) <= MOST_CHARACTERS * 2
    assert_grows(lambda n: partial(page_text, bad * n), 200_000)


def test_a_script_without_an_end_is_looked_at_once() -> None:
    assert_grows(lambda n: partial(page_text, f"<script>{'</script' * n}"), 4_000)


def test_both_templates_search_text_not_mark_up() -> None:
    for name in ("results", "items"):
        template = IndexTemplate(name, "x").content["template"]
        analyzer = template["settings"]["analysis"]["analyzer"]["page_text"]
        assert analyzer["char_filter"] == ["html_strip"]
        assert analyzer["filter"] == ["lowercase", "asciifolding"]
        assert '"analyzer": "page_text"' in json.dumps(template["mappings"])


@pytest.mark.servers
def test_a_server_finds_words_without_accents_and_no_mark_up(
    settings: dict[str, Any], client: Any, index: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one without the module for that, and a second process that finds the template installed.

    A page that has no text any more is found by none.
    """
    caplog.set_level(logging.INFO)
    for key, body in (("a", CAFE), ("b", PLAIN)):
        sink = ElasticsearchSink.from_settings(settings)
        assert answers(write(sink, [page(key, body), page(f"{key}-none", None)])) == [Answer.ACKNOWLEDGED] * 2
    is_slim = "body_text" in fields_in(client, index)
    said = [one for one in caplog.records if "lacks the module analysis-common" in one.message]
    assert len(said) == is_slim
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []

    def found(words: str) -> list[str]:
        for query in (
            {"simple_query_string": {"query": words}},
            {"match": {"body_text" if is_slim else "body": words}},
        ):
            hits = client.search(index=index, query=query)["hits"]["hits"]
            keys = sorted(hit["_id"] for hit in hits)
        return keys

    assert found("cafe") == found("CAFE menu") == found("munchen") == ["a"]
    assert found("href") == found("class") == found("script") == []
    assert client.get(index=index, id="a")["_source"]["body"] == CAFE
    write(ElasticsearchSink.from_settings(settings), [page("a", None)])
    client.indices.refresh(index=index)
    assert found("cafe") == []


def failure(key: str) -> Any:
    result = Result(key, description="TimeoutError: x", reason="TimeoutError", url="http://h/", registered_domain="h")
    return record(key, result.document())


def old_mapping(**more: Any) -> dict[str, Any]:
    """What the version before had, as somebody copied it."""
    properties = dict(IndexTemplate("results", "x").properties)
    for name in ("reason", "registered_domain", "absent", *PAGE_FIELDS):
        del properties[name]
    return {**more, "properties": {**properties, "body": {"type": "text"}}}


@pytest.mark.servers
@pytest.mark.parametrize("is_old", [False, True])
def test_titles_and_texts_are_searched_and_languages_counted(
    sink: ElasticsearchSink, client: Any, index: str, is_old: bool
) -> None:
    """Also in an index of an earlier version, without the folding of accents."""
    said = {"title": "Le Café", "text": "Bonjour à tous", "language": "fr", "published_at": "2026-01-01T00:00:00+00:00"}
    result = Result("a", 200, links_out=3, additional_urls=["http://h/x", "http://h/y"], **said)
    if is_old:
        client.indices.create(index=index, mappings=old_mapping())
    assert answers(write(sink, [record("a", result.document())])) == [Answer.ACKNOWLEDGED]
    mapping = fields_in(client, index)
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
def test_an_index_of_an_earlier_version_takes_results(
    sink: ElasticsearchSink, client: Any, index: str, dynamic: str
) -> None:
    """And what is not ours as before."""
    mappings = old_mapping(dynamic=dynamic)
    del mappings["properties"]["url"]  # or one of somebody's own
    client.indices.create(index=index, mappings=mappings)
    *ours, other = write(sink, [failure("a"), page("b", CAFE), record("c", {"colour": "red"})])
    assert answers(ours) == [Answer.ACKNOWLEDGED] * 2
    assert (other.answer is Answer.REJECTED, "colour" in other.reason) == (dynamic == "strict",) * 2
    client.indices.refresh(index=index)
    assert client.get(index=index, id="a")["_source"]["reason"] == "TimeoutError"
    found = client.count(index=index, query={"term": {"reason": "TimeoutError"}})["count"]
    assert found == (0 if dynamic == "false" else 1)


@pytest.mark.servers
async def test_a_strict_mapping_that_may_not_be_changed_refuses_no_result(
    sink: ElasticsearchSink, client: Any, index: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What it has no field for is left out, and said once, also when several batches meet it together."""
    client.indices.create(index=index, mappings=old_mapping(dynamic="strict"))
    client.indices.put_settings(index=index, settings={"index.blocks.metadata": True})
    wrong = record("w", {"status": "no number"})
    await sink.open()
    verdicts = await asyncio.gather(*(sink.write([failure("a"), wrong, page(f"p{n}", CAFE)]) for n in range(4)))
    await sink.close()
    client.indices.put_settings(index=index, settings={"index.blocks.metadata": False})
    assert [answers(some) for some in verdicts] == [[Answer.ACKNOWLEDGED, Answer.REJECTED, Answer.ACKNOWLEDGED]] * 4
    stored = client.get(index=index, id="a")["_source"]
    assert stored["description"] == "TimeoutError: x"
    assert stored.keys().isdisjoint({"reason", "registered_domain", "absent", "body_text"})
    said = [one for one in caplog.records if "has a strict mapping without" in one.message]
    assert 1 <= len(said) <= 4
