"""Writes results to WARC files, with an index beside each.

Theory of operation. Every process writes files of its own, each locked and named `.open` while it is written.
A batch is appended and synced once; after an error the file is cut to where it was synced last. A file that
nobody holds any more was left by a crash: what is whole is kept, the rest cut off, and it gets its index and
its final name, by the next process that begins a file, in a thread of its own: a large one takes minutes.

What was written of a page stands in `repeats.sqlite` after it is on the disk, for all processes, so the same
payload of the same page is a `revisit`. That file only saves room: without it all is written in full.
"""

from __future__ import annotations

import fcntl
import heapq
import logging
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC
from errno import EACCES
from hashlib import blake2b
from pathlib import Path
from socket import gethostname
from typing import Any, BinaryIO, Final, Self

from site_spider import runtime
from site_spider.adapters.files import DatabaseFile, ThreadSink, check_writable, data_folder, inode_of, private_folder
from site_spider.adapters.warc.records import (
    Earlier,
    PackedRecord,
    WarcRecord,
    date_of,
    index_line,
    members,
    records_of,
    warcinfo,
)
from site_spider.contracts.sink import ACKNOWLEDGED, Answer, Record, Verdict
from site_spider.errors import ConfigError, SinkRejected, SinkUnavailable
from site_spider.options import SettingsView, integer, text

Page = tuple[Any, ...]  # a row of what was written of a page

logger = logging.getLogger(__name__)

FOLDER, MAX_BYTES, PREFIX = "SITE_WARC_DIR", "SITE_WARC_MAX_BYTES", "SITE_WARC_PREFIX"
OPEN: Final = ".open"  # behind the name of a file that is being written
ENDING: Final = ".warc.gz"
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,64}")
# Heritrix and others name theirs alike, and write to them without a lock
_OURS = re.compile(rf"{_PREFIX.pattern}-\d{{20}}-\d{{5,}}-\d+~[A-Za-z0-9.-]{{0,64}}-[0-9a-f]{{8}}\.warc\.gz(?:\.open)?")
_LINES: Final = 50_000  # of an index in memory
_KNOWN: Final = 1_000_000  # pages of which the payload is known; then the oldest is forgotten
_BUSY_SECONDS = 5.0
_SCHEMA: Final = [
    "CREATE TABLE IF NOT EXISTS written "
    "(number INTEGER PRIMARY KEY AUTOINCREMENT, page BLOB UNIQUE, digest TEXT, record_id TEXT, date TEXT)"
]


class WarcSink(ThreadSink):
    """Files in SITE_WARC_DIR."""

    name = "warc"

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        """The sink of results; items are none of an archive's. Raises ConfigError."""
        prefix = text(settings, PREFIX, required=True)
        if not _PREFIX.fullmatch(prefix):
            raise ConfigError(
                f"{PREFIX} is {prefix!r}, but must be 1 to 64 letters, digits, dots, underscores and hyphens."
            )
        folder = text(settings, FOLDER)
        at = Path(folder) if folder else data_folder(settings) / "warc"
        return cls(WarcFiles(at, integer(settings, MAX_BYTES, 1), prefix))


