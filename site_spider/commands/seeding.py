"""Produces seeds from lines, with a bounded number under way, and counts them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from site_spider.commands.seed_lines import Line
from site_spider.contracts.seed_log import MessagePlace, Producer
from site_spider.errors import LogUnavailable, SeedError, SinkRejected
from site_spider.seed.seed import seed_message

MOST_UNDER_WAY = 5_000
MOST_BYTES_UNDER_WAY = 32_000_000


class _Sent(NamedTuple):
    number: int
    size_bytes: int
    future: Future[MessagePlace]


class Seeding:
    """Takes lines, one after another. `complain(number, reason)` hears of every line that was refused,
    and once of each field that was moved into meta.

    When the log gives up on a line, `take` and `finish` raise LogUnavailable, which names it.
    """

    def __init__(  # noqa: PLR0913 - what lines leave out
        self,
        producer: Producer,
        topic: str,
        complain: Callable[[int, str], None],
        *,
        task_id: str | None = None,
        method: str | None = None,
        not_extract: bool = False,
        needs_url: bool = True,
        settled: Callable[[MessagePlace], None] = lambda _place: None,
        before: Callable[[], None] | None = None,
    ) -> None:
        self._settled = settled  # hears where each seed is
        self._before = before  # is called before each seed is sent
        self.produced = 0
        self.refused = 0
        self._send = partial(producer.send, topic)
        self._complain = complain
        self._message = partial(
            seed_message, task_id=task_id, method=method, not_extract=not_extract, needs_url=needs_url
        )
        self._moved: set[str] = set()
        self._under_way: deque[_Sent] = deque()
        self._bytes = 0

    def take(self, line: Line) -> None:
        """Produce the seed of a line; waits while too many are under way."""
        try:
            key, value = self._message(line.text(), moved=partial(self._say_moved, line.number))
        except SeedError as error:
            self._refuse(line.number, error.reason)
            return
        if self._before is not None:
            self._before()
        self._under_way.append(_Sent(line.number, len(value), self._send(key, value)))
        self._bytes += len(value)
        while self._under_way and (self._is_full() or self._under_way[0].future.done()):
            self._settle()

    def finish(self) -> None:
        """Wait until the log has answered to all that is under way."""
        while self._under_way:
            self._settle()

    def abandon(self, timeout_seconds: float) -> None:
        """Count what is durable after all, once something went wrong."""
        while self._under_way:
            future = self._under_way.popleft().future
            try:
                error = future.exception(timeout_seconds)
            except TimeoutError:
                return
            if error is None:
                self.produced += 1
                self._settled(future.result())

    def _say_moved(self, number: int, names: list[str]) -> None:
        for name in names:
            if name not in self._moved:
                self._moved.add(name)
                self._complain(
                    number, f"{name} stands beside the URL; it is taken as meta.{name}, here and below"
                )

    def _is_full(self) -> bool:
        return len(self._under_way) > MOST_UNDER_WAY or self._bytes > MOST_BYTES_UNDER_WAY

    def _settle(self) -> None:
        """Wait for the oldest."""
        sent = self._under_way.popleft()
        self._bytes -= sent.size_bytes
        try:
            place = sent.future.result()
        except SinkRejected as error:
            self._refuse(sent.number, str(error))
        except LogUnavailable as error:
            raise LogUnavailable(f"line {sent.number} could not be produced: {error}") from error
        else:
            self.produced += 1
            self._settled(place)

    def _refuse(self, number: int, reason: str) -> None:
        self.refused += 1
        self._complain(number, reason)
