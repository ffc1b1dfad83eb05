"""Which hosts are this process'."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import confluent_kafka

from site_spider.contracts.seed_log import Partition
from site_spider.engine.background import Background
from site_spider.errors import LogUnavailable
from site_spider.frontier.spill import TopicPartitions
from site_spider.ledger.ledger import Ledger


def _raise(error: BaseException) -> None:
    raise error


HOSTS = [f"host{number}.test" for number in range(200)]


def owned_by(ownership: TopicPartitions) -> Callable[[str], bool]:
    return lambda host: ownership.owns(host, "seeds")


def shared(assigned: list[int], count: int = 4) -> tuple[TopicPartitions, Ledger]:
    ledger = Ledger()
    for number in assigned:
        ledger.assign(Partition("seeds", number), None)
    partitions = TopicPartitions(["seeds"], ledger, lambda _topic: count, Background(_raise))
    asyncio.run(partitions.ask())
    return partitions, ledger


def test_a_host_belongs_where_producers_send_its_seeds() -> None:
    """By the partitioner of Kafka's own clients; each host to one process of the group."""
    ours, _ = shared([0, 2])
    theirs, _ = shared([1, 3])
    for host in HOSTS:
        number = confluent_kafka.murmur2(host.encode(), 4)
        assert ours.owns(host, "seeds") is (number in (0, 2))
        assert theirs.owns(host, "seeds") is not ours.owns(host, "seeds")


def test_it_follows_the_assignment_at_once() -> None:
    """Also between two looks."""
    ownership, ledger = shared([0, 1, 2, 3])
    assert all(map(owned_by(ownership), HOSTS))
    ledger.revoke(Partition("seeds", 0))
    assert not all(map(owned_by(ownership), HOSTS))


def test_a_look_tells_when_hosts_have_changed_hands() -> None:
    """Then what waits is looked through, and only then."""
    ownership, ledger = shared([0])
    assert ownership.have_hosts_moved()
    assert not ownership.have_hosts_moved()
    ledger.assign(Partition("seeds", 1), None)
    assert ownership.have_hosts_moved()
    assert not ownership.have_hosts_moved()


def test_all_hosts_are_ours_while_the_partitions_are_not_known() -> None:
    """A topic that does not exist, a broker that does not answer."""

    def away(_topic: str) -> int:
        raise LogUnavailable("away")

    for count in (away, lambda _topic: 0):
        partitions = TopicPartitions(["seeds"], Ledger(), count, Background(_raise))
        asyncio.run(partitions.ask())
        assert all(map(owned_by(partitions), HOSTS))
