"""Rows of HBase, what it answers, and how it fails: over a scripted connection, and with a server."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import socketserver
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, Self, TypeVar
from unittest.mock import Mock

import pytest
from thriftpy2.thrift import TApplicationException
from thriftpy2.transport import TTransportException

from site_spider.adapters.hbase import sink as hbase_table
from site_spider.adapters.hbase.connection import Hbase_thrift, HBaseOptions, explained
from site_spider.adapters.hbase.results import HBaseResults
from site_spider.adapters.hbase.sink import HBaseSink, HBaseTable, RowLayout, cut_text
from site_spider.contracts.sink import Answer, Record, Verdict
from site_spider.errors import ConfigError, SinkRejected, SinkUnavailable
from site_spider.results.document import Result
from tests.adapters.raw_server import serving
from tests.contracts.sinks import drop_table, hbase_settings, record
from tests.contracts.trials import answers, written

T = TypeVar("T")
NOWHERE = "127.0.0.1:9"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SITE_HBASE_HOST", " "),
        ("SITE_HBASE_HOST", "thrift:9090"),
        ("SITE_HBASE_HOST", "[::1]"),
        ("SITE_HBASE_PORT", "thrift"),
        ("SITE_HBASE_PORT", 70_000),
        ("SITE_HBASE_TABLE", ""),
        ("SITE_HBASE_TABLE", "a b"),
        ("SITE_HBASE_TABLE", "-a"),
        ("SITE_HBASE_TABLE", "a:b:c"),
        ("SITE_HBASE_TABLE", "ä"),
        ("SITE_HBASE_TABLE", "hbase:meta"),
        ("SITE_HBASE_ROW_KEY", "random"),
        ("SITE_HBASE_CELL_BYTES", 0),
        ("SITE_HBASE_TIMEOUT_SECONDS", 0),
        ("SITE_HBASE_TIMEOUT_SECONDS", 60),
        ("SITE_HBASE_OPTIONS", '{"transport": "pigeon"}'),
        ("SITE_HBASE_OPTIONS", '{"timeout": 1}'),
        ("SITE_HBASE_OPTIONS", "[1]"),
        ("SITE_RESULT_FIELDS", {"url": "u", "host": "h", "content_type": "host"}),
        ("SITE_RESULT_FIELDS", {"body_base64": "raw", "host": "host"}),
        ("SITE_RESULT_FIELDS", {"title": "body_bytes", "host": "host"}),
        ("SITE_RESULT_FIELDS", {"title": "body_base64", "host": "host"}),
    ],
)
def test_settings_that_cannot_be_used_are_refused(name: str, value: object) -> None:
    """Before the first result; the error names the setting."""
    with pytest.raises(ConfigError, match=name):
        HBaseSink.from_settings(hbase_settings(NOWHERE) | {"SITE_HBASE_ROW_KEY": "reversed_host", name: value})


def test_a_search_of_items_can_be_closed() -> None:
    HBaseResults.for_items(hbase_settings(NOWHERE)).search().close()


def test_a_table_may_stand_in_a_namespace_and_thrift_be_framed() -> None:
    options = '{"transport": "framed", "protocol": "compact"}'
    HBaseSink.from_settings(hbase_settings(NOWHERE, SITE_HBASE_TABLE="ns:a.b-c_d", SITE_HBASE_OPTIONS=options))


class ScriptedConnection:
    """In the place of a connection: fails as the test says."""

    def __init__(self, script: ScriptedHBase) -> None:
        self.script = script
        self.closed = False

    def tables(self) -> list[bytes]:
        return [b"t"]

    def families(self) -> dict[bytes, object]:
        return {b"f": {}}

    def set_timeout(self, seconds: float) -> None:
        pass

    def table(self, name: str) -> Self:
        return self

    @contextmanager
    def batch(self, *, transaction: bool) -> Iterator[Mock]:
        rows: list[tuple[bytes, dict[bytes, bytes]]] = []
        yield Mock(put=lambda *row: rows.append(row))
        assert not self.closed, "a connection that had failed was used again"
        self.script.calls.append(len(rows))
        for key, cells in rows:
            if (error := self.script.error_of(key, cells)) is not None:
                raise error
        self.script.stored.update(rows)

    def delete(self, key: bytes) -> None:
        object.__setattr__(self.script, "deleted_at", time.monotonic())

    def close(self) -> None:
        self.closed = True


class ScriptedHBase(HBaseOptions):
    """Options that lead to scripted connections."""

    connections: list[ScriptedConnection]
    calls: list[int]
    stored: dict[bytes, dict[bytes, bytes]]
    errors: dict[bytes, Exception]
    largest: int
    deleted_at: float

    def connect(self, timeout_seconds: float) -> Any:
        self.connections.append(ScriptedConnection(self))
        return self.connections[-1]

    def error_of(self, key: bytes, cells: dict[bytes, bytes]) -> Exception | None:
        if len(cells.get(b"f:body", b"")) > self.largest:
            return Hbase_thrift.IOError(
                b"hbase.DoNotRetryIOException: Cell with size 99 exceeds limit of 88 bytes\n\tat x"
            )
        return self.errors.get(key)


@pytest.fixture
def scripted() -> ScriptedHBase:
    options = ScriptedHBase.from_settings(hbase_settings(NOWHERE, SITE_HBASE_TABLE="t"))
    state: dict[str, Any] = {"connections": [], "calls": [], "stored": {}, "errors": {}, "largest": 10**9}
    for name, value in state.items():
        object.__setattr__(options, name, value)
    return options


def test_a_deletion_ends_in_a_later_millisecond(scripted: ScriptedHBase) -> None:
    """A put in the same one would stay hidden."""
    HBaseTable(scripted).write([replace(record("a", {}), is_gone=True)])
    assert time.monotonic() - scripted.deleted_at >= 0.002


def put(scripted: ScriptedHBase, count: int) -> list[Verdict]:
    records = [record(f"{number}", {"body": "x" * 100}) for number in range(count)]
    return HBaseTable(scripted).write(records)


def test_a_table_that_cannot_be_used_is_a_wrong_setting(
    scripted: ScriptedHBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting would not help. The check says so, too."""
    monkeypatch.setattr(ScriptedConnection, "families", lambda _: {b"other": {}})
    for ask in (HBaseTable(scripted).open, HBaseTable(scripted).check):
        with pytest.raises(ConfigError, match=r"SITE_HBASE_TABLE.*column family 'f'"):
            ask()
    monkeypatch.setattr(ScriptedConnection, "tables", lambda _: [])
    error = Hbase_thrift.IOError(b"org.apache.hadoop.hbase.NamespaceNotFoundException: a\n\tat x")
    monkeypatch.setattr(ScriptedConnection, "create_table", Mock(side_effect=error), raising=False)
    with pytest.raises(ConfigError, match=r"SITE_HBASE_TABLE.*namespace"):
        HBaseTable(scripted).open()


