"""Counts the pages of tasks from the page log, each page once.

The log has a page as often as it was written; the last word on it counts, as in the store of documents. The
pages of one reading lie in a temporary SQLite file, so memory is bounded however many there are.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

from site_spider.contracts.seed_log import Message, SeedLog
from site_spider.tasks.counted_page import BadPages, read, task_of

_READ_SECONDS = 0.2
_MOST_REASONS = 50
_MOST_STALE = 100_000
_OTHER = "other"
_CACHE_KIB = 16_384

# The other columns are those of the row with the largest rowid: https://sqlite.org/lang_select.html#bareagg
_LAST_WORDS = """CREATE TABLE pages AS
    SELECT task, size_bytes, is_answered, reason, max(rowid) FROM said GROUP BY task, page"""


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
    """One reading of the log up to `end`; `stale` are keys of records that no later reading needs."""

    counts: Mapping[str, PageCounts]
    end: int
    stale: list[bytes] = field(default_factory=list)


def bounded(reasons: Mapping[str, int]) -> dict[str, int]:
    """The most frequent names; the others count as one."""
    if len(reasons) <= _MOST_REASONS:
        return dict(reasons)
    ranked = sorted(reasons, key=lambda name: (name == _OTHER, -reasons[name], name))
    kept = {name: reasons[name] for name in ranked[: _MOST_REASONS - 1] if name != _OTHER}
    return {**kept, _OTHER: sum(reasons.values()) - sum(kept.values())}


def read_pages(
    log: SeedLog,
    topic: str,
    wanted: Mapping[str, int],
    told: Mapping[str, int],
    skipped: Callable[[Message, BadPages], None],
) -> PageReading:
    """Count the pages of each task in `wanted` from an offset on; those of `told` below theirs are stale.

    Blocks. Raises LogUnavailable.
    """
    counting = _PageTable(wanted, told)
    with closing(log.reader(topic, compacted=True)) as reader, closing(counting):
        while not reader.is_at_end:
            for message in reader.poll(_READ_SECONDS):
                try:
                    counting.take(message)
                except BadPages as error:
                    skipped(message, error)
        return counting.reading()


class _PageTable:
    def __init__(self, wanted: Mapping[str, int], told: Mapping[str, int]) -> None:
        self._wanted = wanted
        self._told = told
        self._numbers = {task_id: number for number, task_id in enumerate(wanted)}
        self._end = 0
        self._stale: list[bytes] = []
        self._pages = sqlite3.connect("", isolation_level=None)  # a file that grows beyond its cache only
        self._pages.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._pages.execute("CREATE TABLE said (task, page, size_bytes, is_answered, reason)")
        self._pages.execute("BEGIN")

    def close(self) -> None:
        self._pages.close()

    def take(self, message: Message) -> None:
        self._end = message.offset + 1
        if message.key is None or message.value is None:
            return
        task_id = task_of(message.key)
        if message.offset < self._told.get(task_id, 0):
            if len(self._stale) < _MOST_STALE:
                self._stale.append(message.key)
        elif (start := self._wanted.get(task_id)) is not None and message.offset >= start:
            number = self._numbers[task_id]
            self._pages.executemany(
                "INSERT INTO said VALUES (?, ?, ?, ?, ?)",
                [(number, *page) for page in read(message.value)],
            )

    def reading(self) -> PageReading:
        self._pages.execute(_LAST_WORDS)
        counts = {task_id: self._counts_of(number) for task_id, number in self._numbers.items()}
        return PageReading(counts, self._end, self._stale)

    def _counts_of(self, number: int) -> PageCounts:
        answered, failures, size_bytes = self._pages.execute(
            "SELECT total(is_answered), count(reason), total(size_bytes) FROM pages WHERE task = ?", (number,)
        ).fetchone()
        reasons = self._pages.execute(
            "SELECT reason, count(*) FROM pages WHERE task = ? AND reason IS NOT NULL GROUP BY reason",
            (number,),
        )
        return PageCounts(int(answered), failures, int(size_bytes), bounded(dict(reasons.fetchall())))
