"""Waits until a consumer group has nothing left to do.

Theory: the ends of the partitions are asked for before what is committed, so a discovered link that went
back into the log meanwhile can be missing from the ends while its parent is committed already. Two looks in
a row without lag and with the same ends are needed: at the second look at the ends nothing new was there,
and everything before them had been committed by then.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from site_spider import runtime
from site_spider.commands.progress_report import Report, line, without_owner
from site_spider.contracts.seed_log import Partition
from site_spider.errors import LogUnavailable
from site_spider.observe.progress import Rate
from site_spider.text import cut

_LOOK_SECONDS = 0.5
_OWNER_SECONDS = 15.0  # between two questions which partitions nobody has
_SAY_SECONDS = 5.0  # between two lines when they are not drawn over each other


class Voice(Protocol):
    """Tells how far it is."""

    def show(self, report: Report) -> None:
        """Another look was taken."""

    def interrupt(self) -> None:
        """Something else will be printed."""

    def end(self, report: Report) -> None:
        """It is done."""


class Watch:
    """Looks again and again; `complain` hears once when the log does not answer, and when it does again."""

    def __init__(
        self,
        look: Callable[[Rate], Report],
        complain: Callable[[str], None],
        voice: Voice,
        pause_seconds: float = _LOOK_SECONDS,
        owners: Callable[[], frozenset[Partition] | None] = frozenset,
    ) -> None:
        self._ask = look
        self._complain = complain
        self._voice = voice
        self._pause_seconds = pause_seconds
        self._rate = Rate()
        self._owners = owners  # partitions that no process has
        self._ask_owners_at = runtime.monotonic() + _OWNER_SECONDS
        self._without_owner = ""  # as it was said last

    def run(self) -> None:
        """Return when nothing is left. Raises TopicMissing."""
        before: Report | None = None
        while True:
            report = self._look()
            if report.total.is_done and before is not None and before.ends == report.ends:
                self._voice.end(report)
                return
            self._voice.show(report)
            self._look_for_owners(report)
            before = report if report.total.is_done else None
            if before is None:
                runtime.sleep(self._pause_seconds)

    def _look_for_owners(self, report: Report) -> None:
        """A rebalance takes a moment: what is said has been so for two looks."""
        if runtime.monotonic() < self._ask_owners_at:
            return
        self._ask_owners_at = runtime.monotonic() + _OWNER_SECONDS
        try:
            said = without_owner(replace(report, unowned=self._owners()))
        except LogUnavailable:
            return  # the next look says so
        if said and said == self._without_owner:
            self._say(said)
        self._without_owner = said

    def _look(self) -> Report:
        """The next report; waits while the log does not answer."""
        outage = False
        while True:
            try:
                report = self._ask(self._rate)
            except LogUnavailable as error:
                if not outage:
                    self._say(f"waiting: {error}")
                outage = True
                runtime.sleep(self._pause_seconds)
            else:
                if outage:
                    self._say(f"{report.address} answers again")
                return report

    def _say(self, message: str) -> None:
        self._voice.interrupt()
        self._complain(message)


class LiveLine:
    """One line of a terminal, drawn over."""

    def show(self, report: Report) -> None:
        """As in Voice."""
        text = cut(line(report), shutil.get_terminal_size().columns - 1)
        print(f"\r\x1b[K{text}", end="", flush=True)

    def interrupt(self) -> None:
        """As in Voice."""
        print("\r\x1b[K", end="", flush=True)

    def end(self, report: Report) -> None:
        """As in Voice."""
        self.show(report)
        print(flush=True)


class Lines:
    """Says what has changed, every few seconds at most, and how it ended."""

    def __init__(self, say: Callable[[Report], None], gap_seconds: float = _SAY_SECONDS) -> None:
        self._say = say
        self._gap_seconds = gap_seconds
        self._said: Report | None = None
        self._say_at = 0.0

    def show(self, report: Report) -> None:
        """As in Voice."""
        changed = self._said is None or self._said.total != report.total
        if changed and runtime.monotonic() >= self._say_at:
            self.end(report)
            self._say_at = runtime.monotonic() + self._gap_seconds

    def interrupt(self) -> None:
        """As in Voice."""

    def end(self, report: Report) -> None:
        """As in Voice."""
        self._said = report
        self._say(report)