CRASH = TApplicationException(TApplicationException.INTERNAL_ERROR, b"Internal error processing mutateRows")


@pytest.mark.parametrize(
    "error",
    [
        Hbase_thrift.IOError(b"RetriesExhaustedWithDetailsException: Failed 1 action: NotServingRegionException"),
        TTransportException(TTransportException.END_OF_FILE, "TSocket read 0 bytes"),
        TimeoutError("timed out"),
        BrokenPipeError("broken"),
        TApplicationException(TApplicationException.BAD_SEQUENCE_ID, "out of sequence"),
        AssertionError(),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "confused"),
    ],
    ids=repr,
)
def test_trouble_of_the_server_is_an_outage(scripted: ScriptedHBase, error: Exception) -> None:
    """Never a dead letter (rule 7); the connection is thrown away, and the next write works."""
    scripted.errors[b"7"] = error
    table = HBaseTable(scripted)
    batch = [record(str(number), {}) for number in range(10)]
    with pytest.raises(SinkUnavailable, match="SITE_HBASE_HOST"):
        table.write(batch)
    assert [connection.closed for connection in scripted.connections] == [True]
    scripted.errors.clear()
    assert answers(table.write(batch)) == [Answer.ACKNOWLEDGED] * 10
    assert len(scripted.connections) == 2


