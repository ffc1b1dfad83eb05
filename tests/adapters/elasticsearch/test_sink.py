"""What is special about Elasticsearch: outages, overload, rights, mappings and settings."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from site_spider.adapters import files
from site_spider.adapters.elasticsearch import sink
from site_spider.adapters.elasticsearch.results import ElasticsearchResults
from site_spider.adapters.elasticsearch.sink import ElasticsearchIndex, ElasticsearchSink, Sizes, verdict_of
from site_spider.contracts.sink import Answer, Record
from site_spider.errors import ConfigError, SinkUnavailable
from tests.adapters.elasticsearch.conftest import record, settings_for, write
from tests.adapters.elasticsearch.played import bulk, good, item, to, write_to
from tests.adapters.elasticsearch.played import settings_for as settings_of
from tests.adapters.raw_server import PRODUCT, Asked, Said, answering, said
from tests.contracts.seed_logs import wait_until
from tests.contracts.trials import answers

# --- Settings, without a server ---


REFUSED_SETTINGS = {
    "SITE_ELASTICSEARCH_HOSTS": ["", " , ", "localhost:9200", "ftp://host:21", "http://host", "http://:9200"],
    "SITE_RESULTS_INDEX": ["", "Upper", "_x", "a b", "a,b", "a*"],
    "SITE_ELASTICSEARCH_OPTIONS": [
        '{"no_such": 1}', '{"ca_certs": "/no/such/file"}', '{"hosts": "x"}', "[1]", '{"basic_auth": 5}',
        '{"api_key": true}', '{"http_auth": 5}', '{"headers": 5}', '{"ca_certs": 5}', '{"request_timeout": "30"}',
    ],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, one) for name, some in REFUSED_SETTINGS.items() for one in some])
def test_a_setting_that_cannot_be_used_is_refused(name: str, value: str) -> None:
    """Before the first result is lost to it."""
    with pytest.raises(ConfigError, match=name):
        ElasticsearchSink.from_settings(settings_for("https://host:9200") | {name: value})


@pytest.mark.parametrize(
    ("make", "setting", "other"),
    [
        (ElasticsearchSink.from_settings, "SITE_RESULTS_INDEX", "SITE_STATS_INDEX"),
        (ElasticsearchSink.for_items, "SITE_ITEMS_INDEX", "SITE_STATS_INDEX"),
        (ElasticsearchSink.for_statistics, "SITE_STATS_INDEX", "SITE_RESULTS_INDEX"),
    ],
)
def test_one_index_for_two_kinds_of_documents_is_refused(make: Callable[..., Any], setting: str, other: str) -> None:
    """The index would have the mapping of one, and refuse the other."""
    settings = {"SITE_ELASTICSEARCH_HOSTS": "http://h:9200", setting: "same", other: "same"}
    with pytest.raises(ConfigError, match=f"{setting} and {other} are both 'same': name two indices"):
        make(settings)


@pytest.mark.parametrize(
    "options", ['{"max_retries": null}', '{"headers": {"x-who": null}}', r'{"headers": {"x-who": "a\n"}}']
)
def test_options_that_the_client_does_not_take_when_it_asks_are_refused(options: str) -> None:
    """Some it looks at with its first request."""
    with answering(good) as address:
        made = ElasticsearchSink.from_settings({**settings_of(address), "SITE_ELASTICSEARCH_OPTIONS": options})
        with pytest.raises(ConfigError, match="SITE_ELASTICSEARCH_OPTIONS is not what the client takes"):
            asyncio.run(made.open())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ca_certs": "/no/ca.pem"}, "ca_certs /no/ca.pem: No such file or directory"),
        (
            {"client_cert": "/no/a.pem", "client_key": "/no/b.pem"},
            "client_cert /no/a.pem, client_key /no/b.pem: No such",
        ),
        ({"ca_certs": __file__}, f"ca_certs {__file__}: .*no certificate"),
    ],
)
def test_a_certificate_that_cannot_be_read_is_named(options: dict[str, str], said: str) -> None:
    settings = settings_for("https://host:9200", SITE_ELASTICSEARCH_OPTIONS=json.dumps(options))
    with pytest.raises(ConfigError, match=f"not what the client takes: {said}"):
        ElasticsearchSink.from_settings(settings)


def test_a_client_that_looks_for_nodes_asks_nobody_while_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made on the event loop's thread, and the server may stand still."""
    monkeypatch.setattr(sink, "OPEN_TIMEOUT_SECONDS", 0.5)
    asked: list[str] = []
    over = threading.Event()

    def stands_still(request: Asked) -> Said:
        asked.append(request.path)
        over.wait(4)
        return b""

    with answering(stands_still) as address:
        options = {"SITE_ELASTICSEARCH_OPTIONS": '{"sniff_on_start": true}'}
        made = ElasticsearchSink.from_settings({**settings_of(address), **options})
        assert asked == []
        with pytest.raises(SinkUnavailable, match="SITE_ELASTICSEARCH_HOSTS"):
            asyncio.run(made.check())
        over.set()
        wait_until(lambda: "/_nodes/_all/http" in asked)


