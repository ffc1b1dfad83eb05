"""What is special about HBase: rows, keys, refusals, the table, outages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing, nullcontext
from typing import Any

import pytest

from site_spider.adapters.hbase import sink as hbase_table
from site_spider.adapters.hbase.connection import HBaseConnection, HBaseOptions
from site_spider.adapters.hbase.results import HBaseResults
from site_spider.adapters.hbase.sink import HBaseSink
from site_spider.contracts.sink import Answer, Record, Verdict
from site_spider.errors import ConfigError, SinkUnavailable
from tests.contracts.sinks import drop_table, hbase_settings, record
from tests.contracts.trials import (
    answers,
    written,
)

NOWHERE = "127.0.0.1:9"


def write(settings: dict[str, Any], *records: Record) -> list[Verdict]:
    return written(HBaseSink.from_settings(settings), *records)


def cells(settings: dict[str, Any], key: bytes) -> dict[bytes, bytes]:
    """A row as every other client of HBase sees it."""
    with closing(HBaseOptions.from_settings(settings).connect(300)) as connection:
        row: dict[bytes, bytes] = connection.table(settings["SITE_HBASE_TABLE"]).row(key)
        return row


@pytest.fixture
def settings(hbase_address: str) -> Iterator[dict[str, Any]]:
    settings = hbase_settings(hbase_address)
    yield settings
    drop_table(settings)


# --- Settings, without a server ---


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SITE_HBASE_HOST", " "),
        ("SITE_HBASE_PORT", "thrift"),
        ("SITE_HBASE_PORT", 70_000),
        ("SITE_HBASE_TABLE", ""),
        ("SITE_HBASE_TABLE", "a b"),
        ("SITE_HBASE_TABLE", "-a"),
        ("SITE_HBASE_TABLE", "a:b:c"),
        ("SITE_HBASE_TABLE", "ä"),
        ("SITE_HBASE_ROW_KEY", "random"),
        ("SITE_HBASE_CELL_BYTES", 0),
        ("SITE_HBASE_TIMEOUT_SECONDS", 0),
        ("SITE_HBASE_TIMEOUT_SECONDS", 60),
        ("SITE_HBASE_OPTIONS", '{"transport": "pigeon"}'),
        ("SITE_HBASE_OPTIONS", '{"timeout": 1}'),
        ("SITE_HBASE_OPTIONS", "[1]"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(name: str, value: object) -> None:
    """Before the first result; the error names the setting."""
    with pytest.raises(ConfigError, match=name):
        HBaseSink.from_settings(hbase_settings(NOWHERE, **{name: value}))


def test_a_table_may_stand_in_a_namespace_and_thrift_be_framed() -> None:
    """What HBase allows is allowed."""
    options = '{"transport": "framed", "protocol": "compact"}'
    HBaseSink.from_settings(
        hbase_settings(NOWHERE, SITE_HBASE_TABLE="ns:a.b-c_d", SITE_HBASE_OPTIONS=options)
    )


# --- With the shared server ---


@pytest.mark.servers
def test_several_bad_rows_of_every_sort_are_found(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused here or by the server, all in one call: only they are, the rest is stored."""
    monkeypatch.setattr(hbase_table, "CALL_BYTES", 50_000_000)
    poisons: dict[str, dict[str, Any]] = {
        "": {"status": 1},
        "x" * 40_000: {"status": 2},
        "json": {"x": {1}},
        "not a number": {"x": float("nan")},
        "large": {"headers": "x" * 11_000_000},
    }
    batch = [record(str(number), {"status": 200, "body": "text"}) for number in range(200)]
    for place, (key, document) in enumerate(poisons.items()):
        batch.insert(place * 30, record(key, document))
    verdicts = write(settings, *batch)
    refused = {
        item.key: verdict
        for item, verdict in zip(batch, verdicts, strict=True)
        if verdict.answer is not Answer.ACKNOWLEDGED
    }
    assert refused.keys() == poisons.keys()
    assert set(answers(list(refused.values()))) == {Answer.REJECTED}
    assert all(verdict.reason and "\n" not in verdict.reason for verdict in refused.values())
    assert HBaseResults.from_settings(settings).count() == 200


@pytest.mark.servers
def test_ten_processes_at_once_make_one_table(settings: dict[str, Any]) -> None:
    """With the documented schema, and whoever comes second is content."""

    async def open_many() -> None:
        sinks = [HBaseSink.from_settings(settings) for _ in range(10)]
        await asyncio.gather(*(sink.open() for sink in sinks))
        await asyncio.gather(*(sink.close() for sink in sinks))

    asyncio.run(open_many())
    with closing(HBaseOptions.from_settings(settings).connect(300)) as connection:
        [family] = connection.client.getColumnDescriptors(settings["SITE_HBASE_TABLE"].encode()).values()
    assert (family.name, family.maxVersions, family.compression) == (b"f:", 1, b"GZ")


@pytest.mark.servers
def test_a_table_without_the_family_is_a_wrong_setting(settings: dict[str, Any]) -> None:
    """Waiting would not help, so it says what to do."""
    with closing(HBaseOptions.from_settings(settings).connect(300)) as connection:
        connection.create_table(settings["SITE_HBASE_TABLE"], {"other": {}})
    with pytest.raises(ConfigError, match=r"SITE_HBASE_TABLE.*column family 'f'"):
        write(settings, record("a", {"status": 200}))