def test_an_idle_connection_is_not_trusted(scripted: ScriptedHBase, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server closes it after a minute, and the next write would fail for nothing."""
    table = HBaseTable(scripted)
    for idle_seconds, connections in ((30, 1), (0, 2), (30, 2)):
        monkeypatch.setattr(hbase_table, "IDLE_SECONDS", idle_seconds)
        assert answers(table.write([record("a", {})])) == [Answer.ACKNOWLEDGED]
        assert len(scripted.connections) == connections


def test_a_crash_in_the_server_refuses_nothing_for_good(scripted: ScriptedHBase) -> None:
    """The record may be innocent: it has to be tried again, and the others are stored."""
    scripted.errors[b"7"] = CRASH
    verdicts = put(scripted, 100)
    assert [place for place, verdict in enumerate(verdicts) if verdict.answer is Answer.RETRY] == [7]
    assert answers(verdicts).count(Answer.ACKNOWLEDGED) == 99


def test_a_guilty_row_is_found_in_few_calls(scripted: ScriptedHBase) -> None:
    """By halves: of 1,000 rows one call for each would take seconds."""
    scripted.errors[b"500"] = Hbase_thrift.IllegalArgument(b"java.lang.IllegalArgumentException: why\n\tat x")
    verdicts = put(scripted, 1000)
    [(place, reason)] = [
        (place, reason) for place, (answer, reason) in enumerate(verdicts) if answer is Answer.REJECTED
    ]
    assert (place, reason) == (500, "IllegalArgument: java.lang.IllegalArgumentException: why")
    assert len(scripted.stored) == 999
    assert len(scripted.calls) < 25


def test_a_body_over_the_limit_of_the_region_server_is_halved(scripted: ScriptedHBase) -> None:
    """Whatever the setting says, what the server takes counts."""
    object.__setattr__(scripted, "largest", 30)
    assert answers(put(scripted, 3)) == [Answer.ACKNOWLEDGED] * 3
    assert scripted.stored[b"1"][b"f:body"] == b"x" * 25
    assert scripted.stored[b"1"][b"f:body_truncated"] == b"true"


def test_calls_are_bounded_in_bytes_and_rows(scripted: ScriptedHBase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Thrift server has little memory; a row that alone is larger travels alone."""
    monkeypatch.setattr(hbase_table, "CALL_BYTES", 1200)
    put(scripted, 10)
    assert scripted.calls == [4, 4, 2]
    scripted.calls.clear()
    monkeypatch.setattr(hbase_table, "CALL_ROWS", 3)
    put(scripted, 10)
    assert scripted.calls == [3, 3, 3, 1]
    scripted.calls.clear()
    monkeypatch.setattr(hbase_table, "CALL_BYTES", 10)
    put(scripted, 2)
    assert scripted.calls == [1, 1]


def test_what_pages_held_before_is_asked_for_only_where_it_may_be_a_producers(
    scripted: ScriptedHBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 500 pages that had 2 MB each, and are gone now, a Thrift server would hold 1 GB."""
    stored = {
        b"ours": {b"f:body_bytes": b"x", b"f:absent": b"proxy", b"f:proxy": b"theirs"},
        b"earlier": {b"f:body_bytes": b"x", b"f:latency_ms": b"", b"f:redirects": b"0"},
        b"theirs": {b"f:body_bytes": b"x"},
        b"marked": {b"f:body_bytes": b"x", b"f:absent": b"body_bytes"},
    }
    asked: list[tuple[bytes, bytes]] = []

    def rows(_: object, keys: list[bytes], columns: list[bytes]) -> list[tuple[bytes, dict[bytes, bytes]]]:
        asked.extend((key, column) for key in keys for column in columns)
        found = {key: {one: stored[key][one] for one in columns if one in stored.get(key, {})} for key in keys}
        return [row for row in found.items() if row[1]]

    monkeypatch.setattr(ScriptedConnection, "rows", rows, raising=False)
    records = [record(key.decode(), Result(key.decode(), 404, "{}").document()) for key in [*stored, b"new"]]
    assert set(answers(HBaseTable(scripted).write(records))) == {Answer.ACKNOWLEDGED}
    assert {key for key, column in asked if column == b"f:body_bytes"} == {b"theirs", b"marked", b"new"}
    kept = {key for key, cells in scripted.stored.items() if b"f:body_bytes" not in cells}
    assert kept == {b"theirs", b"marked"}
    assert b"f:proxy" not in scripted.stored[b"ours"]


def test_what_is_late_is_left_for_another_time(scripted: ScriptedHBase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that nobody waits for any more must not keep the next one from its turn."""
    monkeypatch.setattr(hbase_table, "is_late", lambda: True)
    assert answers(put(scripted, 3)) == [Answer.RETRY] * 3
    assert scripted.calls == []
    gone = [replace(record("a", {}), is_gone=True)]
    assert answers(HBaseTable(scripted).write(gone)) == [Answer.RETRY]
    assert not hasattr(scripted, "deleted_at")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (CRASH, "TApplicationException: Internal error processing mutateRows"),
        (TApplicationException(), "TApplicationException(type=0, message=None)"),
        (TimeoutError("timed out"), "TimeoutError('timed out')"),
        (Hbase_thrift.IOError(b""), "IOError(message=b'')"),
    ],
)
def test_every_error_can_be_shown(error: Exception, text: str) -> None:
    """The client's own str() raises TypeError for some."""
    assert explained(error) == text


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_why_nobody_could_be_reached_is_said(host: str) -> None:
    """The client knows but does not tell."""
    with pytest.raises(SinkUnavailable, match=f"{host}:9.*Connection refused"):
        HBaseOptions.from_settings(hbase_settings(f"{host}:9")).connect(1)


