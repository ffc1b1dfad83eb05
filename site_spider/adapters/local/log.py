"""The embedded seed log: topics, partitions and groups in one SQLite file, for the processes of one machine.

Messages are durable before their future ends, over a power failure too. Commits survive the death of
any process; a power failure may take back the last ones, which costs a repeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self

from site_spider import options
from site_spider.adapters.local.log_consumer import LocalConsumer, to_message
from site_spider.adapters.local.log_file import (
    FILE_NAME,
    SELECT_MESSAGES,
    LogFile,
    message_id,
    offset_of,
)
from site_spider.adapters.local.log_producer import LocalProducer
from site_spider.contracts.seed_log import (
    Listener,
    Message,
    Partition,
    PartitionProgress,
    Position,
    Topics,
    each_topic,
)
from site_spider.errors import ConfigError, TopicMissing

PARTITIONS = 4  # of a new topic; as many members of a group find work
_PAGE = 50  # messages read at a time; each may have megabytes


class _Extent(NamedTuple):
    partition: Partition
    partition_id: int
    start: int
    end: int


class LocalSeedLog:
    """Fulfils `site_spider.contracts.seed_log.SeedLog`; threads and processes may share the folder."""

    def __init__(self, folder: Path, partitions: int = PARTITIONS) -> None:
        self.address = str(folder / FILE_NAME)
        self._folder = folder
        self._partitions = partitions

    @classmethod
    def from_settings(cls, settings: Any) -> Self:
        """Read SITE_DATA_DIR. Raises ConfigError."""
        return cls(Path(options.text(settings, "SITE_DATA_DIR", required=True)))

    def check(self, timeout_seconds: float) -> None:
        """See `site_spider.contracts.seed_log.SeedLog`; makes the file when it is missing."""
        with closing(LogFile(self._folder, busy_seconds=timeout_seconds)) as file, file.transaction():
            pass

    def consumer(self, topics: Topics, group: str, listener: Listener) -> LocalConsumer:
        """See `site_spider.contracts.seed_log.SeedLog`."""
        return LocalConsumer(self._folder, each_topic(topics), group, listener)

    def transactional_consumer(self, *_of_what: object) -> NoReturn:
        """See `site_spider.contracts.seed_log.SeedLog`: there are no transactions here."""
        raise ConfigError("SITE_KAFKA_EXACTLY_ONCE needs SITE_KAFKA_BROKERS; this log has no transactions.")

    def producer(self) -> LocalProducer:
        """See `site_spider.contracts.seed_log.SeedLog`."""
        return LocalProducer(self._folder, self._partitions)

    def progress(self, topic: str, group: str) -> list[PartitionProgress]:
        """See `site_spider.contracts.seed_log.SeedLog`."""
        with closing(LogFile(self._folder)) as file:
            rows = file.query(
                "SELECT partition_id, next_offset, metadata FROM positions WHERE consumer_group = ?", (group,)
            )
            committed = {identifier: Position(*position) for identifier, *position in rows}
            return [
                PartitionProgress(partition, start, end, committed.get(identifier))
                for partition, identifier, start, end in _extents(file, topic)
            ]

    def partitions(self, topic: str) -> int:
        """See `site_spider.contracts.seed_log.SeedLog`."""
        with closing(LogFile(self._folder)) as file:
            [(count,)] = file.query("SELECT count(*) FROM partitions WHERE topic = ?", (topic,))
        return int(count)

    def read(self, topic: str) -> Iterator[Message]:
        """See `site_spider.contracts.seed_log.SeedLog`."""
        with closing(LogFile(self._folder)) as file:
            extents = _extents(file, topic)
        return self._read(extents)

    def close(self) -> None:
        """See `site_spider.contracts.seed_log.SeedLog`; consumers and producers are closed one by one."""

    def _read(self, extents: list[_Extent]) -> Iterator[Message]:
        with closing(LogFile(self._folder)) as file:
            for extent in extents:
                yield from _messages(file, extent)


def _extents(file: LogFile, topic: str) -> list[_Extent]:
    rows = file.query(
        "SELECT id, number, next_offset FROM partitions WHERE topic = ? ORDER BY number", (topic,)
    )
    if not rows:
        raise TopicMissing(f"Topic {topic} does not exist in the seed log {file.path}.")
    return [
        _Extent(Partition(topic, number), identifier, _start(file, identifier, end), end)
        for identifier, number, end in rows
    ]


def _start(file: LogFile, partition_id: int, end: int) -> int:
    bounds = (message_id(partition_id, 0), message_id(partition_id, end))
    found = file.query("SELECT id FROM messages WHERE id >= ? AND id < ? ORDER BY id LIMIT 1", bounds)
    return offset_of(found[0][0]) if found else end


def _messages(file: LogFile, extent: _Extent) -> Iterator[Message]:
    offset, end = extent.start, message_id(extent.partition_id, extent.end)
    while rows := file.query(SELECT_MESSAGES, (message_id(extent.partition_id, offset), end, _PAGE)):
        yield from (to_message(extent.partition, row) for row in rows)
        offset = offset_of(rows[-1][0]) + 1
