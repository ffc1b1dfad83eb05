"""Sees to it that the group gives each partition to somebody.

Theory of operation. In a cooperative rebalance a member first gives up what others are to have, and then
joins again, so that the others get it. A static member that is killed between the two and comes back
within its session gets its old assignment without a rebalance (KIP-345): what it had given up then
belongs to nobody, until somebody joins or leaves. So a member owes the group a join when the group knows
its name already, and does not say that each partition has an owner; it pays by leaving and joining again,
which makes every version of Kafka rebalance. While the group says that each partition has an owner
nothing is owed: a later rebalance waits for this member.

Members look at the assignment now and then besides: a process of an earlier release may owe a join. Who has
the fewest partitions pays; when that does not help, the next one. With the protocol `consumer` the servers
share the partitions out without the members' help (KIP-848); there a member only says what it sees.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from struct import error as StructError  # noqa: N812 - a class
from struct import unpack_from
from types import SimpleNamespace
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from site_spider.contracts.seed_log import Partition

logger = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
PATIENCE_SECONDS = 30.0  # in a rebalance members let seeds end before they give partitions up
_ANSWER_SECONDS = 3.0  # before a member joins
_LOOK_ANSWER_SECONDS = 1.0
_SETTLED = "Stable"
_NO_GROUP = SimpleNamespace(members=(), state="Dead", error=None)


@dataclass(frozen=True)
class GroupAssignment:
    """Who has which partitions of some topics, as the group's coordinator says."""

    owned: Mapping[str, frozenset[Partition]]  # by member id, which begins with the name of a static member
    partitions: frozenset[Partition]  # of the topics
    is_settled: bool  # no rebalance is under way

    @property
    def unowned(self) -> frozenset[Partition]:
        """What nobody has; while a rebalance is under way everything."""
        return self.partitions.difference(*self.owned.values())

    def knows(self, name: str) -> bool:
        """Whether there is a static member of this name."""
        return any(member.startswith(f"{name}-") for member in self.owned)


def members_of(admin: AdminClient, group: str, seconds: float) -> list[Any] | None:
    """The members of a group of the protocol `classic`; None when the servers do not tell.

    Not by describe_consumer_groups: while a coordinator is away, its answer may abort the whole process
    (librdkafka's rd_kafka_enq_once_del_source_return, measured with confluent-kafka 2.16).
    """
    found = _described(admin, group, seconds)
    return None if found is None else list(found.members)


def assignment_of(
    admin: AdminClient, group: str, topics: Sequence[str], seconds: float
) -> GroupAssignment | None:
    """Who has what; waits for the answer. None when the servers do not tell."""
    found = _described(admin, group, seconds)
    if found is None:
        return None
    try:
        # of these alone: a cluster may have thousands
        known = {topic: admin.list_topics(topic, timeout=seconds).topics[topic] for topic in topics}
    except KafkaException as error:
        logger.debug("Topics are not told: %s", error)
        return None
    partitions = frozenset(
        Partition(topic, number) for topic, found_topic in known.items() for number in found_topic.partitions
    )
    return GroupAssignment(
        owned={member.id: owned_by(member.assignment or b"") & partitions for member in found.members},
        partitions=partitions,
        is_settled=found.state == _SETTLED,
    )


def _described(admin: AdminClient, group: str, seconds: float) -> Any | None:
    try:
        found = admin.list_groups(group, timeout=seconds)
    except (KafkaException, ImportError) as error:  # the latter where warnings of deprecation are errors
        logger.debug("A group is not told: %s", error)
        return None
    one = next((one for one in found if one.id == group), _NO_GROUP)
    return None if one.error is not None else one


def owned_by(assignment: bytes) -> frozenset[Partition]:
    """What a member has, in the form of Kafka's ConsumerProtocolAssignment; nothing if it is another form."""
    owned: set[Partition] = set()
    try:
        _version, topics = unpack_from(">hi", assignment, 0)
        at = 6
        for _ in range(topics):
            (length,) = unpack_from(">h", assignment, at)
            name = assignment[at + 2 : at + 2 + length].decode()
            (count,) = unpack_from(">i", assignment, at + 2 + length)
            at += 6 + length
            owned.update(Partition(name, number) for number in unpack_from(f">{count}i", assignment, at))
            at += 4 * count
    except (StructError, ValueError):
        return frozenset()
    return frozenset(owned)


class OwnerWatch:
    """Of one member, on the consumer's thread; `admin` gives a client, and may give another one each time."""

    def __init__(
        self, admin: Callable[[], AdminClient], group: str, topics: Sequence[str], *, rejoins: bool = True
    ) -> None:
        self._admin = admin
        self._rejoins = rejoins  # this is the protocol `classic`
        self._group = group
        self._topics = topics
        self._ask_at = 0.0
        self._unowned: frozenset[Partition] = frozenset()  # in all of the last looks
        self._since = 0.0
        self._paid = 0  # how many should have joined again by now
        self._is_said = False

    def owes_join(self, name: str) -> bool:
        """Whether a static member of this name has to leave and join again; to be asked before it joins.

        Waits for 6 s at most. True when the servers do not tell.
        """
        known = assignment_of(self._admin(), self._group, self._topics, _ANSWER_SECONDS)
        if known is None:
            return True
        return known.knows(name) and not (known.is_settled and not known.unowned)

    def is_to_rejoin(self, member_id: str, now: float) -> bool:
        """Whether this member is to leave and join again, so that partitions without owner get one.

        Asks now and then, and waits for 2 s at most.
        """
        if now < self._ask_at:
            return False
        self._ask_at = now + LOOK_SECONDS
        found = assignment_of(self._admin(), self._group, self._topics, _LOOK_ANSWER_SECONDS)
        return found is not None and self._judge(found, member_id, now)

    def _judge(self, found: GroupAssignment, member_id: str, now: float) -> bool:
        unowned = found.unowned if found.is_settled and found.owned else frozenset()
        lasting = self._unowned & unowned
        if not lasting:
            if self._is_said and not unowned:
                logger.info("Group %s: each partition has an owner again.", self._group)
                self._is_said = False
            self._unowned, self._since, self._paid = unowned, now, 0
            return False
        self._unowned = lasting
        if now - self._since < PATIENCE_SECONDS:
            return False
        if not self._is_said:
            self._is_said = True
            logger.warning(
                "Group %s: nobody has had %s for %.0f s. %s", self._group, listed(lasting), now - self._since,
                "The members leave and join again, one by one, until each partition has an owner."
                if self._rejoins else "If that lasts, start one more process, or stop one.",
            )  # fmt: skip
        turns = sorted(found.owned, key=lambda one: (len(found.owned[one]), one))
        self._paid += 1
        return self._rejoins and turns[(self._paid - 1) % len(turns)] == member_id


def listed(partitions: Iterable[Partition]) -> str:
    """Partitions for a message to people."""
    return ", ".join(f"{partition.topic}/{partition.number}" for partition in sorted(partitions))