class WarcFiles:
    """One file after the other, of up to `max_bytes` unless a single result is longer. Blocks."""

    def __init__(self, folder: Path, max_bytes: int, prefix: str) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._prefix = prefix
        self._host = re.sub(r"[^A-Za-z0-9.-]", "-", gethostname())[:64]
        self._serial = 0
        self._file: BinaryIO | None = None  # not buffered: what an error leaves must not be written later
        self._path = folder  # of the file, when there is one
        self._end = self._synced = 0  # bytes of it
        self._fresh, self._pages = list[bytes](), dict[bytes, Page]()  # lines and pages of what is not synced
        self._index = IndexLines(folder)
        self._repeats = KnownPayloads(folder / "repeats.sqlite")
        self._mender: runtime.ThreadPoolExecutor | None = None
        self._mend_waits = False  # or else small files would be begun faster than looked for

    def open(self) -> None:
        """Make the folder, and begin to mend what a crash left. Raises SinkUnavailable."""
        try:
            private_folder(self._folder)
            _sync_folder(self._folder)
            if not os.access(self._folder, os.W_OK):
                raise PermissionError(EACCES, "nothing can be written there")
            self._mend_aside()
        except OSError as error:
            raise self._unavailable(error) from error

    def check(self) -> str:
        try:
            return check_writable(self._folder, self._folder)
        except OSError as error:
            raise self._unavailable(error) from error

    def write(self, records: Sequence[Record]) -> list[Verdict]:
        try:
            verdicts = [self._put(record) for record in records]
            self._sync()
        except OSError as error:
            self._take_back()
            raise self._unavailable(error) from error
        return verdicts

    def close(self) -> None:
        """Finish the file. Never raises; if it cannot be finished, the next start does so."""
        try:
            self._finish()
        except OSError as error:
            logger.warning("%s is finished by the next start: %s", self._path, error)
            self._abandon()
        self._repeats.close()
        mender, self._mender = self._mender, None
        if mender is not None:
            mender.shutdown()

    def _put(self, record: Record) -> Verdict:
        def earlier(place: str, digest: str | None) -> Earlier | None:
            if (fresh := self._pages.get(page := _page(record.key, place))) and digest in (None, fresh[1]):
                return Earlier(*fresh[2:])
            return self._repeats.find(page, digest)

        try:
            made = records_of(record, runtime.time(), runtime.uuid4, earlier)
        except SinkRejected as error:
            return Verdict(Answer.REJECTED, str(error))
        packed = [one.packed() for one in made]
        self._make_room(sum(map(len, packed)))
        for one, data in zip(made, packed, strict=True):
            self._append(one, data, record.key)
        return ACKNOWLEDGED

    def _append(self, record: WarcRecord, data: bytes, key: str) -> None:
        assert self._file is not None
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]
        member = PackedRecord(self._end, len(data), record.beginning)
        self._fresh += filter(None, [index_line(member, self._path.name.removesuffix(OPEN))])
        self._pages |= {page[0]: page for page in [page_in(record, key)] if page}
        self._end += len(data)

    def _make_room(self, size_bytes: int) -> None:
        if self._file is not None and self._end + size_bytes > self._max_bytes:
            self._finish()
        while self._file is None:
            self._begin()

    def _begin(self) -> None:
        private_folder(self._folder)
        name = self._new_name()
        self._path = self._folder / (name + OPEN)
        file = open(self._path, "xb", buffering=0, opener=_private)  # noqa: SIM115 - stays open
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink == 0:  # another process has just taken it for one of a crash
            file.close()
            return
        self._file, self._end, self._synced = file, 0, 0
        self._mend_aside()
        info = {"software": "site_spider", "hostname": self._host, "isPartOf": self._prefix}
        record = warcinfo(name, info, date_of(runtime.time()), runtime.uuid4)
        self._append(record, record.packed(), "")
        _sync_folder(self._folder)

    def _new_name(self) -> str:
        self._serial += 1
        now, place = runtime.now(UTC), f"{os.getpid()}~{self._host}-{runtime.token_hex(4)}"
        return f"{self._prefix}-{now:%Y%m%d%H%M%S%f}-{self._serial:05}-{place}{ENDING}"

    def _sync(self) -> None:
        """What was written is on the disk, and known to be."""
        if self._file is None:
            return
        os.fsync(self._file.fileno())
        if not _is_at(self._path, self._file):
            raise FileNotFoundError(f"{self._path.name} was removed or moved while it was written")
        self._synced = self._end
        fresh, self._fresh, pages, self._pages = self._fresh, [], self._pages, {}
        self._repeats.keep([*pages.values()])
        self._index.add(fresh)

    def _finish(self) -> None:
        self._sync()
        if self._file is not None:
            self._index.write(self._path)
            self._path.rename(self._path.with_suffix(""))
            _sync_folder(self._folder)
            self._abandon()

    def _take_back(self) -> None:
        """Cut the file to what is known of it."""
        self._fresh, self._pages = [], {}
        with suppress(OSError):
            if self._file is not None:
                self._end = self._file.seek(self._synced)
                self._file.truncate()
                if self._end and _is_at(self._path, self._file):
                    return
        self._abandon()  # it is mended when the next one is begun

    def _abandon(self) -> None:
        file, self._file = self._file, None
        self._index.clear()
        if file is not None:
            with suppress(OSError):
                file.close()

    def _mend_aside(self) -> None:
        if self._mender is None:
            self._mender = runtime.ThreadPoolExecutor(max_workers=1, thread_name_prefix="warc-mender")
        if not self._mend_waits:
            self._mend_waits = True
            self._mender.submit(self._mend)

    def _mend(self) -> None:
        self._mend_waits = False
        paths = set(self._folder.iterdir())  # of which there may be very many
        for path in sorted(path for path in paths if _OURS.fullmatch(path.name)):
            if path == self._path:  # which is not locked yet when it is begun
                continue
            try:
                if path.suffix == OPEN:
                    mend(path)
                elif _index_path(path) not in paths:
                    with path.open("rb") as file:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # against others who do the same
                        write_index(path, file)
            except (FileNotFoundError, BlockingIOError):  # it was mended, or is held, by its owner
                continue
            except OSError as error:
                logger.warning("%s is mended with the next file: %s", path, error)

    def _unavailable(self, error: OSError) -> SinkUnavailable:
        return SinkUnavailable(
            f"{FOLDER} is {str(self._folder)!r}, but it cannot be written: {error}."
            " Check its disk and permissions, or set another folder."
        )


