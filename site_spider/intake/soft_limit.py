"""The soft limit of memory: intake pauses above it, so that the hard one is not reached.

What is in flight goes on, and memory falls as it completes. With nothing in flight waiting would not help:
then seeds are polled all the same, a few at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from site_spider.outage import Outage

logger = logging.getLogger(__name__)

_FREE_SHARE = 0.05  # of the limit, before seeds are polled again


class SoftLimit:
    """SITE_MEMORY_SOFT_BYTES; 0 turns it off. The event loop's thread looks, any may ask."""

    def __init__(
        self, limit_bytes: int, used_bytes: Callable[[], int | None], in_flight: Callable[[], int]
    ) -> None:
        self.limit_bytes = limit_bytes
        self._used_bytes = used_bytes
        self._in_flight = in_flight
        self._over = Outage(
            logger,
            f"Memory is above SITE_MEMORY_SOFT_BYTES={limit_bytes}, no seeds are polled",
            f"Memory is below SITE_MEMORY_SOFT_BYTES={limit_bytes} again",
        )

    def look(self) -> None:
        """See how much is used; to be called now and then."""
        if not self.limit_bytes:
            return
        used = self._used_bytes() or 0
        if used > self.limit_bytes:
            self._over.goes_on(f"{used} bytes are used")
        elif used < self.limit_bytes * (1 - _FREE_SHARE):
            self._over.is_over()

    @property
    def keeps_intake(self) -> bool:
        """Whether no seeds are to be polled."""
        return bool(self._over) and self._in_flight() > 0
