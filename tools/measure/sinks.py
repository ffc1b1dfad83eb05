"""Prints how many results of 10 KB a second each sink takes, beside its bare client doing the same work.

    python -m tools.measure.sinks [--count N] [--runs N] [KIND ...]

KIND is local, elasticsearch, hbase or kafka; the servers are those of SITE_ELASTICSEARCH_HOSTS,
SITE_HBASE_HOST and SITE_HBASE_PORT, and SITE_KAFKA_BROKERS. Ours is what a crawl does: each result is
submitted to a delivery, which batches, writes and hears the answers, at most SITE_SINK_BACKLOG_BYTES ahead.
Raw is what one would write with the client alone: the same documents, the same guarantees, batches of the
same size, one after the other. Both run in turns in one process, and the first pair is not counted. The clock
runs from the first result to the last answer; connecting is left out. CPU is that of this process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer
from elasticsearch import AsyncElasticsearch
from elasticsearch.helpers import async_bulk

from site_spider import settings as defaults
from site_spider.adapters.elasticsearch.sink import ElasticsearchSink
from site_spider.adapters.hbase.connection import HBaseOptions
from site_spider.adapters.hbase.sink import HBaseSink
from site_spider.adapters.kafka.client import KafkaConfig
from site_spider.adapters.kafka.sink import KafkaSink
from site_spider.adapters.local.results import LocalSink
from site_spider.contracts.sink import Record, Sink
from site_spider.results.batch import BatchLimits
from site_spider.results.delivery import Delivery
from site_spider.results.document import Result

BODY_BYTES = 9_300  # with the other fields about 10 KB, and BATCH of them no more than BATCH_BYTES
BATCH = 500
BATCH_BYTES = defaults.SITE_SINK_BATCH_BYTES
HBASE_ROWS = 800  # about 8 MB

Document = dict[str, Any]
Raw = Callable[[Sequence[Document]], Awaitable[None]]


class Cost(NamedTuple):
    """Of one run, in seconds."""

    clock: float
    cpu: float


def documents(count: int) -> list[Document]:
    """Results of a made-up language, each with an id that was never there before."""
    chance = random.Random(count)
    words = [
        "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 11))) for _ in range(5000)
    ]
    headers = json.dumps({"Content-Type": ["text/html; charset=utf-8"], "Server": ["made up"]})
    found = []
    for _ in range(count):
        body = " ".join(chance.choices(words, k=BODY_BYTES // 6))[:BODY_BYTES]
        key = uuid.uuid4().hex
        result = Result(key, 200, headers, body, url=f"http://host.test/{key}", host="host.test", depth=0)
        found.append(result.document())
    return found


async def ours(sink: Sink, wanted: Sequence[Document]) -> Cost:
    """Through a delivery, as in a crawl."""
    changed = asyncio.Event()
    limits = BatchLimits(size_bytes=BATCH_BYTES, count=BATCH)
    delivery = Delivery(sink, limits=limits, on_change=changed.set)
    await delivery.open(30)
    answers: list[object] = []
    began = time.perf_counter(), time.process_time()
    for number, document in enumerate(wanted):
        delivery.submit(Record(document["url_id"], document, 600 + len(document["body"])), answers.append)
        while delivery.backlog_bytes >= defaults.SITE_SINK_BACKLOG_BYTES:
            changed.clear()
            await changed.wait()
        if number % 20 == 0:
            await asyncio.sleep(0)  # as between pages
    while delivery.backlog_count:
        changed.clear()
        await changed.wait()
    cost = Cost(time.perf_counter() - began[0], time.process_time() - began[1])
    assert await delivery.close(30) == 0
    assert len(answers) == len(wanted)
    return cost


async def timed(raw: Raw, wanted: Sequence[Document]) -> Cost:
    """The bare client."""
    began = time.perf_counter(), time.process_time()
    await raw(wanted)
    return Cost(time.perf_counter() - began[0], time.process_time() - began[1])


def in_batches(wanted: Sequence[Document], size: int) -> Iterator[Sequence[Document]]:
    return (wanted[start : start + size] for start in range(0, len(wanted), size))


# --- The bare clients -----------------------------------------------------------------------


async def raw_elasticsearch(hosts: str, index: str, wanted: Sequence[Document]) -> Cost:
    async with AsyncElasticsearch(hosts.split(","), request_timeout=30) as client:
        await client.cluster.health()

        async def write(part: Sequence[Document]) -> None:
            actions = (
                {"_op_type": "update", "_id": document["url_id"], "doc": document, "doc_as_upsert": True}
                for document in part
            )
            await async_bulk(client, actions, index=index, chunk_size=BATCH, max_chunk_bytes=BATCH_BYTES)

        return await timed(write, wanted)


async def raw_hbase(options: HBaseOptions, wanted: Sequence[Document]) -> Cost:
    with closing(options.connect(30)) as connection:
        table = connection.table(options.table)

        async def write(part: Sequence[Document]) -> None:
            for batch in in_batches(part, HBASE_ROWS):
                with table.batch() as calls:
                    for document in batch:
                        cells = {
                            f"f:{name}".encode(): b"" if value is None else str(value).encode()
                            for name, value in document.items()
                        }
                        calls.put(document["url_id"].encode(), cells)

        return await timed(write, wanted)


async def raw_kafka(config: KafkaConfig, topic: str, wanted: Sequence[Document]) -> Cost:
    client = Producer(config.producer(lambda _error: None))
    client.list_topics(topic, timeout=10)
    errors: list[object] = []

    async def write(part: Sequence[Document]) -> None:
        for document in part:
            value = json.dumps(document, ensure_ascii=False).encode()
            while True:
                try:
                    client.produce(
                        topic, value, document["url_id"], on_delivery=lambda error, _: errors.append(error)
                    )
                    break
                except BufferError:
                    client.poll(0.01)
            client.poll(0)
        client.flush(60)
        assert errors == [None] * len(part)

    return await timed(write, wanted)


async def raw_local(file: Path, wanted: Sequence[Document]) -> Cost:
    with closing(sqlite3.connect(file, isolation_level=None)) as store:
        store.execute("PRAGMA journal_mode = WAL")
        store.execute("PRAGMA synchronous = FULL")
        store.execute(
            "CREATE TABLE IF NOT EXISTS raw (url_id TEXT PRIMARY KEY, document TEXT, status, task_id)"
        )
        store.execute("CREATE INDEX IF NOT EXISTS raw_status ON raw (status)")
        store.execute("CREATE INDEX IF NOT EXISTS raw_task_id ON raw (task_id)")

        def put(document: Document) -> None:
            key = document["url_id"]
            old = store.execute("SELECT document FROM raw WHERE url_id = ?", [key]).fetchone()
            text = json.dumps(document if old is None else json.loads(old[0]) | document)
            row = (key, text, document["status"], document["task_id"])
            store.execute("INSERT OR REPLACE INTO raw VALUES (?, ?, ?, ?)", row)

        async def write(part: Sequence[Document]) -> None:
            for batch in in_batches(part, BATCH):
                store.execute("BEGIN IMMEDIATE")
                for document in batch:
                    put(document)
                store.execute("COMMIT")

        return await timed(write, wanted)


# --- Both, in turns ---------------------------------------------------------------------------


class Pair(NamedTuple):
    """A sink and its bare client."""

    sink: Callable[[], Sink]
    raw: Callable[[Sequence[Document]], Awaitable[Cost]]


def pairs(folder: Path) -> dict[str, Callable[[], Pair]]:
    """How to make each; servers are asked for only when they are wanted."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    settings = {key: value for key, value in vars(defaults).items() if key.startswith("SITE_")}
    settings |= {key: value for key, value in os.environ.items() if key.startswith("SITE_")}
    settings |= {"SITE_RESULTS_INDEX": name, "SITE_HBASE_TABLE": name, "SITE_RESULTS_TOPIC": name}
    settings |= {"SITE_DATA_DIR": str(folder)}

    def elasticsearch() -> Pair:
        hosts = settings["SITE_ELASTICSEARCH_HOSTS"]
        return Pair(
            lambda: ElasticsearchSink.from_settings(settings),
            lambda wanted: raw_elasticsearch(hosts, name, wanted),
        )

    def hbase() -> Pair:
        options = HBaseOptions.from_settings(settings)
        return Pair(lambda: HBaseSink.from_settings(settings), lambda wanted: raw_hbase(options, wanted))

    def kafka() -> Pair:
        config = KafkaConfig.from_settings(settings)
        return Pair(lambda: KafkaSink.from_settings(settings), lambda wanted: raw_kafka(config, name, wanted))

    def local() -> Pair:
        file = folder / "raw.sqlite"
        return Pair(lambda: LocalSink.from_settings(settings), lambda wanted: raw_local(file, wanted))

    return {"local": local, "elasticsearch": elasticsearch, "hbase": hbase, "kafka": kafka}


