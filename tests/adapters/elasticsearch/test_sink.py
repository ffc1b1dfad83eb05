"""What is special about Elasticsearch: outages, overload, rights, mappings and settings."""

from __future__ import annotations

import asyncio
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from site_spider.adapters.elasticsearch.answer import verdict_of
from site_spider.adapters.elasticsearch.results import ElasticsearchResults
from site_spider.adapters.elasticsearch.sink import ElasticsearchSink
from site_spider.contracts.sink import Answer, Record, Verdict
from site_spider.errors import ConfigError, SinkUnavailable
from site_spider.results.batch import BatchLimits
from site_spider.results.delivery import Delivery
from tests.contracts.sinks import drop_index
from tests.contracts.trials import (
    answers,
    assert_loop_stayed_free,
    lateness_while_stalled,
    outlast_an_outage,
    page,
    pids,
    written,
)
from tests.real_servers import ROOT, SHARED_FOLDER, servers, variable

# Anybody may ask for the health, which `servers.sh` does; for more, names and passwords are needed.
RESTRICTED = """
indexing_pressure.memory.limit: 200kb
xpack.security.enabled: true
xpack.security.authc.anonymous: {username: anybody, roles: anybody, authz_exception: true}
"""
RIGHTS = {
    "users": "admin:admin\ncrawler:opensesame\n",
    "users_roles": "superuser:admin\nwriter:crawler\n",
    "roles.yml": """
anybody:
  cluster: [monitor]
writer:
  indices:
    - names: ["mine-*"]
      privileges: [write, create_index, read]
""",
}
QUICK_START = "-XX:TieredStopAtLevel=1"


def record(key: str, document: dict[str, Any]) -> Record:
    return Record(key, document, 100)


def settings_for(hosts: str, **more: Any) -> dict[str, Any]:
    index = f"test-{uuid.uuid4().hex}"
    return {"SITE_ELASTICSEARCH_HOSTS": hosts, "SITE_RESULTS_INDEX": index, **more}


def write(sink: ElasticsearchSink, records: Sequence[Record]) -> list[Verdict]:
    return written(sink, *records)


@pytest.fixture
def settings(elasticsearch_hosts: str) -> Iterator[dict[str, Any]]:
    settings = settings_for(elasticsearch_hosts, SITE_STATS_INDEX=f"test-stats-{uuid.uuid4().hex}")
    yield settings
    drop_index(settings)
    drop_index({**settings, "SITE_RESULTS_INDEX": settings["SITE_STATS_INDEX"]})


# --- Settings, without a server ---


@pytest.mark.parametrize(
    "hosts", ["", " , ", "localhost:9200", "ftp://host:21", "http://host", "http://:9200"]
)
def test_hosts_that_lead_nowhere_are_refused(hosts: str) -> None:
    """The error names the setting."""
    with pytest.raises(ConfigError, match="SITE_ELASTICSEARCH_HOSTS"):
        ElasticsearchSink.from_settings({"SITE_ELASTICSEARCH_HOSTS": hosts, "SITE_RESULTS_INDEX": "x"})


@pytest.mark.parametrize("index", ["", "Upper", "_x", "a b", "a,b", "a*"])
def test_an_index_that_cannot_be_is_refused(index: str) -> None:
    """Before the first result is lost to it."""
    with pytest.raises(ConfigError, match="SITE_RESULTS_INDEX"):
        ElasticsearchSink.from_settings(
            {"SITE_ELASTICSEARCH_HOSTS": "http://h:9200", "SITE_RESULTS_INDEX": index}
        )


@pytest.mark.parametrize(
    "options", ['{"no_such": 1}', '{"ca_certs": "/no/such/file"}', '{"hosts": "x"}', "[1]"]
)
def test_options_that_the_client_does_not_take_are_refused(options: str) -> None:
    """With the client's words and the name of the setting."""
    settings = settings_for("https://host:9200", SITE_ELASTICSEARCH_OPTIONS=options)
    with pytest.raises(ConfigError, match="SITE_ELASTICSEARCH_OPTIONS"):
        ElasticsearchSink.from_settings(settings)