def test_the_timeout_holds_for_all_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each piece of it, or a server that sends a byte now and then would hold a thread for ever."""
    pauses: list[float] = []
    monkeypatch.setattr(files.runtime, "monotonic", lambda: time.monotonic() + sum(pauses))

    def drips(_asked: Asked) -> Said:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n%b\r\n" % PRODUCT
        return itertools.chain([head], (b" " for _ in range(900) if pauses.append(1.0) is None))

    with answering(drips) as address:
        index = ElasticsearchIndex(settings_of(address), "SITE_RESULTS_INDEX", "results")
        index._client = index._new_client()
        with pytest.raises(SinkUnavailable, match="not complete in time"):
            index.write([record("a", {"status": 200})])
        index.close()


async def test_a_write_that_takes_too_long_writes_nothing_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records are written again by then, and newer ones of the same pages."""
    asked: list[str] = []
    monkeypatch.setattr(files.runtime, "monotonic", lambda: time.monotonic() + 60.0 * len(asked))

    def late(one: Asked) -> Said:
        asked.append(one.path)
        return b""  # the client goes on to the next host

    with answering(late) as one, answering(late) as other:
        index = ElasticsearchIndex(settings_of(f"{one},{other}"), "SITE_RESULTS_INDEX", "results")
        index._client = index._new_client()
        sink_of_it = ElasticsearchSink(index)
        with pytest.raises(SinkUnavailable, match=r"no time left .*\(.*[Cc]onnection"):
            await sink_of_it.write([record("a", {"status": 200})])
        pool = index._client.transport.node_pool
        alive = {node.base_url for node in (pool.get() for _ in range(4))}
        await sink_of_it.close()
    assert len(asked) == 1
    assert len(alive) == 1  # the host that was not asked is not taken for dead


def test_a_server_that_stands_still_at_the_start_holds_up_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "OPEN_TIMEOUT_SECONDS", 3600.0)
    monkeypatch.setattr(files, "CLOSE_SECONDS", 3600.0)
    over, asked = threading.Event(), threading.Event()

    def stands_still(_asked: Asked) -> Said:
        asked.set()
        over.wait(600)
        return b""

    async def opened_and_closed(address: str) -> list[BaseException | None]:
        made = ElasticsearchSink.from_settings(settings_of(address))
        opening = asyncio.create_task(made.open())
        await asyncio.to_thread(asked.wait, 300)
        async with asyncio.timeout(300):
            await made.close()
            return await asyncio.gather(opening, return_exceptions=True)

    with answering(stands_still) as address:
        [ended] = asyncio.run(opened_and_closed(address))
        over.set()
    assert isinstance(ended, SinkUnavailable)


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
        (400, "invalid_index_name_exception", Answer.RETRY),
        (400, "routing_missing_exception", Answer.RETRY),
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


@pytest.mark.parametrize(
    "reason",
    [
        "no write index is defined for alias [x]",
        "only write ops with an op_type of create are allowed in data streams",
        "pipeline with id [x] does not exist",
    ],
)
def test_an_index_that_takes_no_result_refuses_none(reason: str) -> None:
    """All results of a crawl were dead letters, until somebody looked at the index."""
    error = {"type": "illegal_argument_exception", "reason": reason}
    assert verdict_of({"status": 400, "error": error}).answer is Answer.RETRY
    error = {"type": "document_parsing_exception", "reason": f"failed to parse field [x], a preview: '{reason}'"}
    assert verdict_of({"status": 400, "error": error}).answer is Answer.REJECTED


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


