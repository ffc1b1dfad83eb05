"""Whether a record that is refused for its size is at fault, or the server at the moment.

A proxy in trouble answers 413 to requests of any size, and records would be set aside for nothing.
So a record is at fault when it is refused alone, twice, while a smaller request passes in between and no
larger one passed lately.
"""

from __future__ import annotations

from collections import deque

_REMEMBERED_SECONDS = 60.0  # a limit may be lowered meanwhile


class Sizes:
    """Of requests that passed. `now` is any clock that does not go backwards."""

    def __init__(self) -> None:
        self._passed: deque[tuple[float, int]] = deque()  # the sizes descend
        self._last_at = float("-inf")

    def passed(self, size_bytes: int, now: float) -> None:
        """A request of this size was taken."""
        while self._passed and self._passed[-1][1] <= size_bytes:
            self._passed.pop()
        self._passed.append((now, size_bytes))
        self._last_at = now

    def is_largest(self, size_bytes: int, now: float) -> bool:
        """Whether all that passed lately is smaller."""
        while self._passed and self._passed[0][0] < now - _REMEMBERED_SECONDS:
            self._passed.popleft()
        return not self._passed or size_bytes > self._passed[0][1]

    def has_passed_since(self, moment: float) -> bool:
        """Whether the server has taken anything since then."""
        return self._last_at > moment