@pytest.mark.parametrize("ask", [lambda reader: reader.get("a"), lambda reader: reader.known(["a"], [])])
def test_a_row_is_not_waited_for_as_long_as_a_scan(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[HBaseResults], object]
) -> None:
    """A console that waits cannot end."""
    monkeypatch.setattr(HBaseOptions, "connect", connect := Mock(side_effect=SinkUnavailable("away")))
    with pytest.raises(SinkUnavailable):
        ask(HBaseResults.from_settings(hbase_settings(NOWHERE)))
    connect.assert_called_once_with(20)


async def test_closing_does_not_wait_for_a_server_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes connections, as the kernel does for a process that stands still, and never answers."""
    monkeypatch.setattr(hbase_table, "OPEN_TIMEOUT_SECONDS", 3600.0)

    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        host, port = server.getsockname()
        sink = HBaseSink.from_settings(hbase_settings(f"{host}:{port}"))
        opening = asyncio.create_task(sink.open())
        connection, _ = await asyncio.to_thread(server.accept)
        with closing(connection):
            assert await asyncio.to_thread(connection.recv, 1)  # so the answer is waited for
            opening.cancel()
            await sink.close()


# --- what stands in the place of the Thrift server and is none: an outage, in one line ------------


HEAD = b"\x80\x01\x00\x02\x00\x00\x00\x0dgetTableNames\0\0\0\0"
ODD = {
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n" * 5,
    "zeros": b"\0" * 4096,
    "ones": b"\xff" * 4096,
    "nothing": b"",
    "another call": b"\x80\x01\x00\x02\x00\x00\x00\x03foo\0\0\0\0\0",
    "a long name": b"\x80\x01\x00\x02\x7f\xff\xff\xff",
    "a truth": HEAD + b"\x02\0\0\x01\0",
    "a long list": HEAD + b"\x0f\0\0\x0b\x7f\xff\xff\xff",
}


@pytest.mark.parametrize("name", ODD)
async def test_an_odd_answer_is_an_outage(name: str) -> None:
    def reply(connection: socketserver.StreamRequestHandler) -> None:
        connection.request.recv(65_536)
        connection.request.sendall(ODD[name])

    with serving(reply) as port:
        sink = HBaseSink.from_settings(hbase_settings(f"127.0.0.1:{port}", SITE_HBASE_TIMEOUT_SECONDS=2))
        with pytest.raises(SinkUnavailable) as caught:
            await sink.open()
        await sink.close()
    assert str(caught.value).isprintable()


# --- Rows of HBase, without a server: cells as text, cut bodies, row keys


BYTES = b"\0" * 20 + b"\xff"
BINARY = {"body": None, "body_base64": b64encode(BYTES).decode()}


@pytest.mark.parametrize(
    ("limit_bytes", "document", "cells"),
    [
        (
            1000,
            {"status": 200, "latency_ms": 12.5, "ok": True},
            {"status": b"200", "latency_ms": b"12.5", "ok": b"true"},
        ),
        (1000, {"headers": None, "meta": {"ä": [1, None]}}, {"headers": b"", "meta": '{"ä":[1,null]}'.encode()}),
        (1000, {}, {"url_id": b"id"}),
        (1000, BINARY, {"body_bytes": BYTES}),  # base64 is a third longer
        (1000, {"body": None, "body_base64": None}, {"body_bytes": b""}),  # or that of an earlier result would stay
        (1000, {"body": "text"}, {"body_bytes": b""}),
        (10, BINARY, {"body_bytes": BYTES[:10], "body_truncated": b"true"}),
        (10, {"body": "x" * 11}, {"body": b"x" * 10, "body_truncated": b"true"}),
        (10, {"body": "x" * 10}, {"body_truncated": b""}),
        (10, {"body": {"x": "y" * 20}}, {"body": b'{"x":"%b"}' % (b"y" * 20)}),  # half of it would be of no use
    ],
)
def test_cells_are_text_that_people_can_read(
    limit_bytes: int, document: dict[str, Any], cells: dict[str, bytes]
) -> None:
    """Numbers in decimal, objects as JSON, null empty, binary content as bytes; and a body is cut."""
    found = RowLayout("url_id", limit_bytes).row(record("id", document)).cells
    assert {name: found[f"f:{name}".encode()] for name in cells} == cells


@pytest.mark.parametrize("key", ["", "x" * 40_000])
def test_a_key_that_hbase_does_not_take_is_refused(key: str) -> None:
    with pytest.raises(SinkRejected, match="the row key has"):
        RowLayout("url_id", 1000).row(record(key, {"status": 1}))


def test_an_item_is_put_as_it_is_whatever_its_fields_are_called() -> None:
    """It may look like a result, and get nulls and a mark: no field of it is anybody else's."""
    item = {"url_id": "1", "status": 1, "headers": "", "description": "x", "price": None, "body": "x"}
    row = RowLayout("url_id", 1000).row(replace(record("id", item), kind="item"))
    assert hbase_table.over_stored(row, {b"f:price": b"2"}) == row


