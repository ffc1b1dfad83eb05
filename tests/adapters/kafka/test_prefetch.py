"""Messages between the client and whoever polls."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from site_spider.adapters.kafka.consumer import FEW_MESSAGES, MOST_BYTES, MOST_MESSAGES, KafkaPrefetch
from site_spider.contracts.seed_log import Message, Partition

A, B = Partition("seeds", 0), Partition("seeds", 1)


class Client:
    """What the prefetch does to the client, and which assignments there are."""

    def __init__(self) -> None:
        self.numbers: dict[Partition, int] = {A: 1, B: 1}
        self.stopped: set[Partition] = set()
        self.prefetch = KafkaPrefetch(self.numbers.get, self._stop, self._go_on)

    def _stop(self, partitions: Sequence[Partition]) -> None:
        assert not self.stopped & set(partitions)
        self.stopped |= set(partitions)

    def _go_on(self, partitions: Sequence[Partition]) -> None:
        assert self.stopped >= set(partitions)
        self.stopped -= set(partitions)

    def give(self, partition: Partition, offsets: range, value: bytes = b"v") -> None:
        for offset in offsets:
            message = Message(partition, offset, b"k", value)
            self.prefetch.put(message, self.numbers.get(partition))

    def take(self, limit: int = 1_000_000) -> list[tuple[int, int]]:
        return [(message.partition.number, message.offset) for message in self.prefetch.take(limit)]


@pytest.fixture
def client() -> Client:
    return Client()


def test_messages_come_in_order_and_up_to_the_limit(client: Client) -> None:
    client.give(A, range(3))
    assert A in client.prefetch
    assert client.take(2) == [(0, 0), (0, 1)]
    assert client.take(2) == [(0, 2)]
    assert A not in client.prefetch
    assert client.take() == []


def test_partitions_take_turns(client: Client) -> None:
    client.give(A, range(2))
    client.give(B, range(2))
    assert client.take(1) == [(0, 0)]
    assert client.take(1) == [(1, 0)]
    assert client.take() == [(0, 1), (1, 1)]


def test_a_paused_partition_gives_nothing_until_it_is_resumed(client: Client) -> None:
    client.give(A, range(2))
    client.give(B, range(1))
    client.prefetch.pause([A])
    assert client.take() == [(1, 0)]
    client.give(A, range(2, 3))
    assert client.take() == []
    client.prefetch.resume([A])
    assert client.take() == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize("change", ["lost", "assigned anew"])
def test_what_came_in_an_earlier_assignment_is_dropped(client: Client, change: str) -> None:
    client.give(A, range(2))
    client.prefetch.pause([A])
    if change == "lost":
        del client.numbers[A]
    else:
        client.numbers[A] = 2
        client.give(A, range(1))
    assert client.take() == ([] if change == "lost" else [(0, 0)])
    assert A not in client.prefetch


def test_a_message_of_a_partition_that_left_meanwhile_is_not_kept(client: Client) -> None:
    client.prefetch.put(Message(A, 0, None, b"v"), None)
    client.prefetch.put(Message(A, 0, None, b"v"), 7)
    assert client.take() == []


def test_the_client_stops_where_much_waits_and_goes_on_where_little_is_left(client: Client) -> None:
    client.prefetch.pause([A])
    client.give(A, range(MOST_MESSAGES))
    client.give(B, range(1))
    assert client.take() == [(1, 0)]
    assert client.stopped == {A}
    client.prefetch.resume([A])
    assert len(client.take(MOST_MESSAGES - FEW_MESSAGES)) == MOST_MESSAGES - FEW_MESSAGES
    assert client.stopped == {A}
    client.take(1)
    assert client.stopped == set()


def test_the_client_stops_when_many_bytes_wait(client: Client) -> None:
    client.prefetch.pause([A])
    client.give(A, range(2), b"v" * (MOST_BYTES // 2))
    assert client.take() == []
    assert client.stopped == {A}
    client.prefetch.resume([A])
    assert client.take(1) == [(0, 0)]
    assert client.stopped == set()


def test_a_new_assignment_finds_the_client_going_on(client: Client) -> None:
    """The client is resumed with it, and may be stopped again."""
    client.prefetch.pause([A])
    client.give(A, range(MOST_MESSAGES))
    client.take()
    client.numbers[A] = 2
    client.stopped.clear()
    client.give(A, range(MOST_MESSAGES))
    client.prefetch.pause([A])
    client.take()
    assert client.stopped == {A}