@pytest.mark.servers
def test_a_closed_index_is_an_outage(settings: dict[str, Any], client: Any) -> None:
    """Whoever closes the index gets the results when he opens it again."""
    sink = ElasticsearchSink.from_settings(settings)
    write(sink, [record("a", {"status": 1})])
    client.indices.close(index=settings["SITE_RESULTS_INDEX"])
    assert answers(write(sink, [record("a", {"status": 2})])) == [Answer.RETRY]
    with closing(ElasticsearchResults.from_settings(settings)) as reader:
        for ask in (partial(reader.known, ["a"], []), partial(reader.exchange, "x", {"a": (None, "1")})):
            with pytest.raises(SinkUnavailable, match="closed"):  # its documents are not missing
                ask()
    client.indices.open(index=settings["SITE_RESULTS_INDEX"])
    assert answers(write(sink, [record("a", {"status": 2})])) == [Answer.ACKNOWLEDGED]


@pytest.mark.servers
def test_one_dead_host_of_two_is_passed_over(settings: dict[str, Any]) -> None:
    hosts = "http://127.0.0.1:9," + settings["SITE_ELASTICSEARCH_HOSTS"]
    sink = ElasticsearchSink.from_settings({**settings, "SITE_ELASTICSEARCH_HOSTS": hosts})
    assert answers(write(sink, [record("a", {"status": 1})])) == [Answer.ACKNOWLEDGED]


# --- 413 of a proxy in trouble, which refuses anything, and of one with a limit


REFUSED = said(b"<html>413</html>", status=413, kind="text/html")


def records(*sizes: int) -> list[Record]:
    return [Record(f"r{number}", {"body": "x" * size}, size) for number, size in enumerate(sizes)]


def limited_to(limit_bytes: int) -> Callable[[Asked], Said]:
    """A proxy that refuses larger requests; a probe changes nothing behind it."""

    def answer(asked: Asked) -> Said:
        if "_bulk" not in asked.path:
            return good(asked)
        if len(asked.body) > limit_bytes:
            return REFUSED
        missing = {"type": "document_missing_exception", "reason": "missing"}
        items = [item(key, 404, error=missing) if key == "site_spider-probe" else item(key) for key in asked.ids]
        return bulk(items, errors="site_spider-probe" in asked.ids)

    return answer


def test_a_proxy_that_refuses_everything_is_an_outage() -> None:
    assert answers(write_to(to("_bulk", REFUSED), records(10, 2000, 300, 5))) == [Answer.RETRY] * 4


@pytest.mark.parametrize("count", [1, 2, 5])
def test_only_the_record_that_is_larger_than_those_that_pass_is_rejected(count: int) -> None:
    """Also when there is no other record that could show it."""
    sizes = [100] * (count - 1)
    found = answers(write_to(limited_to(5000), records(*sizes, 20_000)))
    assert found == [*[Answer.ACKNOWLEDGED] * (count - 1), Answer.REJECTED]


def test_a_record_that_is_smaller_than_what_has_passed_lately_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "_REMEMBERED_SECONDS", 3600.0)  # of a machine that stands still
    refusals = itertools.count()

    def answer(asked: Asked) -> Said:
        if b"r0" in asked.body and b"y" * 50 in asked.body and next(refusals) < 5:
            return REFUSED
        return limited_to(100_000)(asked)

    later = [Record("r0", {"body": "y" * 300}, 300)]
    assert Answer.REJECTED not in answers(write_to(answer, records(4000), later, later, later))


def test_a_refusal_that_passes_is_no_fault() -> None:
    """Refused alone once, and taken when something smaller has passed."""
    refusals = itertools.count()

    def answer(asked: Asked) -> Said:
        return REFUSED if b"xxx" in asked.body and next(refusals) < 1 else limited_to(10**6)(asked)

    assert answers(write_to(answer, records(3000))) == [Answer.ACKNOWLEDGED]


def test_what_passed_long_ago_says_nothing() -> None:
    sizes = Sizes()
    sizes.passed(1000, 0.0)
    sizes.passed(10, 30.0)
    assert not sizes.is_largest(500, 59.0)
    assert sizes.is_largest(500, 61.0)
    assert not sizes.is_largest(10, 61.0)
    assert sizes.has_passed_since(29.0)
    assert not sizes.has_passed_since(30.0)
