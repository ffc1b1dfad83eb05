"""Creates files and folders that only this user may read, whatever the umask.

What was left open to others is closed when it is met, and said. Left as it is: what belongs to another
user, and folders that are not for our data alone (the system's, a home, the project's); the files in them
are closed all the same.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from site_spider import runtime

logger = logging.getLogger(__name__)

_FILE, _FOLDER = 0o600, 0o700
_BESIDE = ("", "-wal", "-shm", "-journal")  # what SQLite makes beside a file, with its mode
_SYSTEM_DEPTH = 2  # parts of /data: a folder of the system, or a volume


def private_folder(folder: Path) -> None:
    """Make it and what is missing above it, or close it to others. Raises OSError."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        with suppress(FileExistsError):  # another process was faster
            one.mkdir(mode=_FOLDER)
            one.chmod(_FOLDER)  # the umask may have taken our own rights
    if not missing and folder.is_dir() and not _is_for_more(folder):
        _close(folder, _FOLDER)


def private_database(path: Path) -> None:
    """Make an empty file for SQLite, its folder included, or close those that are there. Raises OSError."""
    private_folder(path.parent)
    with suppress(FileExistsError):
        # Never opened here: closing it would release the locks of every connection of this process.
        os.mknod(path, _FILE | stat.S_IFREG)
        path.chmod(_FILE)
        return
    for suffix in _BESIDE:
        _close(path.with_name(path.name + suffix), _FILE)


def check_own_folder(folder: Path) -> None:
    """Raise PermissionError unless it is a folder, not a link, of this user, that no other may write to."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(
            f"{folder} is no folder, belongs to another user, or can be written to by others; "
            "remove it or set TMPDIR."
        )


def _close(path: Path, mode: int) -> None:
    with suppress(FileNotFoundError):
        before = stat.S_IMODE(path.stat().st_mode)
        if path.stat().st_uid != os.getuid() or not before & 0o077:
            return
        with suppress(OSError):  # of a read-only disk, or one that knows no modes
            path.chmod(mode)
        after = stat.S_IMODE(path.stat().st_mode)
        if after & 0o077:
            _say_once(f"{path} can be read by others (mode {after:04o}), and that could not be changed.")
        else:
            _say_once(f"{path} could be read by others (mode {before:04o}); it is this user's alone now.")


@cache
def _say_once(words: str) -> None:
    logger.warning("SITE_DATA_DIR: %s", words)


def _is_for_more(folder: Path) -> bool:
    path = folder.resolve()
    others = (Path("~").expanduser(), Path.cwd(), *Path.cwd().parents)
    is_temporary = path.stat().st_mode & stat.S_ISVTX
    return bool(path in others or len(path.parts) <= _SYSTEM_DEPTH or is_temporary)


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
