"""Gives a restarted process the same name in its group, and never the same name to two live processes.

Theory: each slot is a lock file, and a member holds the lowest free one. The kernel frees the lock when
the process ends, however it ends, so after kill -9 the next process takes the same slot and the group
hands its partitions back at once. Lock files are never removed: a process that locked a removed file
would share its slot with one that made a new file.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import re
import socket
from contextlib import suppress
from pathlib import Path
from typing import Self

from site_spider.adapters.files import check_own_folder, locked
from site_spider.installation import temporary_folder

logger = logging.getLogger(__name__)

_MACHINE_FILES = ("/etc/machine-id", "/proc/sys/kernel/random/boot_id")  # a clone may have the same first one


class MemberSlot:
    """A claimed slot; `instance_id` is its name, which ends with its number, from 0 for each group on this machine."""

    def __init__(self, instance_id: str, descriptor: int) -> None:
        self.instance_id = instance_id
        self._descriptor: int | None = descriptor

    @classmethod
    def claim(cls, group: str, folder: Path | None = None, place: str = "") -> Self:
        """Take the lowest free slot of `group`. Raises OSError when no lock file can be made.

        `place` names whoever numbers its slots on its own, over restarts; empty: this machine and folder.
        """
        folder = folder or default_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_own_folder(folder)
        paths = (_path(folder, group, number) for number in itertools.count())
        tried = enumerate(locked(path, os.O_CREAT) for path in paths)
        number, descriptor = next((number, lock) for number, lock in tried if lock is not None)
        place = place or f"{_sanitised(socket.gethostname())}-{_place(folder)}"
        return cls(f"site_spider-{place}-{number}", descriptor)

    @classmethod
    def try_claim(cls, group: str, place: str = "") -> Self | None:
        try:
            return cls.claim(group, place=place)
        except OSError as error:
            logger.warning("Without a lock file a restarted process waits 10 s for its partitions: %s", error)
            return None

    def release(self) -> None:
        """Free the slot; harmless to repeat."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def default_folder() -> Path:
    """A folder of this user's own that every process of this user finds.

    Its name in the folder for temporary files can be guessed: when another user was first, it is in the home.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime) / "site_spider"
    temporary = temporary_folder() / f"site_spider-{os.getuid()}"
    with suppress(FileNotFoundError):
        try:
            check_own_folder(temporary)
        except PermissionError:
            return Path(os.path.expanduser("~/.local/state/site_spider"))  # noqa: PTH111 - raises nothing
    return temporary


def _path(folder: Path, group: str, number: int) -> Path:
    digest = hashlib.sha256(group.encode()).hexdigest()[:8]  # names that look alike once sanitised stay apart
    return folder / f"{_sanitised(group)}-{digest}-{number}.lock"


def _sanitised(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:64]


def _place(folder: Path) -> str:
    """Tells apart all that may number its slots on its own: machines, containers, users, folders."""
    status = folder.stat()
    parts = [_first_line(Path(name)) for name in _MACHINE_FILES]
    parts += [str(os.getuid()), str(status.st_dev), str(status.st_ino)]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:12]


def _first_line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
