"""Files on this machine: for this user alone whatever the umask, replaced ones, and SQLite's; and sinks that block.

What was there stays as it is: a folder may not be for our data alone, and modes are somebody's choice.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sqlite3
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar, copy_context
from errno import EACCES, EEXIST, EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, EPERM, EROFS
from functools import partial
from math import inf
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, ClassVar, Protocol, TypeVar

from site_spider import runtime
from site_spider.contracts.sink import Record, Verdict
from site_spider.errors import ConfigError, SiteSpiderError
from site_spider.options import SettingsView, text

T = TypeVar("T")

logger = logging.getLogger(__name__)

# A path that cannot be a folder of ours, however long one waits; a full or slow disk is none of these.
_NEVER = frozenset({ENOENT, ENOTDIR, EEXIST, EISDIR, EACCES, EPERM, EROFS, ENAMETOOLONG, ELOOP})
_FILE, _FOLDER = 0o600, 0o700
_LONGEST_PATH_BYTES = 504  # of a file of SQLite


def data_folder(settings: SettingsView) -> Path:
    """SITE_DATA_DIR. Raises ConfigError."""
    return Path(text(settings, "SITE_DATA_DIR", required=True))


def private_folder(folder: Path) -> None:
    """Make it and what is missing above it. Raises OSError."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        with suppress(FileExistsError):  # another process was faster
            one.mkdir(mode=_FOLDER)
            one.chmod(_FOLDER)  # the umask may have taken our own rights


def private_database(path: Path) -> None:
    """Make an empty file for SQLite, its folder included; what SQLite makes beside has its mode.

    Raises OSError.
    """
    if len(os.fsencode(path.absolute())) > _LONGEST_PATH_BYTES:
        raise OSError(ENAMETOOLONG, os.strerror(ENAMETOOLONG))
    private_folder(path.parent)
    with suppress(FileExistsError):
        # Never opened here: closing it would release the locks of every connection of this process.
        os.mknod(path, _FILE | stat.S_IFREG)
        path.chmod(_FILE)


