"""Counts the pages of tasks from the page log, each page once.

The log has a page as often as it was written; the last word on it counts, as in the store of documents.
What was read lies in a temporary SQLite file, so memory is bounded however many pages there are, and each
record is read once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Annotated, Any, NamedTuple, Self

from pydantic import Field, TypeAdapter, ValidationError

from site_spider import runtime
from site_spider.contracts.seed_log import Message, MessagePlace, Producer, SeedLog
from site_spider.engine.background import Background, Turns
from site_spider.errors import LogUnavailable, SiteSpiderError
from site_spider.ledger.completion import Job, id_of_page
from site_spider.outage import Outage
from site_spider.tasks.declaration import bounded
from site_spider.tasks.follower import TopicView

# --- counted page ----------------------------------------------------------------------------------------
# A page of a task as it is counted: a record of the page log, and how it is read.
#
# A page is known by its URL within its task, not by the message that asked for it. So a page that was
# fetched for two messages, or once more after a death, is one page.

_SEPARATOR = "\x1f"
_BITS = 64  # of the number of a page: two of ten million are equal by a chance of 1 in 400,000
_MOST_REASON_CHARACTERS = 80
_Named = Annotated[int, Field(strict=True, ge=-(1 << _BITS - 1), lt=1 << _BITS - 1)]
_Text = Annotated[str, Field(max_length=_MOST_REASON_CHARACTERS)]
_WITHOUT_BODY = ("GET", "HEAD")  # their URL says which page it is


class BadPages(SiteSpiderError):
    """A record of the page log that this version did not write."""


class CountedPage(NamedTuple):
    """`page` is a number of 64 bits with a sign; `reason` says why there is a failure, if there is one."""

    page: _Named
    size_bytes: Annotated[int, Field(strict=True, ge=0, le=2**40)]
    is_answered: Annotated[bool, Field(strict=True)]
    reason: _Text | None

    @classmethod
    def of(cls, job: Job, document: Mapping[str, Any]) -> Self:
        url_id, description = str(document["url_id"]), document.get("description")
        is_merged = bool(document.get("additional_urls"))  # into its canonical page
        is_its_page = job.method in _WITHOUT_BODY and (url_id == job.url_id or is_merged)
        named = id_of_page(job.url, job.seed.page_scope) if is_its_page else url_id
        reason = None if description is None else _reason(str(description))
        size_bytes = document.get("response_size") or 0
        return cls(_number(named), size_bytes, is_answered(document), reason)


def is_answered(document: Mapping[str, Any]) -> bool:
    """Whether the page counts as one: the short document of a page that is unchanged has no status."""
    return document.get("status") is not None or bool(document.get("unchanged"))


class CountedSeed(NamedTuple):
    """Of a seed that has moved: the number of its producer's message, and its outcome as another message.

    The outcome is empty for what says that the message of the producer was counted as spilled.
    """

    first: _Named
    outcome: _Text

    @classmethod
    def at(cls, place: str, outcome: str = "") -> Self:
        return cls(_number(place), outcome)


Counted = CountedPage | CountedSeed
_ALL_COUNTED = TypeAdapter(list[Counted])


def key_of(task_id: str, writer: str, number: int) -> bytes:
    """Of one record; no two have the same."""
    return _SEPARATOR.join((task_id, writer, str(number))).encode()


def task_of(key: bytes | None) -> str:
    """Whose pages a record has. Raises BadPages."""
    try:
        task_id, _, number = (key or b"").decode().split(_SEPARATOR)
        int(number)
    except ValueError:
        raise BadPages("its key is not that of a record of pages") from None
    return task_id


def written(pages: Iterable[Counted]) -> bytes:
    """The value of a record; `read` is the inverse."""
    return json.dumps(list(pages), ensure_ascii=False, separators=(",", ":")).encode()


def read(value: bytes) -> list[Counted]:
    """Raises BadPages."""
    try:
        return _ALL_COUNTED.validate_json(value)
    except ValidationError as error:
        raise BadPages(f"its value is no list of pages: {error!r:.200}") from None


def _number(named: str) -> int:
    return int.from_bytes(blake2b(named.encode("utf-8", "replace"), digest_size=8).digest(), "big", signed=True)


def _reason(description: str) -> str:
    name = description.partition(":")[0].partition(" (after ")[0].strip()[:_MOST_REASON_CHARACTERS]
    return name.encode("utf-8", "replace").decode()


_READ_SECONDS = 0.2
_CACHE_KIB = 16_384

_TABLES = f"""
    PRAGMA cache_size = -{_CACHE_KIB};
    PRAGMA foreign_keys = ON;
    CREATE TABLE records (record INTEGER PRIMARY KEY, task TEXT, position INTEGER, key BLOB);
    CREATE INDEX records_of_task ON records (task);
    CREATE TABLE said (record INTEGER REFERENCES records ON DELETE CASCADE,
        page INTEGER, size_bytes INTEGER, is_answered INTEGER, reason TEXT);
    CREATE INDEX said_in_record ON said (record);
    CREATE TABLE moved (record INTEGER REFERENCES records ON DELETE CASCADE, first INTEGER, outcome TEXT);
    CREATE INDEX moved_in_record ON moved (record);