def test_a_password_in_an_address_is_not_shown() -> None:
    """Neither in the address of the reader nor in an error."""
    settings = settings_for("http://user:secret@127.0.0.1:9")
    reader = ElasticsearchResults.from_settings(settings)
    assert reader.address.startswith("http://127.0.0.1:9 ")
    with pytest.raises(SinkUnavailable) as caught:
        reader.count()
    reader.close()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "kind", "answer"),
    [
        (200, None, Answer.ACKNOWLEDGED),
        (201, None, Answer.ACKNOWLEDGED),
        (400, "document_parsing_exception", Answer.REJECTED),
        (400, "strict_dynamic_mapping_exception", Answer.REJECTED),
        (400, "illegal_argument_exception", Answer.REJECTED),
        (413, "too_large", Answer.REJECTED),
        (400, "index_closed_exception", Answer.RETRY),
        (400, "validation_exception", Answer.RETRY),
        (403, "cluster_block_exception", Answer.RETRY),
        (404, "index_not_found_exception", Answer.RETRY),
        (409, "version_conflict_engine_exception", Answer.RETRY),
        (429, "es_rejected_execution_exception", Answer.RETRY),
        (429, "circuit_breaking_exception", Answer.RETRY),
        (500, "anything", Answer.RETRY),
        (503, "unavailable_shards_exception", Answer.RETRY),
    ],
)
def test_only_what_speaks_of_the_document_refuses_it(status: int, kind: str | None, answer: Answer) -> None:
    """A server in trouble never makes a dead letter (rule 7)."""
    item: dict[str, Any] = {"status": status}
    if kind:
        item["error"] = {"type": kind, "reason": "why", "caused_by": {"type": "inner", "reason": "deeper"}}
    verdict = verdict_of(item)
    assert verdict.answer is answer
    if kind:
        assert verdict.reason == f"HTTP {status} {kind}: why, caused by inner: deeper"


def test_an_alias_without_a_write_index_is_not_the_records_fault() -> None:
    """Elasticsearch calls it an illegal argument."""
    error = {"type": "illegal_argument_exception", "reason": "no write index is defined for alias [x]"}
    assert verdict_of({"status": 400, "error": error}).answer is Answer.RETRY


# --- With the shared server ---


@pytest.mark.servers
def test_several_bad_records_of_every_sort_are_found(settings: dict[str, Any]) -> None:
    """Refused one by one or with their whole request: only they are, the rest is stored."""
    poisons = {
        "mapping": {"status": "no number"},
        "x" * 600: {"status": 200},  # an id too long refuses the whole request
        "": {"status": 200},  # so does none
        "number": {"n": 10**2000},  # and a number that the parser does not take
        "name": {"": 1},
        "meta": {"meta": {"nul\0": 1}},
        "json": {"x": {1}},
    }
    batch = [record(str(number), {"status": 200, "n": 1}) for number in range(200)]
    for place, (key, document) in enumerate(poisons.items()):
        batch.insert(place * 25, record(key, document))
    verdicts = write(ElasticsearchSink.from_settings(settings), batch)
    refused = {
        item.key: verdict.reason
        for item, verdict in zip(batch, verdicts, strict=True)
        if verdict.answer is not Answer.ACKNOWLEDGED
    }
    assert refused.keys() == poisons.keys()
    assert all(refused.values())
    reader = ElasticsearchResults.from_settings(settings)
    assert reader.count() == 200
    reader.close()


OLD_MAPPINGS: list[dict[str, Any]] = [
    {},
    {"properties": {"meta": {"properties": {"n": {"type": "long"}}}}},
    {"properties": {"meta": {"type": "nested"}}},
]


@pytest.mark.servers
@pytest.mark.parametrize("mappings", OLD_MAPPINGS, ids=str)
def test_no_producers_meta_harms_others_results(settings: dict[str, Any], mappings: dict[str, Any]) -> None:
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
    index = settings["SITE_RESULTS_INDEX"]
    with Elasticsearch(settings["SITE_ELASTICSEARCH_HOSTS"]) as client:
        client.indices.create(index=index, mappings=mappings)
        verdicts = write(ElasticsearchSink.from_settings(settings), [*records, *others])
        kept = [
            verdicts[0],
            verdicts[1],
            *verdicts[len(records) :],
        ]
        assert answers(kept) == [Answer.ACKNOWLEDGED] * len(kept)
        assert client.get(index=index, id="h1")["_source"]["meta"] == hostile[1]
        found = client.indices.get_mapping(index=index)[index]["mappings"]["properties"]["meta"]
        assert len(found.get("properties", {})) <= 1


