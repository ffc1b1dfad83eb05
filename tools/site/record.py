"""The site's record of what was asked of it: one line of JSON for each request."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, TextIO


class Entry(NamedTuple):
    """One request that came to the site."""

    time: float  # when the request was complete
    sent: float  # when the answer was, or the client was found gone
    host: str
    port: int
    method: str
    path: str  # with the query
    kind: str
    status: int | None  # None when no status line was sent
    body_bytes: int
    attempt: int  # requests to this URL before
    in_progress: int  # requests of this host under way, this one included
    user_agent: str | None
    cookie: str | None

    @property
    def url(self) -> str:
        """The URL that was asked for."""
        return f"http://{self.host}:{self.port}{self.path}"


class Recorder:
    """Collects lines and writes them when told to."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lines: list[str] = []

    def add(self, entry: Entry) -> None:
        """Keep one entry until the next flush."""
        self._lines.append(json.dumps(entry._asdict()))

    def flush(self) -> None:
        """Write what was kept, in whole lines."""
        if self._lines:
            self._file.write("\n".join(self._lines) + "\n")
            self._file.flush()
            self._lines.clear()


def read_record(path: Path) -> list[Entry]:
    """All whole lines written so far."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [_entry(json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]


def _entry(values: dict[str, Any]) -> Entry:
    return Entry(**values)


def count_by_url(entries: list[Entry]) -> Counter[str]:
    """How often each URL was asked for."""
    return Counter(entry.url for entry in entries)
