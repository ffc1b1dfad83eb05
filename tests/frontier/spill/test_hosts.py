"""Which hosts are this process', and long trees: what one death repeats is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import confluent_kafka

from site_spider.contracts.seed_log import Partition
from site_spider.engine.background import Background
from site_spider.errors import LogUnavailable
from site_spider.frontier.spill import TopicPartitions
from site_spider.ledger.ledger import Ledger
from site_spider.ledger.metadata import Suspicion
from tests.frontier.spill.test_spill import messages
from tests.in_process.engine import crawl
from tests.in_process.linked_site import Site, seed, site
from tests.intake.quarantine.test_deaths import leave_behind


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


# --- trees -----------------------------------------------------------------------------------------------

__all__ = ["site"]

LINKS = 30


def has_fan(site: Site) -> None:
    """/root links to all others, each of which links to one of its own."""
    names = [f"{number}" for number in range(LINKS)]
    site.has("root", *names)
    for name in names:
        site.has(name, "root", f"{name}-leaf")
        site.has(f"{name}-leaf", "root")


def test_links_beyond_the_pages_of_a_tree_are_seeds_of_their_own(tmp_path: Path, site: Site) -> None:
    has_fan(site)
    found = crawl(tmp_path, [seed("root")], SITE_TREE_MAX_PAGES=11)
    assert len(site.visits) == 2 * LINKS + 1
    assert set(site.visits.values()) == {1}
    assert len(messages(tmp_path)) >= 1 + LINKS - 10
    assert found.seeds["completed_with_result"] == len(messages(tmp_path))
    assert found.lag == 0


def test_a_small_tree_stays_in_memory(tmp_path: Path, site: Site) -> None:
    has_fan(site)
    crawl(tmp_path, [seed("root")], SITE_TREE_MAX_PAGES=2 * LINKS + 1)
    assert len(messages(tmp_path)) == 1
    assert len(site.visits) == 2 * LINKS + 1


def test_a_tree_that_was_under_way_at_a_death_keeps_no_links(tmp_path: Path, site: Site) -> None:
    """Each is a seed, so that the next death counts for it alone."""
    has_fan(site)
    leave_behind(tmp_path, [seed("root")], Suspicion(1))
    found = crawl(tmp_path, [])
    assert set(site.visits.values()) == {1}
    assert len(messages(tmp_path)) >= 1 + LINKS
    assert found.lag == 0