@pytest.mark.servers
def test_the_template_gives_the_index_its_mappings(settings: dict[str, Any]) -> None:
    """Long and strange values are stored, and what people filter by can be aggregated."""
    strange = {
        "meta": {"a.b": 1, "a": {"b": "text"}, "": 2, "漢" * 1000: "漢" * 30_000},
        "url": "http://h/" + "🎉" * 20_000,
        "task_id": "🎉" * 20_000,
        "headers": "x" * 1_000_000,
        "own": "2026/01/01",
    }
    later = {"meta": {"a": "other type"}, "own": "no date"}
    verdicts = write(ElasticsearchSink.from_settings(settings), [record("a", strange), record("b", later)])
    assert answers(verdicts) == [Answer.ACKNOWLEDGED] * 2
    with Elasticsearch(settings["SITE_ELASTICSEARCH_HOSTS"]) as client:
        index = settings["SITE_RESULTS_INDEX"]
        mapping = client.indices.get_mapping(index=index)[index]["mappings"]["properties"]
        assert mapping["body"] == {"type": "text"}
        assert mapping["meta"]["type"] == "flattened"
        assert mapping["own"]["type"] == "keyword"


@pytest.mark.servers
def test_statistics_can_be_summed(settings: dict[str, Any]) -> None:
    """Numbers by status are numbers, and a fraction after a whole number is not cut."""
    documents = [
        {
            "@timestamp": "2026-01-01T00:00:00Z",
            "process": "p",
            "total_num": 1,
            "by_status": {"200": 3},
            "rate": 1,
        },
        {
            "@timestamp": "2026-01-01T00:00:10Z",
            "process": "p",
            "total_num": 3,
            "by_status": {"200": 4},
            "rate": 1.5,
        },
    ]
    records = [record(f"p-{number}", document) for number, document in enumerate(documents)]
    sink = ElasticsearchSink.for_statistics(settings)
    assert answers(write(sink, records)) == answers(write(sink, records)) == [Answer.ACKNOWLEDGED] * 2
    with Elasticsearch(settings["SITE_ELASTICSEARCH_HOSTS"]) as client:
        index = settings["SITE_STATS_INDEX"]
        client.indices.refresh(index=index)
        fields = ("total_num", "by_status.200", "rate")
        sums = client.search(index=index, size=0, aggs={field: {"sum": {"field": field}} for field in fields})
        assert [sums["aggregations"][field]["value"] for field in fields] == [4, 7, 2.5]
        assert client.indices.get_mapping(index=index)[index]["mappings"]["properties"]["process"] == {
            "type": "keyword",
            "ignore_above": 1024,
        }


@pytest.mark.servers
def test_a_template_that_somebody_changed_is_left_alone(settings: dict[str, Any]) -> None:
    """Ten processes that start at once install it; none writes over the same or a newer version."""
    sink = ElasticsearchSink.from_settings(settings)

    async def open_many() -> None:
        sinks = [ElasticsearchSink.from_settings(settings) for _ in range(10)]
        await asyncio.gather(*(one.open() for one in sinks))
        await asyncio.gather(*(one.close() for one in sinks))

    asyncio.run(open_many())
    index = settings["SITE_RESULTS_INDEX"]
    name = f"site_spider-{index}"
    with Elasticsearch(settings["SITE_ELASTICSEARCH_HOSTS"]) as client:
        mine = {"mappings": {"properties": {"status": {"type": "keyword"}}}}
        client.indices.put_index_template(
            name=name, version=99, index_patterns=[index, f"{index}-*"], priority=20, template=mine
        )
        assert answers(write(sink, [record("a", {"status": "as I like"})])) == [Answer.ACKNOWLEDGED]
        found = client.indices.get_index_template(name=name)["index_templates"][0]
        assert found["index_template"]["version"] == 99


