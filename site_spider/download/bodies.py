"""The large bodies in memory, from their arrival until they are read, within one limit.

Theory of operation. A small body is read in the turn in which it arrived and counts for nothing. A large
one counts from then on until its request has ended, four times its bytes: in text, a byte takes up to four.

- While the sum is at its limit, the scheduler gives out nothing (`has_room`) and what arrives is paused.
  The oldest body of all is never paused: it arrives, or has arrived and will be read, so the sum sinks.
  Nor is the oldest of those that a spider downloads itself: the callback of a large page may wait for it.
- Large bodies are unpacked and read one after the other, in the order of arrival: each waits for its
  `turn`, and keeps it until its request has ended. It also waits while a sink has much to take, for what
  is made of a body is as large as the body. A turn that is kept for long is no longer waited for: a
  callback may wait for a download of its own.

All of it belongs to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from io import BytesIO
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response, TextResponse
from scrapy.responsetypes import responsetypes

from site_spider import runtime
from site_spider.engine.background import Turns
from site_spider.engine.scrapy_parts import CompressionBase, part_of
from site_spider.ledger.completion import job_of
from site_spider.page.unpack import CodingCut, CodingError, CodingTooLarge, Pieces, unpacked

LARGE_BYTES = 200_000  # of a body, from which on it counts
_WEIGHT = 4
_MANY_BYTES = 32_000_000  # of the sum, from which on the process gives back memory sooner
_LONGEST_TURN_SECONDS = 10.0

Pause = Callable[[bool], None]


class Bodies:
    """Who holds how much.

    `may_read` says whether the sinks have taken most of what was read before, `on_room` is called when a
    body is gone. `ended` is called for every request of the engine; `will_end` says whether it still will be:
    a download of a spider's own goes on when the callback that waits for it runs out of time.
    """

    def __init__(
        self,
        max_bytes: int,
        may_read: Callable[[], bool],
        on_room: Callable[[], None],
        will_end: Callable[[Request], bool],
    ) -> None:
        self.bytes = 0  # the sum, weighed
        self.max_bytes = max_bytes
        self._may_read = may_read
        self._on_room = on_room
        self._will_end = will_end
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

    def arriving(self, request: Request, size_bytes: int, pause: Pause) -> None:
        """So much of a large body has arrived; `pause` stops it for a while, and lets it go on."""
        self._arriving[request] = pause
        self.weigh(request, size_bytes)

    def weigh(self, request: Request, size_bytes: int) -> None:
        """The body of a request has this size now. It does not count when its request has ended."""
        if not self._will_end(request):
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

    def ended(self, request: Request) -> None:
        """Nothing of it is needed any more."""
        if request is self._reading:
            self._reading = None
        elif request not in self._sizes:
            return
        if request in self._paused:  # and goes on, as the download of a callback that ran out of time
            self._arriving[request](False)
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
        if self.has_room and not self._paused:
            return
        go_on = (next(iter(self._sizes), None), next((one for one in self._arriving if job_of(one) is None), None))
        for request, pause in self._arriving.items():
            is_paused = not self.has_room and request not in go_on
            if is_paused != (request in self._paused):
                (self._paused.add if is_paused else self._paused.discard)(request)
                pause(is_paused)


# --- unpacking: decompresses bodies in steps and within bounds, in place of Scrapy's middleware ----------

logger = logging.getLogger(__name__)


class SteppedHttpCompression(CompressionBase):
    """Unpacks small bodies in turns of the event loop, and large ones in a thread, one after the other.

    With the settings, statistics and log lines of Scrapy's. Of a body that ends before its coding does, what
    came is taken, as Scrapy's does.
    """

    def __init__(self, stats: Any = None, *, crawler: Crawler) -> None:
        super().__init__(stats, crawler=crawler)
        self._crawler = crawler
        self._one_at_a_time = asyncio.Lock()

    def process_response(  # type: ignore[override] # may have to wait
        self, request: Request, response: Response
    ) -> Response | Coroutine[Any, Any, Response]:
        """As Scrapy's. What is not packed does not wait."""
        if request.method == "HEAD" or b"Content-Encoding" not in response.headers:
            return response
        return self._unpacked(request, response)

    async def _unpacked(self, request: Request, response: Response) -> Response:
        headers = response.headers
        codings, unknown = self.split_codings(headers.getlist("Content-Encoding"))
        if not codings and not unknown:
            return response  # as it came, with its header
        most = request.meta.get("download_maxsize", self.max_size)
        try:
            body = await self._body(request, response, [coding.decode("latin-1") for coding in codings], most)
        except CodingTooLarge as error:
            said = f"{error.size_bytes} bytes or more when unpacked, over the {most} of DOWNLOAD_MAXSIZE"
            logger.warning("%s has %s", response, said)
            raise IgnoreRequest(f"DownloadCancelledError: {said}") from error  # named as one that was not packed
        except CodingError:
            if response.status < 400:
                raise
            body = b""  # of an error the status counts: it is retried, and its host left alone
        self._tell(request, response, body, unknown)
        if unknown:
            headers["Content-Encoding"] = unknown
        else:
            del headers["Content-Encoding"]
        kind = responsetypes.from_args(headers=headers, url=response.url, body=body)
        changes: dict[str, Any] = {"body": body}
        if issubclass(kind, TextResponse):
            changes["encoding"] = None  # found anew in what was unpacked
        return response.replace(cls=kind, **changes)

    async def _body(self, request: Request, response: Response, codings: list[str], most: int) -> bytes:
        output = BytesIO()  # hands its bytes over without copying them
        try:
            async with self._one_at_a_time:  # a decoder may take 16 MB, whatever the size of its body
                pieces = unpacked(response.body, codings, most)
                is_small = await Turns.of_running_loop().run(_fill(output, pieces))  # many bodies come in one turn
            if not is_small:
                output = BytesIO()
                await self._fill_in_thread(output, request, response, codings, most)
        except CodingCut:
            if not output.tell():
                raise
            # as with Scrapy, and in browsers: what came is the page
        return output.getvalue()

    async def _fill_in_thread(
        self, output: BytesIO, request: Request, response: Response, codings: list[str], most: int
    ) -> None:
        bodies = part_of(self._crawler, Bodies)
        if bodies is not None:
            await bodies.turn(request)
        try:
            await asyncio.to_thread(output.writelines, unpacked(response.body, codings, most))
        finally:  # what came before a fault weighs as much
            if bodies is not None:
                job = job_of(request)
                is_kept = job is not None and job.exchanges  # as it was on the wire, too
                bodies.weigh(request, output.tell() + (len(response.body) if is_kept else 0))

    def _tell(self, request: Request, response: Response, body: bytes, unknown: list[bytes]) -> None:
        least = request.meta.get("download_warnsize", self.warn_size)
        if len(response.body) < least <= len(body):
            logger.warning(
                "%s body size after decompression (%d B) is larger than the download warning size (%d B).",
                response,
                len(body),
                least,
            )
        if unknown:
            self.warn_of_unknown(response, unknown)
        if self.stats:
            self.stats.inc_value("httpcompression/response_bytes", len(body))
            self.stats.inc_value("httpcompression/response_count")


def _fill(output: BytesIO, pieces: Pieces) -> Generator[None, None, bool]:
    """In steps; False when there is more of it than is done on the event loop."""
    for piece in pieces:
        output.write(piece)
        if output.tell() >= LARGE_BYTES:
            return False
        yield
    return True


# --- large blocks: says which blocks of memory the allocator returns to the system at once ---------------
# The allocator of glibc keeps what it has once given back for blocks of up to 32 MB, and pages of that size
# leave holes in it: a process that reads them one after the other grew by 100 MB. But a block that is
# returned is mapped anew the next time, page by page. The Kafka client takes 3.7 MB for each batch that it
# compresses: 1 ms of page faults, and up to a quarter of the CPU of a crawl. So these are kept until there
# are many large bodies.

_KEPT_AT_FIRST, _KEPT_BESIDE_LARGE_BODIES = 4_000_000, 400_000  # bytes of a block, at most
_KEPT_BYTES = 16_000_000  # free memory that is kept for these
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of mallopt, in malloc.h


def give_back_large_blocks(*, beside_large_bodies: bool) -> None:
    """From now on, for this process; does nothing where the allocator is another one."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _KEPT_BESIDE_LARGE_BODIES if beside_large_bodies else _KEPT_AT_FIRST)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
