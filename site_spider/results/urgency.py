"""Whether results are sent at once instead of waiting for a full batch."""

from __future__ import annotations

from collections.abc import Callable


class Urgency:
    """True while one of its reasons holds: few seeds are in flight and others wait for them, or a
    partition is being revoked.
    """

    def __init__(self) -> None:
        self._reasons: list[Callable[[], bool]] = []

    def add(self, *reasons: Callable[[], bool]) -> None:
        """From now on these count, too."""
        self._reasons += reasons

    def __call__(self) -> bool:
        """Whether one of the reasons holds."""
        return any(reason() for reason in self._reasons)
