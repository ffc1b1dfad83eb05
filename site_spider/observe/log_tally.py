"""Counts warnings and errors by the logger that said them."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any, Final

MOST_LOGGERS: Final = 10
_LONGEST: Final = 60  # characters of a name
_OTHER: Final = "other"


class LogTally(logging.Handler):
    """Of all loggers, from `open` to `close`. Any thread."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._counts: Counter[tuple[str, str]] = Counter({("warning", _OTHER): 0, ("error", _OTHER): 0})
        self._names: set[str] = set()

    def open(self) -> None:
        """Count from now on."""
        logging.getLogger().addHandler(self)

    def close(self) -> None:
        """Count no more."""
        logging.getLogger().removeHandler(self)
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """As logging asks, one record at a time."""
        level = "warning" if record.levelno < logging.ERROR else "error"
        self._counts[level, self._named(record.name[:_LONGEST])] += 1

    def _named(self, name: str) -> str:
        if name in self._names:
            return name
        if len(self._names) >= MOST_LOGGERS:
            return _OTHER
        self._names.add(name)
        return name

    def document(self) -> list[dict[str, Any]]:
        """As JSON."""
        counts = sorted(self._counts.copy().items())
        return [{"level": level, "logger": logger, "count": count} for (level, logger), count in counts]
