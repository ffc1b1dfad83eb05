"""The sockets of `scrapy frontier`: one for each crawl, in a folder that only this user may enter."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from site_spider import runtime

_LONGEST_PATH_BYTES = 107  # what a socket's address has room for
_SUFFIX = ".frontier"


def folders() -> Iterator[Path]:
    """Where to put one, and where to look for all."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        yield Path(runtime) / "site_spider"
    yield Path(tempfile.gettempdir()) / f"site_spider-{os.getuid()}"


def new_path() -> Path:
    """The path of a socket that is not there yet. Raises OSError when no folder will do."""
    reasons: list[OSError] = []
    for folder in folders():
        path = folder / f"{os.getpid()}-{runtime.token_hex(3)}{_SUFFIX}"
        try:
            _prepare(path)
        except OSError as error:
            reasons.append(error)
        else:
            return path
    raise reasons[0]


def _prepare(path: Path) -> None:
    folder = path.parent
    if len(os.fsencode(path)) > _LONGEST_PATH_BYTES:
        raise OSError(f"{folder} is too long a name for the folder of a socket")
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_own(folder):
        raise PermissionError(f"{folder} is not this user's alone")


def running() -> dict[Path, int]:
    """The sockets that are there, with the process each is named after; in order."""
    found: dict[Path, int] = {}
    for folder in folders():
        with contextlib.suppress(OSError):
            if _is_own(folder):
                for path in sorted(folder.glob(f"*{_SUFFIX}")):
                    pid = path.name.partition("-")[0]
                    if pid.isascii() and pid.isdigit():
                        found[path] = int(pid)
    return found


def remove_stale() -> None:
    """Remove the sockets of processes that have ended, which a killed one leaves behind."""
    for path, pid in running().items():
        if has_ended(pid):
            with contextlib.suppress(OSError):
                path.unlink()


def has_ended(pid: int) -> bool:
    """Whether there is no such process."""
    try:
        os.kill(pid, 0)  # sends nothing, asks only
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _is_own(folder: Path) -> bool:
    status = folder.lstat()
    may_others = stat.S_IMODE(status.st_mode) & 0o022
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not may_others