"""
_INSERT = {CountedPage: "INSERT INTO said VALUES (?, ?, ?, ?, ?)", CountedSeed: "INSERT INTO moved VALUES (?, ?, ?)"}
_BELOW = "FROM records WHERE task = ? AND position < ?"
# The other columns are those of the row with the largest rowid: https://sqlite.org/lang_select.html#bareagg
_LAST_WORDS = """CREATE TEMP TABLE words AS
    SELECT is_answered, reason, max(said.rowid) FROM records JOIN said USING (record) WHERE task = ? GROUP BY page"""
_LAST_SIZES = """SELECT total(size_bytes) FROM (
    SELECT size_bytes, max(said.rowid) FROM records JOIN said USING (record)
    WHERE task = ? AND size_bytes GROUP BY page)"""  # a 304 has none
# Seeds that were counted as spilled, each once, by the last word on how they ended (a copy that was filtered
# has no word, if there is another); what never came back is spilled still. What a process wrote of one that
# was not counted as spilled, as when it died before, is none.
_CAME_BACK = """WITH
    mine AS (SELECT first, outcome, moved.rowid AS number FROM records JOIN moved USING (record) WHERE task = ?),
    gone AS (SELECT DISTINCT first FROM mine WHERE outcome = ''),
    back AS (SELECT first, outcome, max((outcome <> 'filtered') << 62 | number)
        FROM mine WHERE outcome <> '' GROUP BY first)
    SELECT ifnull(back.outcome, 'spilled') AS ended, count(*)
    FROM gone LEFT JOIN back USING (first) GROUP BY ended"""


class PageCounts(NamedTuple):
    """`pages` were answered, `failures` have a reason; one may be both. `reasons` has at most 50 names.

    `came_back` are seeds that had left, by outcome.
    """

    pages: int = 0
    failures: int = 0
    size_bytes: int = 0
    reasons: Mapping[str, int] = {}
    came_back: Mapping[str, int] = {}

    def plus(self, other: PageCounts) -> PageCounts:
        return PageCounts(
            self.pages + other.pages,
            self.failures + other.failures,
            self.size_bytes + other.size_bytes,
            bounded(Counter(self.reasons) + Counter(other.reasons)),
            Counter(self.came_back) + Counter(other.came_back),
        )


@dataclass(frozen=True, slots=True)
class PageReading:
    """What the log says up to `end`; `stale` are keys of records that no later reading needs."""

    counts: Mapping[str, PageCounts]
    end: int
    stale: list[bytes]


class PageTable:
    """The pages of all tasks whose end was not told. Threads take turns with it; all methods block."""

    def __init__(self, log: SeedLog, topic: str, count: Callable[[str], None] | None = None) -> None:
        self._make_view = partial(TopicView, log, topic, self._take, count)
        self._turn = runtime.Lock()
        self._stopping = runtime.Event()
        self._begin()

    def _begin(self) -> None:
        self._view = self._make_view()
        self._end = 0
        self._came: list[tuple[str, Message, list[Counted]]] = []  # and is not in the table
        self._tasks: set[str] = set()  # with records
        self._rows = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._rows.executescript(_TABLES)

    def read(self, wanted: Collection[str], told: Mapping[str, int]) -> PageReading:
        """Read on to the present end, drop the records of `told` below their offsets, and count.

        Raises LogUnavailable, also when the temporary file cannot be written: the next call reads all anew.
        """
        with self._turn:
            try:
                self._read_on()
                stale = [key for task_id in told.keys() & self._tasks for key in self._drop(task_id, told)]
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
        self._view.close()
        self._rows.close()

    def _read_on(self) -> None:
        if not self._stopping.is_set():
            self._view.reader.mark_end()
        while not self._stopping.is_set():
            if self._view.reader.is_at_end:
                return
            self._view.taken(self._view.reader.poll(_READ_SECONDS))
            self._store()
        raise LogUnavailable(f"{self._view.topic} is read no more")

    def _take(self, message: Message) -> str:
        self._end = max(self._end, message.offset + 1)
        task_id = task_of(message.key)
        self._came.append((task_id, message, [] if message.value is None else read(message.value)))
        return task_id

    def _store(self) -> None:
        self._rows.execute("BEGIN")
        for task_id, message, told in self._came:
            if message.value is None:  # it was deleted, with its task
                self._rows.execute("DELETE FROM records WHERE task = ? AND key = ?", (task_id, message.key))
                continue
            record = task_id, message.offset, message.key
            number = self._rows.execute("INSERT INTO records VALUES (NULL, ?, ?, ?)", record).lastrowid
            for kind, statement in _INSERT.items():
                self._rows.executemany(statement, [(number, *one) for one in told if isinstance(one, kind)])
            self._tasks.add(task_id)
        self._rows.execute("COMMIT")
        self._came.clear()

    def _drop(self, task_id: str, told: Mapping[str, int]) -> list[bytes]:
        which = task_id, told[task_id]
        keys = [key for (key,) in self._rows.execute(f"SELECT key {_BELOW}", which)]
        self._rows.execute(f"DELETE {_BELOW}", which)
        if not self._rows.execute("SELECT 1 FROM records WHERE task = ? LIMIT 1", which[:1]).fetchone():
            self._tasks.discard(task_id)
        return keys

    def _counts_of(self, task_id: str) -> PageCounts:
        self._rows.execute(_LAST_WORDS, (task_id,))
        answered, failures = self._rows.execute("SELECT total(is_answered), count(reason) FROM words").fetchone()
        (size_bytes,) = self._rows.execute(_LAST_SIZES, (task_id,)).fetchone()
        reasons = self._rows.execute(
            "SELECT reason, count(*) FROM words WHERE reason IS NOT NULL GROUP BY reason"
        ).fetchall()
        self._rows.execute("DROP TABLE words")
        came_back = bounded(dict(self._rows.execute(_CAME_BACK, (task_id,)).fetchall()))
        return PageCounts(int(answered), failures, int(size_bytes), bounded(dict(reasons)), came_back)


# --- page log --------------------------------------------------------------------------------------------
# Writes the pages of tasks to the page log before the seeds that asked for them are counted.
#
# What a record says is true however often it is written, so a crash costs nothing here: the repeat of the
# seed writes its pages once more, and they are counted once (tasks.page_log).

logger = logging.getLogger(__name__)

_MOST_PAGES = 2_000  # of a record: some 100 kB
_PAUSE_SECONDS = 0.5  # while the log does not answer

Then = Callable[[], None]

Waiting = tuple[dict[object, Counted], list[Then]]  # of one task: what is to be written, of a page once


class PageLog:
    """On the event loop's thread only."""

    def __init__(self, log: SeedLog, producer: Producer, topic: str, background: Background) -> None:
        self._log = log
        self._producer = producer
        self._topic = topic
        self._background = background
        self._writer = runtime.token_hex(6)
        self._records = 0
        self._has_topic = False
        self._is_writing = False
        self.waiting: defaultdict[str, Waiting] = defaultdict(lambda: ({}, []))  # to be read only
        self._away = Outage(logger, "The log of pages takes no records, trying again", "It takes them again")

    @property
    def is_writing(self) -> bool:
        """Whether pages are not known to be durable."""
        return self._is_writing or bool(self.waiting)

    def add(self, task_id: str, pages: Collection[CountedPage], then: Then, seed: CountedSeed | None = None) -> None:
        """Write these pages, and what is said of a seed; `then` is called when they are durable."""
        if not pages and seed is None:
            then()
            return
        told, thens = self.waiting[task_id]
        told.update((page.page, page) for page in pages)
        told.update({} if seed is None else {seed: seed})
        thens.append(then)

    def look(self) -> None:
        """Write what waits; to be called often."""
        if self.waiting and not self._is_writing:
            self._is_writing = True
            self._background.start(self._write(), "log of pages")

    async def _write(self) -> None:
        batches, self.waiting = self.waiting, defaultdict(lambda: ({}, []))
        turns = Turns.of_running_loop()  # after an outage thousands of tasks may have some
        try:
            if not self._has_topic:
                await asyncio.to_thread(self._log.make_topic, self._topic, 1, compacted=True)
                self._has_topic = True
            for sent in await turns.take(self._sent(batches)):
                if not sent.done():
                    await asyncio.wrap_future(sent)
                sent.result()
        except SiteSpiderError as error:
            self._away.goes_on(error)
            await asyncio.sleep(_PAUSE_SECONDS)
            self._put_back(batches)
        else:
            self._away.is_over()
            async for then in turns.through(then for _, thens in batches.values() for then in thens):
                then()
        finally:
            self._is_writing = False

    def _sent(self, batches: Mapping[str, Waiting]) -> Iterator[Future[MessagePlace]]:
        for task_id, (told, _) in batches.items():
            pages = [*told.values()]
            for start in range(0, len(pages), _MOST_PAGES):
                self._records += 1
                key = key_of(task_id, self._writer, self._records)
                yield self._producer.send(self._topic, key, written(pages[start : start + _MOST_PAGES]))

    def _put_back(self, batches: defaultdict[str, Waiting]) -> None:
        """Pages that came meanwhile are newer."""
        for task_id, (told, thens) in self.waiting.items():
            batches[task_id][0].update(told)
            batches[task_id][1].extend(thens)
        self.waiting = batches
