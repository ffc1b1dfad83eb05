"""Creates files and folders that only this user may read, whatever the umask.

What was there stays as it is: a folder may not be for our data alone, and modes are somebody's choice.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from errno import EACCES, EEXIST, EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, EPERM, EROFS
from pathlib import Path
from typing import Protocol, TypeVar

from site_spider import runtime
from site_spider.contracts.sink import Record, Verdict
from site_spider.errors import ConfigError, SinkUnavailable

T = TypeVar("T")

logger = logging.getLogger(__name__)

# A path that cannot be a folder of ours, however long one waits; a full or slow disk is none of these.
_NEVER = frozenset({ENOENT, ENOTDIR, EEXIST, EISDIR, EACCES, EPERM, EROFS, ENAMETOOLONG, ELOOP})
_FILE, _FOLDER = 0o600, 0o700


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


def can_never_be(error: BaseException | None) -> bool:
    """Whether a file could not be made where it was to be, and will not be later."""
    return isinstance(error, OSError) and error.errno in _NEVER


# --- A sink that writes files ----------------------------------------------------------------------------


class Files(Protocol):
    """One thread uses them. All methods block, and raise SinkUnavailable."""

    def check(self) -> str: ...
    def open(self) -> None: ...
    def write(self, records: Sequence[Record]) -> Sequence[Verdict]: ...
    def close(self) -> None: ...


class FileSink:
    """Writes on a thread of its own: the disk and other processes' locks never hold up the loop."""

    name: str

    def __init__(self, files: Files) -> None:
        self._files = files
        self._thread: runtime.ThreadPoolExecutor | None = None

    async def check(self) -> str:
        return await asyncio.to_thread(self._files.check)

    async def open(self) -> None:
        """Create what is missing. Raises SinkUnavailable, ConfigError."""
        try:
            await self._run(self._files.open)
        except SinkUnavailable as error:
            if can_never_be(error.__cause__):
                raise ConfigError(str(error)) from error
            raise

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        """The records are on the disk when this returns. Raises SinkUnavailable."""
        return await self._run(lambda: self._files.write(records))

    async def close(self) -> None:
        """Never raises."""
        thread, self._thread = self._thread, None  # closed twice at once, by an opening that is cancelled
        if thread is None:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(thread, self._files.close)
        except Exception:  # nobody could do anything about it
            logger.exception("The files of sink %s could not be closed.", self.name)
        finally:
            thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self, action: Callable[[], T]) -> T:
        if self._thread is None:
            self._thread = runtime.ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"{self.name}-sink")
        return await asyncio.get_running_loop().run_in_executor(self._thread, action)


# --- Notices that files were replaced while the process runs: certificates and keys ----------------------

LOOK_SECONDS = 5.0  # between two looks

_Stamp = tuple[int, int, int] | None


class ReplacedFiles:
    """Of some paths; empty ones, and what is no text, count as none. A link counts as what it leads to."""

    def __init__(self, paths: Iterable[object]) -> None:
        self._paths = tuple(path for path in paths if path and isinstance(path, str))
        self._used = self._seen = self._stamps()
        self._look_at = runtime.monotonic() + LOOK_SECONDS

    def is_due(self) -> bool:
        """Whether it is time for a look; the next is later."""
        if not self._paths or runtime.monotonic() < self._look_at:
            return False
        self._look_at = runtime.monotonic() + LOOK_SECONDS
        return True

    def look(self) -> bool:
        """Whether one is not what was used last. Asks the file system."""
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
