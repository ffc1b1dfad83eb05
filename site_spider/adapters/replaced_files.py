"""Notices that files were replaced while the process runs: certificates and keys."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from site_spider import runtime

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