def mend(path: Path) -> None:
    """Cut off what is half written, and give the file its index and its final name. Raises OSError."""
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        whole = write_index(path, file)
        file.truncate(whole)
        logger.info("%s was left by a crash: %d bytes of whole records are kept", path, whole)
        os.fsync(file.fileno())
        if whole:
            path.rename(path.with_suffix(""))
        else:
            path.unlink()
            _index_path(path).unlink(missing_ok=True)
    _sync_folder(path.parent)


def write_index(path: Path, file: BinaryIO) -> int:
    """Make the index of a file anew; how many bytes of it are whole records. Raises OSError."""
    name, whole = path.name.removesuffix(OPEN), 0
    lines = IndexLines(path.parent)
    for member in members(file):
        whole = member.offset + member.length
        try:
            line = index_line(member, name)
        except (KeyError, ValueError):  # no record of ours
            continue
        lines.add([line] if line else [])
    lines.write(path)
    lines.clear()
    return whole


class IndexLines:
    """The lines of one index, which are sorted at its end; many wait in temporary files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: list[bytes] = []
        self._sorted: list[BinaryIO] = []

    def add(self, lines: Iterable[bytes]) -> None:
        self._lines += [line + b"\n" for line in lines]
        if len(self._lines) >= _LINES:
            part = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - until `clear`
            part.writelines(sorted(self._lines))
            self._sorted.append(part)
            self._lines = []

    def write(self, path: Path) -> None:
        """Write them as the index of this file, which the caller has locked. Raises OSError."""
        for part in self._sorted:
            part.seek(0)
        target = _index_path(path)
        new = target.with_name(target.name + ".new")
        with open(new, "wb", opener=_private) as file:
            file.writelines(heapq.merge(sorted(self._lines), *self._sorted))
            file.flush()
            os.fsync(file.fileno())
        new.rename(target)

    def clear(self) -> None:
        """Of another file from now on."""
        for part in self._sorted:
            part.close()
        self._lines, self._sorted = [], []


class KnownPayloads(DatabaseFile):
    """The payload that was last written of each page, for all processes of this folder."""

    _away = SinkUnavailable  # never leaves it

    def __init__(self, path: Path) -> None:
        super().__init__(path, _SCHEMA, _BUSY_SECONDS, is_durable=False)
        self._has_failed = False

    def find(self, page: bytes, digest: str | None) -> Earlier | None:
        """The record of the same payload, if there is one; None: of the page's last one."""
        query = "SELECT record_id, date FROM written WHERE page = ? AND digest = coalesce(?, digest)"
        with self._without_trouble():
            for found in self.query(query, [page, digest]):
                return Earlier(*map(str, found))
        return None

    def keep(self, pages: Sequence[Page]) -> None:
        if not pages:
            return
        fill = "INSERT OR REPLACE INTO written (page, digest, record_id, date) VALUES (?, ?, ?, ?)"
        oldest = "DELETE FROM written WHERE number <= (SELECT max(number) FROM written) - ?"
        with self._without_trouble(), self.transaction() as connection:
            connection.executemany(fill, pages)
            connection.execute(oldest, [_KNOWN])

    @contextmanager
    def _without_trouble(self) -> Iterator[None]:
        try:
            yield
        except SinkUnavailable as error:
            if not self._has_failed:
                self._has_failed = True
                logger.warning("%s cannot be used, so repeats are written in full: %s", self.path, error.__cause__)


def page_in(record: WarcRecord, key: str) -> Page | None:
    """What is kept of a record; None for one that no other can refer to."""
    if not record.place:
        return None
    said = (record.headers[f"WARC-{name}"] for name in ("Payload-Digest", "Record-ID", "Date"))
    return (_page(key, record.place), *said)


def _page(key: str, place: str) -> bytes:
    return blake2b(f"{key}\0{place}".encode("utf-8", "replace"), digest_size=16).digest()


def _is_at(path: Path, file: BinaryIO) -> bool:
    """Whether what goes into the file is found there: neither it nor its folder was removed or moved."""
    return inode_of(path) == os.fstat(file.fileno()).st_ino


def _index_path(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(OPEN).removesuffix(ENDING) + ".cdxj")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _sync_folder(folder: Path) -> None:
    """Wait until the names in it are on the disk, too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