@pytest.mark.servers
def test_an_index_that_was_there_keeps_its_mappings(settings: dict[str, Any]) -> None:
    """Results go into an index of the producer's, beside its own fields, and can be filtered there."""
    index = settings["SITE_RESULTS_INDEX"]
    with Elasticsearch(settings["SITE_ELASTICSEARCH_HOSTS"]) as client:
        client.index(index=index, id="a", document={"mine": "x", "task_id": "Job One"})
        before = client.indices.get_mapping(index=index)[index]["mappings"]["properties"]
        write(ElasticsearchSink.from_settings(settings), [record("a", {"status": 200, "body": "text"})])
        after = client.indices.get_mapping(index=index)[index]["mappings"]["properties"]
        assert {name: after[name] for name in before} == before
    reader = ElasticsearchResults.from_settings(settings)
    expected = {"url_id": "a", "mine": "x", "task_id": "Job One", "status": 200, "body": "text"}
    assert list(reader.search(task_id="Job One")) == [expected]
    reader.close()


@pytest.mark.servers
def test_a_closed_index_is_an_outage(settings: dict[str, Any]) -> None:
    """Whoever closes the index gets the results when he opens it again."""
    sink = ElasticsearchSink.from_settings(settings)
    write(sink, [record("a", {"status": 1})])
    with Elasticsearch(settings["SITE_ELASTICSEARCH_HOSTS"]) as client:
        client.indices.close(index=settings["SITE_RESULTS_INDEX"])
        assert answers(write(sink, [record("a", {"status": 2})])) == [Answer.RETRY]
        client.indices.open(index=settings["SITE_RESULTS_INDEX"])
        assert answers(write(sink, [record("a", {"status": 2})])) == [Answer.ACKNOWLEDGED]


@pytest.mark.servers
def test_one_dead_host_of_two_is_passed_over(settings: dict[str, Any]) -> None:
    """The client goes on to the next one at once."""
    hosts = "http://127.0.0.1:9," + settings["SITE_ELASTICSEARCH_HOSTS"]
    sink = ElasticsearchSink.from_settings({**settings, "SITE_ELASTICSEARCH_HOSTS": hosts})
    assert answers(write(sink, [record("a", {"status": 1})])) == [Answer.ACKNOWLEDGED]


@pytest.mark.servers
def test_a_stalled_server_does_not_stall_the_event_loop(settings: dict[str, Any]) -> None:
    """It takes bytes and gives no answer, until it goes on."""
    if "SITE_ELASTICSEARCH_HOSTS" in os.environ:
        pytest.skip("only a server that the tests have started is theirs to stop")
    processes = pids(SHARED_FOLDER / "elasticsearch", "elasticsearch")
    sink = ElasticsearchSink.from_settings(settings)
    assert_loop_stayed_free(asyncio.run(lateness_while_stalled(sink, processes, 5)))
    reader = ElasticsearchResults.from_settings(settings)
    assert reader.get("2000") == page(2000).document
    reader.close()


# --- With a server of our own, which is overloaded easily, asks for passwords, and is killed ---


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("elasticsearch")
    template = folder / "resources" / "servers" / "elasticsearch" / "elasticsearch.yml"
    # A line can be added to the server's configuration but not changed, so this is a copy without one.
    shutil.copytree(ROOT / "task_shell", folder / "task_shell")
    shutil.copytree(ROOT / "resources" / "servers", folder / "resources" / "servers")
    template.write_text(template.read_text().replace("xpack.security.enabled: false", ""))
    start(folder)
    yield folder
    servers(folder, "kill", "elasticsearch")


def start(folder: Path) -> None:
    conf = folder / "elasticsearch" / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for name, text in RIGHTS.items():
        (conf / name).write_text(text)
    servers(
        folder,
        "start",
        "elasticsearch",
        script=folder / "task_shell" / "servers.sh",
        SITE_SERVERS_ELASTICSEARCH_YML=RESTRICTED,
        SITE_SERVERS_ELASTICSEARCH_JAVA_OPTS=QUICK_START,
    )


