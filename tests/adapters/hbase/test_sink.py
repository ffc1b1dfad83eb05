"""What is special about HBase: rows, keys, refusals, the table, outages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, nullcontext, suppress
from typing import Any, TypeVar

import pytest

from site_spider.adapters.hbase.connection import HBaseOptions
from site_spider.adapters.hbase.results import HBaseResults
from site_spider.adapters.hbase.sink import HBaseSink
from site_spider.contracts.sink import Answer, Record, Verdict
from site_spider.errors import ConfigError, SinkUnavailable
from tests.contracts.sinks import drop_table, hbase_settings, record
from tests.contracts.trials import answers, written

T = TypeVar("T")

NOWHERE = "127.0.0.1:9"


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
    options = '{"transport": "framed", "protocol": "compact"}'
    HBaseSink.from_settings(hbase_settings(NOWHERE, SITE_HBASE_TABLE="ns:a.b-c_d", SITE_HBASE_OPTIONS=options))


# --- With the shared server ---


@pytest.mark.servers
async def test_ten_processes_at_once_make_one_table(settings: dict[str, Any]) -> None:
    """With the documented schema, and whoever comes second is content."""
    sinks = [HBaseSink.from_settings(settings) for _ in range(10)]
    await asyncio.gather(*(sink.open() for sink in sinks))
    await asyncio.gather(*(sink.close() for sink in sinks))
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
def test_a_table_that_somebody_dropped_is_made_again(settings: dict[str, Any]) -> None:
    """The write in between fails and is repeated; nothing is lost."""

    async def scenario() -> list[Answer]:
        sink = HBaseSink.from_settings(settings)
        await patiently(sink.open)
        drop_table(settings)
        with pytest.raises(SinkUnavailable):
            await sink.write([record("a", {"status": 200})])
        again = answers(await patiently(lambda: sink.write([record("a", {"status": 200})])))
        await sink.close()
        return again

    assert asyncio.run(scenario()) == [Answer.ACKNOWLEDGED]


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
