"""What happened to one seed and when, as spans: poll, wait, download, parse, sinks, commit.

Pure. Times are Unix times in nanoseconds.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_MOST_DOWNLOADS: Final = 50  # of the tree of a seed


class Span(NamedTuple):
    """A step of a seed."""

    name: str
    began: int
    ended: int


class SeedTrace:
    """Filled in while a seed is under way."""

    __slots__ = ("_downloads", "_written", "arrived", "began", "completed", "outcome", "written_to_log")

    def __init__(self, written_to_log: int, arrived: int) -> None:
        self.written_to_log = min(written_to_log, arrived) or arrived
        self.arrived = arrived
        self.began = 0
        self.completed = 0
        self.outcome = ""
        self._downloads: list[Span] = []
        self._written = 0

    def begin(self, now: int) -> None:
        """Its first request is given out."""
        self.began = self.began or now

    def downloaded(self, now: int, nanoseconds: int) -> None:
        """A request of its tree has come back."""
        if len(self._downloads) < _MOST_DOWNLOADS:
            self._downloads.append(Span("download", now - nanoseconds, now))

    def parsed(self, now: int) -> None:
        """A result of its tree goes to the sinks."""
        self._written = now

    def complete(self, now: int, outcome: str) -> None:
        """All its results are acknowledged."""
        self.completed, self.outcome = now, outcome

    def spans(self, committed: int) -> list[Span]:
        """The seed as a whole first, then its steps; what did not happen is left out."""
        began = self.began or self.completed
        found = [
            Span("seed", self.arrived, committed),
            Span("poll", self.written_to_log, self.arrived),
            Span("wait", self.arrived, began),
            *self._downloads,
        ]
        came_back = self._downloads[-1].ended if self._downloads else began
        parsed = max(self._written, came_back)
        if self._downloads:
            found.append(Span("parse", came_back, parsed))
        return [
            *found,
            Span("sinks", parsed, max(parsed, self.completed)),
            Span("commit", self.completed, committed),
        ]
