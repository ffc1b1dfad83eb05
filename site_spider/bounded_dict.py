"""A dict that forgets, so that what hosts and pages make it remember is bounded."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, TypeVar

from site_spider import runtime

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V]):
    """Holds at most `most` entries; the one that was set longest ago goes first.

    Any thread may write. Who goes through it while others write takes a copy first.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._lock = runtime.RLock()  # popitem calls __delitem__

    def __setitem__(self, key: K, value: V) -> None:
        with self._lock:
            super().__setitem__(key, value)
            self.move_to_end(key)
            if len(self) > self._most:
                super().__delitem__(next(iter(self)))

    def __delitem__(self, key: K) -> None:
        with self._lock:
            super().__delitem__(key)

    def pop(self, key: K, *default: Any) -> Any:
        """As a dict's."""
        with self._lock:
            return super().pop(key, *default)

    def popitem(self, last: bool = True) -> tuple[K, V]:
        """As an OrderedDict's."""
        with self._lock:
            return super().popitem(last)