def back(layout: RowLayout, document: dict[str, Any]) -> dict[str, Any]:
    """What is read of the row of a document."""
    row = layout.row(record(document["url_id"], document))
    return layout.document(row.key, row.cells)


@pytest.mark.parametrize(
    "document",
    [
        *({"mine": text} for text in ("007", "1e400", "NaN", "null", '"quoted"', "{", "[1, 2]", " 1", "-0")),
        {"body": "42", "task_id": "2026", "description": "true"},  # a page whose text is a number, a job's name
        BINARY,
        {"body_base64": "no base64!"},
    ],
    ids=str,
)
def test_text_that_only_resembles_a_value_or_bytes_is_read_as_it_was_written(document: dict[str, Any]) -> None:
    """In our own fields, and in those of somebody else, whose kind nobody has written down."""
    assert back(RowLayout("url_id", 1000), {"url_id": "1", **document}) == {"url_id": "1", **document}


def test_text_is_text_under_a_name_of_the_users_own() -> None:
    """An ETag of digits alone is sent back as a condition."""
    renamed = hbase_settings(NOWHERE) | {"SITE_RESULT_FIELDS": {"etag": "version", "depth": "title"}}
    document = {"url_id": "1", "version": "42", "title": 3, "etag": 7}
    assert back(HBaseResults.from_settings(renamed)._layout, document) == document


def test_a_text_is_cut_between_characters() -> None:
    """Wherever the limit falls, the rest is text, and as much of it as fits."""
    text = "aä漢🎉" * 3
    for limit in range(len(text.encode()) + 2):
        cut = cut_text(text.encode(), limit).decode()
        assert text.startswith(cut)
        assert limit - 4 < len(cut.encode()) <= limit


