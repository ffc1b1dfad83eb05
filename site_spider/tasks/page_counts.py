"""Counts the pages of tasks from the page log, each page once.

The log has a page as often as it was written; the last word on it counts, as in the store of documents.
What was read lies in a temporary SQLite file, so memory is bounded however many pages there are, and each
record is read once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from site_spider import runtime
from site_spider.contracts.seed_log import Message, SeedLog, TopicReader
from site_spider.errors import LogUnavailable
from site_spider.tasks.counted_page import BadPages, read, task_of

_READ_SECONDS = 0.2
_MOST_REASONS = 50
_OTHER = "other"
_CACHE_KIB = 16_384

_TABLES = f"""
    PRAGMA cache_size = -{_CACHE_KIB};
    CREATE TABLE records (task INTEGER, position INTEGER, key BLOB);
    CREATE INDEX records_of_task ON records (task);
    CREATE TABLE said (task INTEGER, position INTEGER, page INTEGER, size_bytes INTEGER, is_answered INTEGER,
        reason TEXT);
    CREATE INDEX said_of_task ON said (task);
"""
_KEYS = "SELECT key FROM records WHERE task = ? AND position < ?"
_DELETE = (
    "DELETE FROM said WHERE task = ? AND position < ?",
    "DELETE FROM records WHERE task = ? AND position < ?",
)
_TAKE_BACK = """DELETE FROM said WHERE task = ?1
    AND position IN (SELECT position FROM records WHERE task = ?1 AND key = ?2)"""
# The other columns are those of the row with the largest rowid: https://sqlite.org/lang_select.html#bareagg
_LAST_WORDS = """CREATE TEMP TABLE words AS
    SELECT size_bytes, is_answered, reason, max(rowid) FROM said WHERE task = ? GROUP BY page"""


class PageCounts(NamedTuple):
    """`pages` were answered, `failures` have a reason; one may be both. `reasons` has at most 50 names."""

    pages: int = 0
    failures: int = 0
    size_bytes: int = 0
    reasons: Mapping[str, int] = {}

    def plus(self, other: PageCounts) -> PageCounts:
        """The sum."""
        reasons = dict(self.reasons)
        for name, count in other.reasons.items():
            reasons[name] = reasons.get(name, 0) + count
        return PageCounts(
            self.pages + other.pages,
            self.failures + other.failures,
            self.size_bytes + other.size_bytes,
            bounded(reasons),
        )


@dataclass(frozen=True, slots=True)
class PageReading:
    """What the log says up to `end`; `stale` are keys of records that no later reading needs."""

    counts: Mapping[str, PageCounts]
    end: int
    stale: list[bytes]


def bounded(reasons: Mapping[str, int]) -> dict[str, int]:
    """The most frequent names; the others count as one."""
    if len(reasons) <= _MOST_REASONS:
        return dict(reasons)
    ranked = sorted(reasons, key=lambda name: (name == _OTHER, -reasons[name], name))
    kept = {name: reasons[name] for name in ranked[: _MOST_REASONS - 1] if name != _OTHER}
    return {**kept, _OTHER: sum(reasons.values()) - sum(kept.values())}


Skipped = Callable[[Message, BadPages], None]


class PageTable:
    """The pages of all tasks whose end was not told. Threads take turns with it; all methods block."""

    def __init__(self, log: SeedLog, topic: str) -> None:
        self._log = log
        self._topic = topic
        self._turn = runtime.Lock()
        self._stopping = runtime.Event()
        self._begin()

    def _begin(self) -> None:
        self._reader: TopicReader | None = None
        self._end = 0
        self._numbers: dict[str, int] = {}
        self._born = 0
        self._rows = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._rows.executescript(_TABLES)

    def read(self, wanted: Collection[str], told: Mapping[str, int], skipped: Skipped) -> PageReading:
        """Read on to the present end, drop the records of `told` below their offsets, and count.

        Raises LogUnavailable, also when the temporary file cannot be written: the next call reads all anew.
        """
        with self._turn:
            try:
                self._read_on(skipped)
                stale = [key for task_id in told.keys() & self._numbers for key in self._drop(task_id, told)]
                counts = {task_id: self._counts_of(task_id) for task_id in wanted}
            except sqlite3.Error as error:
                self._release()
                self._begin()
                raise LogUnavailable(
                    f"the temporary SQLite file in which they are counted: {error} "
                    "(the environment's SQLITE_TMPDIR names its folder)"
                ) from error
            return PageReading(counts, self._end, stale)

    def close(self) -> None:
        """Release everything; what reads meanwhile raises LogUnavailable."""
        self._stopping.set()
        with self._turn:
            self._release()

    def _release(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._rows.close()

    def _read_on(self, skipped: Skipped) -> None:
        if self._reader is None and not self._stopping.is_set():
            self._reader = self._log.reader(self._topic, compacted=True)
        elif self._reader is not None:
            self._reader.mark_end()
        while not self._stopping.is_set():
            assert self._reader is not None
            if self._reader.is_at_end:
                return
            self._take_all(self._reader.poll(_READ_SECONDS), skipped)
        raise LogUnavailable(f"{self._topic} is read no more")

    def _take_all(self, messages: list[Message], skipped: Skipped) -> None:
        self._rows.execute("BEGIN")
        for message in messages:
            self._end = max(self._end, message.offset + 1)
            try:
                self._take(message)
            except BadPages as error:
                skipped(message, error)
        self._rows.execute("COMMIT")

    def _take(self, message: Message) -> None:
        if message.key is None:
            return
        if message.value is None:
            self._take_back(message.key)
            return
        task_id, pages = task_of(message.key), read(message.value)
        if (number := self._numbers.get(task_id)) is None:
            self._born += 1
            number = self._numbers[task_id] = self._born
        self._rows.execute("INSERT INTO records VALUES (?, ?, ?)", (number, message.offset, message.key))
        self._rows.executemany(
            "INSERT INTO said VALUES (?, ?, ?, ?, ?, ?)", [(number, message.offset, *page) for page in pages]
        )

    def _take_back(self, key: bytes) -> None:
        """A record was deleted, with its task."""
        if (number := self._numbers.get(task_of(key))) is not None:
            self._rows.execute(_TAKE_BACK, (number, key))

    def _drop(self, task_id: str, told: Mapping[str, int]) -> list[bytes]:
        which = self._numbers[task_id], told[task_id]
        keys = [key for (key,) in self._rows.execute(_KEYS, which)]
        for statement in _DELETE if keys else ():
            self._rows.execute(statement, which)
        if not self._rows.execute("SELECT 1 FROM records WHERE task = ? LIMIT 1", which[:1]).fetchone():
            del self._numbers[task_id]
        return keys

    def _counts_of(self, task_id: str) -> PageCounts:
        if (number := self._numbers.get(task_id)) is None:
            return PageCounts()
        self._rows.execute(_LAST_WORDS, (number,))
        answered, failures, size_bytes = self._rows.execute(
            "SELECT total(is_answered), count(reason), total(size_bytes) FROM words"
        ).fetchone()
        reasons = self._rows.execute(
            "SELECT reason, count(*) FROM words WHERE reason IS NOT NULL GROUP BY reason"
        ).fetchall()
        self._rows.execute("DROP TABLE words")
        return PageCounts(int(answered), failures, int(size_bytes), bounded(dict(reasons)))
