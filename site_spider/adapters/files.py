"""Creates files and folders that only this user may read, whatever the umask.

What was there stays as it is: a folder may not be for our data alone, and modes are somebody's choice.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from site_spider import runtime

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
            f"{folder} is no folder, belongs to another user, or can be written to by others; "
            "remove it or set TMPDIR."
        )


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
