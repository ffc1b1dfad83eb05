"""How often a member that was expelled may join its group again.

Servers that come back from an outage may fence a member by an earlier membership of its own, the answer
to which never arrived: joining again helps at once. Two processes with one name would fence each other for
ever, so there is a limit. Beyond it the process ends, and is started again with growing pauses.
"""

from __future__ import annotations

from collections import deque

MOST = 3
WINDOW_SECONDS = (
    120.0  # many session timeouts: each of two with one name is fenced a heartbeat after it joined
)


class Rejoins:
    """Of one member; `now` is any clock that does not go backwards."""

    def __init__(self) -> None:
        self._moments: deque[float] = deque()

    def may(self, now: float) -> bool:
        """Whether it may join again now; counts when it may."""
        while self._moments and self._moments[0] <= now - WINDOW_SECONDS:
            self._moments.popleft()
        if len(self._moments) >= MOST:
            return False
        self._moments.append(now)
        return True