@pytest.mark.parametrize(
    ("document", "prefix"),
    [
        ({"url": "https://www.Example.com:8080/a"}, "com.example.www"),
        ({"url": "http://10.1.2.3/a"}, "10.1.2.3"),
        ({"url": "http://[::1]:80/a"}, "::1"),
        ({"url": "http://[broken", "host": "Example.com"}, "com.example"),
        ({"host": "a.test"}, "test.a"),
        ({}, ""),
    ],
)
def test_a_reversed_host_stands_before_the_url_id(document: dict[str, Any], prefix: str) -> None:
    """So that a domain is one range of rows; the id is found again behind it."""
    layout = RowLayout("reversed_host", 1000)
    key = layout.row(record("a/b", document)).key
    assert key == f"{prefix}/a/b".encode()
    assert layout.document(key, {}) == {"url_id": "a/b"}


def test_a_salt_is_the_beginning_of_a_hash_that_everybody_has() -> None:
    """SHA-256 in hexadecimal, its first two digits."""
    layout = RowLayout("salted", 1000)
    key = layout.row(record("a-b", {})).key
    assert key == f"{hashlib.sha256(b'a-b').hexdigest()[:2]}-a-b".encode()
    assert layout.key_of("a-b") == key
    assert layout.document(key, {}) == {"url_id": "a-b"}


# --- With the shared server


def write(settings: dict[str, Any], *records: Record) -> list[Verdict]:
    return written(HBaseSink.from_settings(settings), records)


async def patiently(action: Callable[[], Awaitable[T]]) -> T:
    """As a crawl does it: while the server of tests is busy, it fails to make or list tables."""
    for _ in range(60):
        with suppress(SinkUnavailable):
            return await action()
        await asyncio.sleep(1)
    return await action()


@pytest.fixture
def settings(hbase_address: str) -> Iterator[dict[str, Any]]:
    settings = hbase_settings(hbase_address)
    yield settings
    drop_table(settings)


@pytest.mark.servers
async def test_ten_processes_at_once_make_one_table(settings: dict[str, Any]) -> None:
    sinks = [HBaseSink.from_settings(settings) for _ in range(10)]
    await asyncio.gather(*(sink.open() for sink in sinks))
    await asyncio.gather(*(sink.close() for sink in sinks))
    with closing(HBaseOptions.from_settings(settings).connect(300)) as connection:
        [family] = connection.client.getColumnDescriptors(settings["SITE_HBASE_TABLE"].encode()).values()
    assert (family.name, family.maxVersions, family.compression) == (b"f:", 1, b"GZ")


@pytest.mark.servers
async def test_a_table_that_somebody_dropped_is_made_again(settings: dict[str, Any]) -> None:
    """The write in between fails and is repeated; nothing is lost."""
    sink = HBaseSink.from_settings(settings)
    await patiently(sink.open)
    drop_table(settings)
    with pytest.raises(SinkUnavailable):
        await sink.write([record("a", {"status": 200})])
    again = await patiently(lambda: sink.write([record("a", {"status": 200})]))
    await sink.close()
    assert answers(again) == [Answer.ACKNOWLEDGED]


@pytest.mark.servers
@pytest.mark.parametrize("row_key", ["salted", "reversed_host"])
def test_results_are_found_by_their_id_whatever_the_row_key(settings: dict[str, Any], row_key: str) -> None:
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
def test_a_row_of_somebody_else_can_be_claimed_and_none_is_made(settings: dict[str, Any]) -> None:
    """It has no url_id: `scrapy recrawl` tried to claim it for ever."""
    write(settings, record("a", {"status": 200}))
    with closing(HBaseOptions.from_settings(settings).connect(300)) as connection:
        connection.table(settings["SITE_HBASE_TABLE"]).put(b"b", {b"f:url": b"http://h.test/b"})
    reader = HBaseResults.from_settings(settings)
    assert reader.exchange("recrawl", dict.fromkeys("abc", (None, "claimed"))) == {"a", "b"}
    assert reader.get("c") is None
