"""Messages that the client has fetched and nobody has polled yet.

A client that is paused drops what it had fetched, and after it is resumed takes up to a second to fetch
again (0.6 s on average, confluent-kafka 2.16). A crawl with few seeds in flight pauses after each
handful, and would mostly wait. So a pause is ours: the messages of a paused partition are kept here, and the
client is stopped only when it has given many. Each is kept with the number of the assignment that it came in,
and is dropped with it, for its next owner gets it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from site_spider.contracts.seed_log import Message, Partition

MOST_MESSAGES = 500  # of a partition, before the client is stopped there
FEW_MESSAGES = 100  # then it goes on
MOST_BYTES = 16_000_000  # over all partitions

Number = Callable[[Partition], int | None]
Act = Callable[[Sequence[Partition]], None]


class KafkaPrefetch:
    """Between one client and its reader; the consumer's thread uses it."""

    def __init__(self, number: Number, stop: Act, go_on: Act) -> None:
        self._number = number  # of a partition's assignment, None when it is not ours
        self._stop, self._go_on = stop, go_on
        self._held: dict[Partition, deque[tuple[int, Message]]] = {}
        self._bytes = 0
        self._paused: dict[Partition, int] = {}  # with the number of the assignment that it was said in
        self._stopped: dict[Partition, int] = {}

    def __contains__(self, partition: object) -> bool:
        """Whether messages of this partition wait here."""
        return partition in self._held

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Hand out nothing of these; of a partition that is not ours nothing is noted."""
        for partition in partitions:
            if (number := self._number(partition)) is not None:
                self._paused[partition] = number

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Hand them out again."""
        for partition in partitions:
            self._paused.pop(partition, None)

    def put(self, message: Message, number: int | None) -> None:
        """The client gave a message, in this assignment of its partition."""
        if number is not None and self._number(message.partition) == number:
            self._held.setdefault(message.partition, deque()).append((number, message))
            self._bytes += _size(message)

    def take(self, limit: int) -> list[Message]:
        """Up to `limit` messages, of each partition in order; the partitions take turns to be first."""
        batch: list[Message] = []
        for partition in list(self._held):
            held = self._held[partition]
            number = self._number(partition)
            while held and held[0][0] != number:
                self._bytes -= _size(held.popleft()[1])
            before = len(batch)
            while held and len(batch) < limit and self._paused.get(partition) != number:
                batch.append(held.popleft()[1])
                self._bytes -= _size(batch[-1])
            if len(batch) > before or not held:
                del self._held[partition]
                if held:
                    self._held[partition] = held  # behind the others
        self._balance()
        return batch

    def _balance(self) -> None:
        """Stop the client where enough waits, and let it go on where little is left."""
        for partition, held in self._held.items():
            number = held[0][0]
            is_much = len(held) >= MOST_MESSAGES or self._bytes >= MOST_BYTES
            if is_much and self._stopped.get(partition) != number:
                self._stopped[partition] = number
                self._stop([partition])
        for partition, number in list(self._stopped.items()):
            if self._number(partition) != number:
                del self._stopped[partition]  # a new assignment begins with a client that goes on
            elif self._is_little(len(self._held.get(partition, ()))):
                del self._stopped[partition]
                self._go_on([partition])

    def _is_little(self, held: int) -> bool:
        """One of which nothing is held goes on whatever the others hold: they may be paused for long."""
        return not held or (held < FEW_MESSAGES and self._bytes < MOST_BYTES)


def _size(message: Message) -> int:
    return len(message.value or b"") + len(message.key or b"")
