"""Reads a topic of the embedded seed log from its beginning on, without a group, and follows it."""

from __future__ import annotations

from pathlib import Path

from site_spider import runtime
from site_spider.adapters.local.log_consumer import to_message
from site_spider.adapters.local.log_file import SELECT_MESSAGES, LogFile, message_id, offset_of
from site_spider.contracts.seed_log import Message, Partition

_WAIT_SECONDS = 0.05
_PAGE = 200
_COMPACT_EVERY = 5_000  # messages that were read
_KEPT_SECONDS = 60.0  # a reader that is behind, but not so far, sees every record (see tasks.ending)

# of each key the latest; one of two is not needed, and a key without a value not at all
_SUPERSEDED = """DELETE FROM messages WHERE id >= ?1 AND id < ?2 AND key IS NOT NULL AND timestamp_ms < ?3
    AND id NOT IN (SELECT max(id) FROM messages WHERE id >= ?1 AND id < ?2 GROUP BY key)"""


class LocalTopicReader:
    """Fulfils `site_spider.contracts.seed_log.TopicReader`."""

    def __init__(self, folder: Path, topic: str, *, compacted: bool) -> None:
        self._file = LogFile(folder)
        self._topic = topic
        self._compacted = compacted
        self._offsets: dict[int, int] = {}  # of partitions, by their id: the next one to read
        self._since_compaction = 0
        self._ends = {identifier: end for identifier, _, end in self._extents()}
        if compacted:
            self._compact()

    @property
    def is_at_end(self) -> bool:
        """See `site_spider.contracts.seed_log.TopicReader`."""
        return all(self._offsets.get(identifier, 0) >= end for identifier, end in self._ends.items())

    def mark_end(self) -> None:
        """See `site_spider.contracts.seed_log.TopicReader`."""
        self._ends = {identifier: end for identifier, _, end in self._extents()}

    def poll(self, timeout_seconds: float) -> list[Message]:
        """See `site_spider.contracts.seed_log.TopicReader`."""
        deadline = runtime.monotonic() + timeout_seconds
        while not (found := self._new()):
            if runtime.monotonic() >= deadline:
                return []
            runtime.sleep(_WAIT_SECONDS)
        self._since_compaction += len(found)
        if self._compacted and self._since_compaction >= _COMPACT_EVERY:
            self._compact()
        return found

    def close(self) -> None:
        """See `site_spider.contracts.seed_log.TopicReader`."""
        self._file.close()

    def _extents(self) -> list[tuple[int, int, int]]:
        """The id, the number and the next offset of each partition."""
        return self._file.query(
            "SELECT id, number, next_offset FROM partitions WHERE topic = ? ORDER BY number", (self._topic,)
        )

    def _new(self) -> list[Message]:
        found: list[Message] = []
        for identifier, number, end in self._extents():
            offset = self._offsets.get(identifier, 0)
            if offset > end:  # the file was removed, and made anew
                offset = 0
            if offset < end:
                bounds = message_id(identifier, offset), message_id(identifier, end)
                rows = self._file.query(SELECT_MESSAGES, (*bounds, _PAGE))
                found += [to_message(Partition(self._topic, number), row) for row in rows]
                self._offsets[identifier] = offset_of(rows[-1][0]) + 1 if len(rows) == _PAGE else end
        return found

    def _compact(self) -> None:
        self._since_compaction = 0
        before_ms = int((runtime.time() - _KEPT_SECONDS) * 1000)
        with self._file.transaction() as connection:
            for identifier, _, end in self._extents():
                bounds = message_id(identifier, 0), message_id(identifier, end)
                connection.execute(_SUPERSEDED, (*bounds, before_ms))