@pytest.mark.servers
def test_a_null_takes_the_place_of_an_earlier_value(settings: dict[str, Any]) -> None:
    """As other clients of HBase see it: an empty cell; cells of others stay."""
    write(settings, record("a", {"status": 200, "body": "text", "mine": "x"}))
    write(settings, record("a", {"status": None, "body": None, "description": "no answer"}))
    assert cells(settings, b"a") == {
        b"f:url_id": b"a",
        b"f:status": b"",
        b"f:body": b"",
        b"f:body_bytes": b"",
        b"f:body_truncated": b"",
        b"f:description": b"no answer",
        b"f:mine": b"x",
    }


@pytest.mark.servers
def test_a_body_over_the_limit_is_cut_and_flagged(settings: dict[str, Any]) -> None:
    """At SITE_HBASE_CELL_BYTES, or by halves where the server's own limit is lower."""
    body = "漢" * 5_000_000  # 15 MB
    assert answers(write(settings, record("a", {"body": body}))) == [Answer.ACKNOWLEDGED]
    assert cells(settings, b"a")[b"f:body"].decode() == "漢" * (10_000_000 // 3)
    assert cells(settings, b"a")[b"f:body_truncated"] == b"true"
    too_high = {**settings, "SITE_HBASE_CELL_BYTES": 20_000_000}
    assert answers(write(too_high, record("b", {"body": body}))) == [Answer.ACKNOWLEDGED]
    reader = HBaseResults.from_settings(settings)
    assert reader.get("b") == {"url_id": "b", "body": "漢" * 2_500_000, "body_truncated": True}
    write(settings, record("b", {"body": "short"}))
    assert reader.get("b") == {"url_id": "b", "body": "short"}


@pytest.mark.servers
def test_a_table_that_somebody_dropped_is_made_again(settings: dict[str, Any]) -> None:
    """The write in between fails and is repeated; nothing is lost."""

    async def scenario() -> list[Answer]:
        sink = HBaseSink.from_settings(settings)
        await sink.open()
        drop_table(settings)
        with pytest.raises(SinkUnavailable):
            await sink.write([record("a", {"status": 200})])
        again = answers(await sink.write([record("a", {"status": 200})]))
        await sink.close()
        return again

    assert asyncio.run(scenario()) == [Answer.ACKNOWLEDGED]


@pytest.mark.servers
def test_an_idle_connection_is_not_trusted(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The server closes it after a minute, and the next write would fail for nothing."""
    opened = []
    original = HBaseConnection.open

    def counted(connection: HBaseConnection) -> None:
        opened.append(connection)
        original(connection)

    monkeypatch.setattr(HBaseConnection, "open", counted)

    async def scenario() -> None:
        sink = HBaseSink.from_settings(settings)
        await sink.open()
        for idle_seconds, connections in ((30, 1), (0, 2), (30, 2)):
            monkeypatch.setattr(hbase_table, "IDLE_SECONDS", idle_seconds)
            assert answers(await sink.write([record("a", {"status": 200})])) == [Answer.ACKNOWLEDGED]
            assert len(opened) == connections
        await sink.close()

    asyncio.run(scenario())


@pytest.mark.servers
@pytest.mark.parametrize("row_key", ["salted", "reversed_host"])
def test_results_are_found_by_their_id_whatever_the_row_key(settings: dict[str, Any], row_key: str) -> None:
    """And by status, and all of them."""
    settings["SITE_HBASE_ROW_KEY"] = row_key
    batch = [
        record(str(number), {"url_id": str(number), "url": f"http://h{number % 3}.test/'", "status": 200})
        for number in range(30)
    ]
    write(settings, *batch)
    reader = HBaseResults.from_settings(settings)
    assert reader.get("7") == batch[7].document
    assert reader.get("70") is None
    assert reader.get("'") is None
    assert {document["url_id"] for document in reader.search(status=200)} == {item.key for item in batch}
    by_id: Any = nullcontext() if row_key == "salted" else pytest.raises(ConfigError, match="ROW_KEY")
    with by_id:  # "there is none" would be a lie
        assert reader.known(["7"], ["status"]).keys() == {"7"}


@pytest.mark.servers
def test_the_rows_of_a_host_can_be_scanned(settings: dict[str, Any]) -> None:
    """As docs/sinks.md shows it."""
    settings["SITE_HBASE_ROW_KEY"] = "reversed_host"
    hosts = ("www.example.com", "shop.example.com", "example.com", "example.community", "other.test")
    write(settings, *(record(host, {"url": f"http://{host}/", "status": 200}) for host in hosts))
    with closing(HBaseOptions.from_settings(settings).connect(300)) as connection:
        table = connection.table(settings["SITE_HBASE_TABLE"])
        domain = [
            key for prefix in (b"com.example/", b"com.example.") for key, _ in table.scan(row_prefix=prefix)
        ]
    assert domain == [
        b"com.example/example.com",
        b"com.example.shop/shop.example.com",
        b"com.example.www/www.example.com",
    ]


@pytest.mark.servers
def test_a_document_is_what_json_would_have_kept(settings: dict[str, Any]) -> None:
    """Of somebody's own fields too, apart from text that looks like a number."""
    document = {
        "url_id": "a",
        "n": 1,
        "x": 1.5e300,
        "list": [1, "two"],
        "no": False,
        "": "empty name",
        "a:b": "c",
    }
    write(settings, record("a", document))
    assert HBaseResults.from_settings(settings).get("a") == json.loads(json.dumps(document))