@pytest.fixture
def own_settings(own_server: Path) -> dict[str, Any]:
    hosts = variable(own_server, "SITE_ELASTICSEARCH_HOSTS", "elasticsearch")
    return settings_for(hosts, SITE_ELASTICSEARCH_OPTIONS='{"basic_auth": ["admin", "admin"]}')


@pytest.mark.servers
def test_wrong_credentials_are_a_wrong_setting(own_settings: dict[str, Any]) -> None:
    """Waiting would not help, so it says which setting to mend."""
    own_settings["SITE_ELASTICSEARCH_OPTIONS"] = '{"basic_auth": ["crawler", "wrong"]}'
    with pytest.raises(ConfigError, match="SITE_ELASTICSEARCH_OPTIONS"):
        write(ElasticsearchSink.from_settings(own_settings), [])


@pytest.mark.servers
def test_the_least_rights_are_enough(own_settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """Who may only write to the index can do so; what else was forbidden is said."""
    own_settings["SITE_RESULTS_INDEX"] = "mine-1"
    own_settings["SITE_ELASTICSEARCH_OPTIONS"] = '{"basic_auth": ["crawler", "opensesame"]}'
    sink = ElasticsearchSink.from_settings(own_settings)
    assert answers(write(sink, [record("a", {"status": 200})])) == [Answer.ACKNOWLEDGED]
    told = [item.getMessage() for item in caplog.records if item.levelname == "WARNING"]
    assert ["template" in line and "security_exception" in line for line in told] == [True]
    reader = ElasticsearchResults.from_settings(own_settings)
    assert reader.get("a") == {"url_id": "a", "status": 200}
    reader.close()

    forbidden = ElasticsearchSink.from_settings({**own_settings, "SITE_RESULTS_INDEX": "not-mine"})
    [verdict] = write(forbidden, [record("a", {"status": 200})])
    assert verdict.answer is Answer.RETRY
    assert "security_exception" in verdict.reason
    assert "unauthorized for user [crawler]" in verdict.reason


@pytest.mark.servers
def test_a_busy_server_refuses_nothing_for_good(own_settings: dict[str, Any]) -> None:
    """Real 429s: everything is stored in the end, nothing rejected."""
    seen: list[str] = []

    class Watched(ElasticsearchSink):
        async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
            try:
                verdicts = await super().write(records)
            except SinkUnavailable as error:
                seen.append(str(error))
                raise
            seen.extend(verdict.reason for verdict in verdicts if verdict.answer is Answer.RETRY)
            return verdicts

    async def scenario() -> list[Verdict]:
        verdicts: list[Verdict] = []
        delivery = Delivery(
            Watched.from_settings(own_settings), limits=BatchLimits(size_bytes=400_000, count=50)
        )
        await delivery.open(20)
        for number in range(100):
            delivery.submit(Record(str(number), {"body": "word " * 1000}, 5000), verdicts.append)
        assert await delivery.close(60) == 0
        return verdicts

    verdicts = asyncio.run(scenario())
    assert answers(verdicts) == [Answer.ACKNOWLEDGED] * 100
    assert any("HTTP 429" in reason for reason in seen)
    reader = ElasticsearchResults.from_settings(own_settings)
    assert reader.count() == 100
    reader.close()


@pytest.mark.servers
def test_nothing_is_lost_when_the_server_is_killed(own_server: Path, own_settings: dict[str, Any]) -> None:
    """Killed by -9 in mid-stream and started again: every record is acknowledged once and is there."""
    sink = ElasticsearchSink.from_settings(own_settings)
    verdicts, waiting = asyncio.run(
        outlast_an_outage(
            sink,
            lambda: servers(own_server, "kill", "elasticsearch"),
            lambda: start(own_server),
            3000,
            make=lambda number: Record(str(number), {"status": 200, "n": number}, 10_000),
        )
    )
    assert answers(verdicts) == [Answer.ACKNOWLEDGED] * 3000
    assert waiting > 0
    reader = ElasticsearchResults.from_settings(own_settings)
    assert {document["n"] for document in reader.search(limit=None)} == set(range(3000))
    reader.close()
