"""Forgets messages that every group has completed, some time after they were produced.

A group has completed what lies below its committed offset. What is complete beyond it stays until the offset
has passed, and so does all that a group which was given up once has not read. The freed pages of the file are
used again, so that it stops growing.
"""

from __future__ import annotations

from collections.abc import Iterable

from site_spider import runtime
from site_spider.adapters.local.log_file import LogFile, message_id

_MOST_AT_ONCE = 1_000  # messages of a partition, in one transaction: others wait for it to write
_LONGEST_PAUSE_SECONDS = 60.0
_PAUSE_SHARE = 0.1  # of the time that messages are kept

_LOWEST = "SELECT min(next_offset) FROM positions WHERE partition_id = ?"
_DELETE = (
    "DELETE FROM messages WHERE id IN "
    "(SELECT id FROM messages WHERE id >= ? AND id < ? AND timestamp_ms < ? ORDER BY id LIMIT ?)"
)


class Forgetting:
    """Of one consumer, whose thread uses it. With 0 seconds nothing is ever forgotten."""

    def __init__(self, file: LogFile, keep_seconds: float) -> None:
        self._file = file
        self._keep_seconds = keep_seconds
        self._pause_seconds = min(_LONGEST_PAUSE_SECONDS, keep_seconds * _PAUSE_SHARE)
        self._look_at = runtime.monotonic() + self._pause_seconds

    def look(self, partition_ids: Iterable[int]) -> None:
        """Forget some messages of these partitions, when it is time. Raises LogUnavailable."""
        if not self._keep_seconds or runtime.monotonic() < self._look_at:
            return
        deleted = [self._forget(each) for each in partition_ids]
        if max(deleted, default=0) < _MOST_AT_ONCE:
            self._look_at = runtime.monotonic() + self._pause_seconds

    def _forget(self, partition_id: int) -> int:
        [(lowest,)] = self._file.query(_LOWEST, (partition_id,))
        if not lowest:
            return 0
        before_ms = int((runtime.time() - self._keep_seconds) * 1000)
        bounds = message_id(partition_id, 0), message_id(partition_id, lowest)
        oldest = self._file.query(
            "SELECT timestamp_ms FROM messages WHERE id >= ? AND id < ? ORDER BY id LIMIT 1", bounds
        )
        if not oldest or oldest[0][0] >= before_ms:
            return 0
        with self._file.transaction() as connection:
            return connection.execute(_DELETE, (*bounds, before_ms, _MOST_AT_ONCE)).rowcount
