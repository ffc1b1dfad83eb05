"""How much a crawl holds in memory, against its limits.

Three things count: requests that wait, seeds in flight (their messages stay in memory until
they are complete), and what is on its way to the seed topic and not acknowledged there.

Theory of operation. At a limit nothing is dropped and nothing stands still that would lower
the load: links go to the seed topic instead of waiting here (`is_full`), no more seeds are
polled (`seed_room`) until a quarter is free again, and when the topic takes no links,
no more pages are asked for (`may_download`). What waits is served all the while, so a
process whose whole memory is links of open seeds makes progress.
"""

from __future__ import annotations

from site_spider.seed.fields import MAX_MESSAGE_BYTES

MAX_SEED_BYTES = 3 * MAX_MESSAGE_BYTES  # a message, and its body in an encoding that takes twice as much

_FREE_SHARE = 0.25  # of a limit, before seeds are polled again
_MOST_SPILLING = 5_000  # on their way to the topic; beyond it no page is asked for
_MOST_SPILLING_BYTES = 32_000_000


class Load:
    """The sums. The event loop's thread changes them; any thread may read."""

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self._is_full_for_seeds = False
        self.requests = 0
        self.request_bytes = 0
        self.seed_bytes = 0
        self.spilling = 0
        self.spilling_bytes = 0

    @property
    def bytes(self) -> int:
        """All of it, as estimated."""
        return self.request_bytes + self.seed_bytes + self.spilling_bytes

    @property
    def is_full(self) -> bool:
        """Whether links go to the seed topic rather than wait here."""
        return self.requests >= self.max_requests or self.bytes >= self.max_bytes

    @property
    def may_download(self) -> bool:
        """False while the seed topic does not take what is sent to it."""
        return self.spilling < _MOST_SPILLING and self.spilling_bytes < _MOST_SPILLING_BYTES

    def seed_capacity(self) -> int:
        """How many seeds of any size may be polled at once into an empty memory."""
        return max(1, self.max_bytes // MAX_SEED_BYTES)

    def seed_room(self) -> int:
        """How many seeds of any size may be polled now."""
        if self._is_full_for_seeds or self.is_full:
            return 0
        return max(1, (self.max_bytes - self.bytes) // MAX_SEED_BYTES)

    def look(self) -> None:
        """See whether seeds may be polled again; to be called now and then."""
        if self.is_full:
            self._is_full_for_seeds = True
        elif self._is_full_for_seeds:
            most = 1 - _FREE_SHARE
            self._is_full_for_seeds = (
                self.requests > most * self.max_requests or self.bytes > most * self.max_bytes
            )

    def add_request(self, size_bytes: int) -> None:
        """A request waits."""
        self.requests += 1
        self.request_bytes += size_bytes

    def remove_request(self, size_bytes: int) -> None:
        """It waits no more."""
        self.requests -= 1
        self.request_bytes -= size_bytes

    def add_seed(self, size_bytes: int) -> None:
        """A seed is in flight."""
        self.seed_bytes += size_bytes

    def remove_seed(self, size_bytes: int) -> None:
        """It has ended, or is another process's."""
        self.seed_bytes -= size_bytes

    def add_sending(self, size_bytes: int) -> None:
        """A message is on its way to the seed topic."""
        self.spilling += 1
        self.spilling_bytes += size_bytes

    def remove_sending(self, size_bytes: int) -> None:
        """It has arrived, or cannot."""
        self.spilling -= 1
        self.spilling_bytes -= size_bytes
