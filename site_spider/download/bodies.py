"""The large bodies in memory, from their arrival until they are read, within one limit.

Theory of operation. A small body is read in the turn in which it arrived and counts for nothing. A large
one counts from then on until its request has ended, four times its bytes: in text, a byte takes up to four.

- While the sum is at its limit, the scheduler gives out nothing (`has_room`) and what arrives is paused.
  The oldest body of all is never paused: it arrives, or has arrived and will be read, so the sum sinks.
- Large bodies are unpacked and read one after the other, in the order of arrival: each waits for its
  `turn`, and keeps it until its request has ended. It also waits while a sink has much to take, for what
  is made of a body is as large as the body. A turn that is kept for long is no longer waited for: a
  callback may wait for a download of its own.

All of it belongs to the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from scrapy import Request

from site_spider import runtime
from site_spider.download.large_blocks import give_back_large_blocks

LARGE_BYTES = 200_000  # of a body, from which on it counts
_WEIGHT = 4
_MANY_BYTES = 32_000_000  # of the sum, from which on the process gives back memory sooner
_LONGEST_TURN_SECONDS = 10.0

Pause = Callable[[bool], None]


class Bodies:
    """Who holds how much.

    `may_read` says whether the sinks have taken most of what was read before, `will_end` whether `ended`
    will be called for a request, `on_room` is called when a body is gone.
    """

    def __init__(
        self,
        max_bytes: int,
        may_read: Callable[[], bool],
        will_end: Callable[[Request], bool],
        on_room: Callable[[], None],
    ) -> None:
        self.bytes = 0  # the sum, weighed
        self.max_bytes = max_bytes
        self._may_read = may_read
        self._will_end = will_end
        self._on_room = on_room
        self._sizes: dict[Request, int] = {}  # in the order in which they became large
        self._arriving: dict[Request, Pause] = {}
        self._paused: set[Request] = set()
        self._waiting: deque[tuple[Request, asyncio.Future[None]]] = deque()
        self._reading: Request | None = None
        self._reading_since = 0.0
        self._have_been_many = False

    @property
    def has_room(self) -> bool:
        """Whether more bodies may be asked for."""
        return self.bytes < self.max_bytes

    def is_paused(self, request: Request) -> bool:
        """Whether its body is kept from arriving."""
        return request in self._paused

    def arriving(self, request: Request, size_bytes: int, pause: Pause) -> None:
        """So much of a body has arrived; `pause` stops it for a while, and lets it go on."""
        if size_bytes >= LARGE_BYTES:
            self._arriving[request] = pause
            self.weigh(request, size_bytes)

    def weigh(self, request: Request, size_bytes: int) -> None:
        """The body of a request has this size now."""
        if size_bytes < LARGE_BYTES:
            return
        weight = _WEIGHT * size_bytes
        self.bytes += weight - self._sizes.get(request, 0)
        self._sizes[request] = weight
        if self.bytes > _MANY_BYTES and not self._have_been_many:
            self._have_been_many = True
            give_back_large_blocks(beside_large_bodies=True)
        self._steer()

    def arrived(self, request: Request) -> None:
        """All of it is there, or no more will come."""
        self._arriving.pop(request, None)
        self._paused.discard(request)

    def handed_over(self, request: Request) -> None:
        """To whoever asked for it; who is none of ours for a request that the scheduler did not give out."""
        if not self._will_end(request):
            self.ended(request)

    def ended(self, request: Request) -> None:
        """Nothing of it is needed any more."""
        if request is self._reading:
            self._reading = None
        elif request not in self._sizes:
            return
        self.arrived(request)
        self.bytes -= self._sizes.pop(request, 0)
        self.look()
        self._on_room()

    async def turn(self, request: Request) -> None:
        """Wait until a large body may be unpacked and read."""
        if self._reading is request:
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, turn))
        self.look()
        await turn

    def look(self) -> None:
        """See whether a body may be read; to be called now and then, and when a sink has taken something."""
        self._steer()
        while self._waiting and self._may_read_next():
            request, turn = self._waiting.popleft()
            if not turn.done():  # else its task was cancelled
                self._reading, self._reading_since = request, runtime.monotonic()
                turn.set_result(None)

    def _may_read_next(self) -> bool:
        if self._reading is not None and runtime.monotonic() - self._reading_since < _LONGEST_TURN_SECONDS:
            return False
        return self._may_read()

    def _steer(self) -> None:
        """Pause what arrives, or let it go on."""
        if self.has_room and not self._paused:
            return
        oldest = next(iter(self._sizes), None)
        for request, pause in self._arriving.items():
            is_paused = not self.has_room and request is not oldest
            if is_paused != (request in self._paused):
                (self._paused.add if is_paused else self._paused.discard)(request)
                pause(is_paused)
