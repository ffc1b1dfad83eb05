"""The cache of robots.txt rules, and what they allow (RFC 9309).

Theory of operation. An origin (scheme, host, port) is

- *unknown*: its robots.txt has to be fetched, once, however many requests ask;
- *pending*: that is under way;
- *known*: there are rules. They are used for `age_seconds`, and beyond that for as long as
  the file cannot be fetched anew;
- *later*: the file could not be fetched and there are no rules; it is tried again after a
  pause, which doubles;
- *unreachable*: that has gone on for `wait_seconds`, or waiting cannot help. All is forbidden
  until the next attempt succeeds.

The origins asked for least recently are forgotten first, beyond a count and a size.
Time comes in as an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, NamedTuple, TypeVar

from site_spider.frontier.retry.rules import pause_seconds

R = TypeVar("R")


class State(Enum):
    """Of one origin; see the theory of operation."""

    UNKNOWN = auto()
    PENDING = auto()
    KNOWN = auto()
    LATER = auto()
    UNREACHABLE = auto()


class Look(NamedTuple, Generic[R]):
    """What is known of an origin now."""

    state: State
    rules: R | None = None  # when KNOWN
    until: float = 0.0  # when LATER: the moment of the next attempt
    reason: str = ""  # when LATER or UNREACHABLE: why the file could not be fetched


@dataclass(frozen=True, slots=True)
class RobotsLimits:
    """How long rules count, how long requests wait for them, and how many are kept."""

    count: int = 2000
    size_bytes: int = 20_000_000  # of the files; what is parsed of them takes several times that
    age_seconds: float = 86_400.0
    wait_seconds: float = 60.0
    first_pause_seconds: float = 2.0
    longest_pause_seconds: float = 120.0


class _Origin(Generic[R]):
    __slots__ = (
        "attempts", "failing_since", "gave_up", "is_pending", "moment", "reason", "rules", "size_bytes",
    )  # fmt: skip

    def __init__(self) -> None:
        self.rules: R | None = None
        self.size_bytes = 0
        self.is_pending = False
        self.moment = 0.0  # of the next attempt
        self.attempts = 0  # that failed since the last success
        self.failing_since = 0.0
        self.gave_up = False
        self.reason = ""


class RobotsCache(Generic[R]):
    """The origins; `R` is what rules are."""

    def __init__(self, limits: RobotsLimits) -> None:
        self._limits = limits
        self._origins: OrderedDict[str, _Origin[R]] = OrderedDict()
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._origins)

    def look(self, name: str, now: float) -> Look[R]:
        """What is known of an origin; on UNKNOWN the caller fetches, and says so with `begin`."""
        origin = self._origins.get(name)
        if origin is None:
            return Look(State.UNKNOWN)
        self._origins.move_to_end(name)
        if origin.is_pending:
            return Look(State.PENDING)
        if now >= origin.moment:
            return Look(State.UNKNOWN)
        if origin.rules is not None:
            return Look(State.KNOWN, origin.rules)
        if origin.gave_up:
            return Look(State.UNREACHABLE, reason=origin.reason)
        return Look(State.LATER, until=origin.moment, reason=origin.reason)

    def begin(self, name: str) -> None:
        """The file is being fetched."""
        origin = self._origins.setdefault(name, _Origin())
        origin.is_pending = True

    def found(self, name: str, rules: R, size_bytes: int, now: float) -> None:
        """The file was fetched, or there is none; the rules replace what was known."""
        origin = self._ended(name)
        self._size_bytes += size_bytes - origin.size_bytes
        origin.rules, origin.size_bytes = rules, size_bytes
        origin.moment = now + self._limits.age_seconds
        origin.attempts, origin.gave_up = 0, False
        self._shrink(name)

    def failed(self, name: str, reason: str, now: float, jitter: float, *, may_pass: bool) -> None:
        """The file could not be fetched; `may_pass` when another attempt may find it."""
        limits, origin = self._limits, self._ended(name)
        if not origin.attempts:
            origin.failing_since = now
        origin.attempts += 1
        origin.reason = reason
        pause = pause_seconds(
            origin.attempts, limits.first_pause_seconds, limits.longest_pause_seconds, jitter
        )
        last = origin.failing_since + limits.wait_seconds
        origin.gave_up = not may_pass or now >= last
        origin.moment = now + pause if origin.gave_up or origin.rules is not None else min(now + pause, last)
        self._shrink(name)

    def _ended(self, name: str) -> _Origin[R]:
        origin = self._origins.setdefault(name, _Origin())
        self._origins.move_to_end(name)
        origin.is_pending = False
        return origin

    def _shrink(self, newest: str) -> None:
        """Forget the oldest; what is being fetched is asked for, and stays, as does the newest."""
        while len(self._origins) > self._limits.count or self._size_bytes > self._limits.size_bytes:
            oldest = next((name for name, origin in self._origins.items() if not origin.is_pending), newest)
            if oldest == newest:
                return
            self._size_bytes -= self._origins.pop(oldest).size_bytes