def measure(pair: Pair, count: int, runs: int) -> tuple[list[Cost], list[Cost]]:
    """Ours and raw, each so often, in turns that change their order; one pair before warms up."""
    costs: tuple[list[Cost], list[Cost]] = ([], [])
    for run in range(runs + 1):
        for which in (0, 1) if run % 2 else (1, 0):
            wanted = documents(count)
            # the sink goes first when warming up: it creates what is missing, the template included
            is_ours = which == (1 if run == 0 else 0)
            cost = asyncio.run(ours(pair.sink(), wanted) if is_ours else pair.raw(wanted))
            if run:
                costs[0 if is_ours else 1].append(cost)
    return costs


def spread(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def report(kind: str, count: int, costs: tuple[list[Cost], list[Cost]]) -> None:
    """One line for each: results a second, their ratio pair by pair, and CPU."""
    our, raw = costs
    ratios = [theirs.clock / mine.clock for mine, theirs in zip(our, raw, strict=True)]
    rates = [statistics.median(count / cost.clock for cost in which) for which in costs]
    cpu = [statistics.median(1000 * cost.cpu / count for cost in which) for which in costs]
    print(
        f"{kind:14} ours {rates[0]:7,.0f}/s  raw {rates[1]:7,.0f}/s  "
        f"ratio {statistics.median(ratios):.2f} ({spread(ratios)})  "
        f"CPU ms a result: ours {cpu[0]:.3f}, raw {cpu[1]:.3f}",
        flush=True,
    )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    parser.add_argument(
        "--count", type=int, default=3000, help=f"results a run, in {BATCH}s (default: %(default)s)"
    )
    parser.add_argument("--runs", type=int, default=5, help="of each, in turns (default: %(default)s)")
    options = parser.parse_args()
    if options.count % BATCH:
        parser.error(f"--count must be a multiple of {BATCH}: what does not fill a batch waits for its age")
    with tempfile.TemporaryDirectory() as folder:
        known = pairs(Path(folder))
        for kind in options.kinds or known:
            report(kind, options.count, measure(known[kind](), options.count, options.runs))


if __name__ == "__main__":
    main()