def check_own_folder(folder: Path) -> None:
    """Raise PermissionError unless it is a folder, not a link, of this user, that no other may write to."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(
            f"{folder} is no folder, belongs to another user, or can be written to by others; remove it or set TMPDIR."
        )


def locked(path: Path, flags: int = 0) -> int | None:
    """A descriptor of the file, which holds its lock while it is open; None while another one does.

    The kernel frees the lock when its process ends, however it ends. Raises OSError.
    """
    descriptor = os.open(path, flags | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor


@contextmanager
def settings_to_blame() -> Iterator[None]:
    """Raise ConfigError where a file could not be made where it was to be, and will not be later."""
    try:
        yield
    except SiteSpiderError as error:
        cause = error.__cause__
        if _is_foreign(cause) or (isinstance(cause, OSError) and cause.errno in _NEVER):
            raise ConfigError(str(error)) from error
        raise


def check_writable(folder: Path, path: Path) -> str:
    """Whether `path` is there, or will be made. Leaves nothing. Raises OSError where nothing can be written."""
    exists = path.exists()
    with TemporaryFile(dir=next(one for one in (folder, *folder.absolute().parents) if one.exists())):
        if exists and not os.access(path, os.W_OK):
            raise PermissionError(EACCES, "nothing can be written there")
    return f"{path} {'is there' if exists else 'will be created'}"


# --- A sink whose store blocks: it is used on threads ----------------------------------------------------

CLOSE_SECONDS = 4.0  # less than the delivery waits; what takes longer goes on aside
WRITE_SECONDS = 28.0  # no request of a write is begun later: with its own time it ends within the delivery's 60 s
_write_until: ContextVar[float] = ContextVar("write_until", default=inf)  # monotonic


def is_late() -> bool:
    """Whether this write may begin nothing more: it would go on when its records are written again."""
    return runtime.monotonic() > _write_until.get()


class BlockingStore(Protocol):
    """All methods may wait for servers, disks and locks, and raise what those of a sink do."""

    def check(self) -> str: ...
    def open(self) -> None: ...
    def write(self, records: Sequence[Record]) -> Sequence[Verdict]: ...
    def close(self) -> None: ...


class ThreadSink:
    """Uses a store on threads of its own, one unless said otherwise: nothing in it holds up the loop."""

    name: str

    def __init__(self, store: BlockingStore, threads: int = 1) -> None:
        self._store = store
        self._most_threads = threads
        self._threads: runtime.ThreadPoolExecutor | None = None

    async def check(self) -> str:
        with settings_to_blame():
            return await asyncio.to_thread(self._store.check)

    async def open(self) -> None:
        with settings_to_blame():
            await self._run(self._open)

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        _write_until.set(runtime.monotonic() + WRITE_SECONDS)
        return await self._run(partial(copy_context().run, self._store.write, records))

    async def close(self) -> None:
        threads, self._threads = self._threads, None  # closed twice at once, by an opening that is cancelled
        if threads is not None:
            closing = asyncio.get_running_loop().run_in_executor(threads, self._close)
            threads.shutdown(wait=False)
            await asyncio.wait([closing], timeout=CLOSE_SECONDS)

    def _open(self) -> None:
        self._store.open()
        if self._threads is None:  # it was closed meanwhile, by another thread
            self._close()

    def _close(self) -> None:
        try:
            self._store.close()
        except Exception:  # nobody could do anything about it
            logger.exception("Sink %s could not be closed.", self.name)

    async def _run(self, action: Callable[[], T]) -> T:
        if self._threads is None:
            self._threads = runtime.ThreadPoolExecutor(self._most_threads, thread_name_prefix=f"{self.name}-sink")
        return await asyncio.get_running_loop().run_in_executor(self._threads, action)


# --- Notices that files were replaced while the process runs: certificates and keys ----------------------

LOOK_SECONDS = 5.0  # between two looks

_Stamp = tuple[int, int, int] | None


class ReplacedFiles:
    """Of some paths; empty ones, and what is no text, count as none. A link counts as what it leads to."""

    def __init__(self, paths: Iterable[object]) -> None:
        self._paths = tuple(path for path in paths if path and isinstance(path, str))
        self._used = self._seen = self._stamps()
        self._look_at = runtime.monotonic() + LOOK_SECONDS

    def have_changed(self) -> bool:
        """Whether one is not what was used last. Asks the file system now and then."""
        if not self._paths or runtime.monotonic() < self._look_at:
            return False
        self._look_at = runtime.monotonic() + LOOK_SECONDS
        self._seen = self._stamps()
        return self._seen != self._used

    def use(self) -> None:
        """What was seen last is in use now."""
        self._used = self._seen

    def _stamps(self) -> tuple[_Stamp, ...]:
        return tuple(map(_stamp, self._paths))


def _stamp(path: str) -> _Stamp:
    try:
        found = Path(path).stat()
    except OSError:  # it is being replaced
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


# --- An SQLite file that several processes share, with a write-ahead log --------------------------------
# The switch to that log does not wait for other processes by itself, as everything else does.

_ATTEMPTS = 100
_PAUSE_SECONDS = 0.05
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_WAL_LIMIT_BYTES = 64_000_000  # what the -wal file is cut to after a burst


class DatabaseFile:
    """One connection to a file; one thread at a time uses it. All its methods but `close` raise `_away`.

    It opens the file when it is first needed, and again after an error or when somebody removed
    the file. A write waits `busy_seconds` for those of other processes. A commit survives the death of the
    process, and if `is_durable`, at the cost of an fsync, a power failure.
    """

    _away: ClassVar[type[SiteSpiderError]]

    def __init__(self, path: Path, schema: Sequence[str], busy_seconds: float, *, is_durable: bool) -> None:
        self.path = path
        self._schema = schema
        self._busy_seconds = busy_seconds
        self._is_durable = is_durable
        self._connection: sqlite3.Connection | None = None
        self._inode: int | None = None

    def open(self) -> None:
        with self._guarded():
            self._connected()

    def check(self) -> str:
        with self._guarded():
            if self.path.exists():
                os.close(os.open(self.path, os.O_RDWR))
                with closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?immutable=1", uri=True)) as connection:
                    connection.execute("PRAGMA schema_version")  # makes no file beside it
            return check_writable(self.path.parent, self.path)

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._guarded():
            return self._connected().execute(statement, values).fetchall()

    def stream(self, statement: str, values: Sequence[Any] = ()) -> Generator[Any, None, None]:
        """The same, row by row; to be closed when it is not read to its end."""
        with self._guarded():
            cursor = self._connected().execute(statement, values)
            try:
                yield from cursor
            finally:
                cursor.close()  # or else the file's log could not be shortened

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction, alone in the file; rolled back when the block raises."""
        with self._guarded():
            connection = self._connected()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if not is_busy(error):
                self.close()
            raise self._away(unusable(self.path, error)) from error

    def _connected(self) -> sqlite3.Connection:
        if self._connection is not None and inode_of(self.path) != self._inode:
            logger.warning("%s was removed; beginning a new one.", self.path)
            self.close()
        while self._connection is None:
            private_database(self.path)
            self._inode = inode_of(self.path)
            self._connection = self._opened()
            if inode_of(self.path) != self._inode:  # it was replaced meanwhile, which may be long
                self.close()
        return self._connection

    def _opened(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=self._busy_seconds, isolation_level=None, check_same_thread=False
        )
        try:
            _switch_to_wal(connection)
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._is_durable else 'NORMAL'}")
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        for statement in self._schema:
            connection.execute(statement)
        connection.execute("COMMIT")


def unusable(path: Path, error: Exception) -> str:
    """What to say when a file cannot be used."""
    do = "Restore it" if _is_foreign(error) else "Check its disk and permissions"
    return f"SITE_DATA_DIR is {str(path.parent)!r}, but {path} cannot be used: {error}. {do}, or set another folder."


def _is_foreign(error: BaseException | None) -> bool:
    """Whether SQLite has found something else than a file of ours."""
    codes = sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR
    return isinstance(error, sqlite3.Error) and error_code(error) in codes


def inode_of(path: Path) -> int | None:
    """Which file is there now; None when it is gone.

    What goes into a file that was removed or replaced is lost, without an error.
    """
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def error_code(error: sqlite3.Error) -> int:
    """Without what extends it."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: Exception) -> bool:
    """Whether another process is at work in the file."""
    return isinstance(error, sqlite3.Error) and error_code(error) in _BUSY


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    for attempt in range(_ATTEMPTS):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if not is_busy(error) or attempt == _ATTEMPTS - 1:
                raise
            runtime.sleep(_PAUSE_SECONDS)
        else:
            return
