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
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import ConsumerGroupState, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from site_spider.contracts.seed_log import Partition

logger = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
PATIENCE_SECONDS = 30.0  # in a rebalance members let seeds end before they give partitions up
_ANSWER_SECONDS = 3.0  # before a member joins


@dataclass(frozen=True)
class GroupAssignment:
    """Who has which partitions of some topics, as the group's coordinator says."""

    owned: Mapping[str, frozenset[Partition]]  # by member id
    names: frozenset[str]  # of its static members
    partitions: frozenset[Partition]  # of the topics
    is_settled: bool  # no rebalance is under way

    @property
    def unowned(self) -> frozenset[Partition]:
        """What nobody has; while a rebalance is under way everything."""
        return self.partitions.difference(*self.owned.values())


class Question:
    """What the group has assigned, asked without waiting."""

    def __init__(self, admin: AdminClient, group: str, topics: Sequence[str], seconds: float) -> None:
        wanted = TopicCollection(list(topics))
        self._admin = admin  # answers come as long as somebody refers to it
        self._group: Future[Any] = admin.describe_consumer_groups([group], request_timeout=seconds)[group]
        self._topics: Iterable[Future[Any]] = admin.describe_topics(wanted, request_timeout=seconds).values()

    @property
    def is_answered(self) -> bool:
        """Whether `answer` does not wait."""
        return self._group.done() and all(topic.done() for topic in self._topics)

    def answer(self) -> GroupAssignment | None:
        """None when the servers do not tell."""
        try:
            group = self._group.result()
            partitions = frozenset(
                Partition(topic.name, one.id) for topic in self._described() for one in topic.partitions
            )
        except KafkaException as error:
            logger.debug("The assignment of a group is not told: %s", error)
            return None
        return GroupAssignment(
            owned={member.member_id: _owned(member) & partitions for member in group.members},
            names=frozenset(member.group_instance_id or "" for member in group.members) - {""},
            partitions=partitions,
            is_settled=group.state == ConsumerGroupState.STABLE,
        )

    def _described(self) -> Iterable[Any]:
        for topic in self._topics:
            try:
                yield topic.result()
            except KafkaException as error:
                logger.debug("A topic is not described: %s", error)  # it does not exist yet


def _owned(member: Any) -> frozenset[Partition]:
    parts = member.assignment.topic_partitions if member.assignment else ()
    return frozenset(Partition(one.topic, one.partition) for one in parts)


class OwnerWatch:
    """Of one member, on the consumer's thread; `admin` gives a client, and may give another one each time."""

    def __init__(
        self, admin: Callable[[], AdminClient], group: str, topics: Sequence[str], *, rejoins: bool = True
    ) -> None:
        self._admin = admin
        self._rejoins = rejoins  # this is the protocol `classic`
        self._group = group
        self._topics = topics
        self._question: Question | None = None
        self._ask_at = 0.0
        self._unowned: frozenset[Partition] = frozenset()  # in all of the last looks
        self._since = 0.0
        self._paid = 0  # how many should have joined again by now
        self._is_said = False

    def owes_join(self, name: str) -> bool:
        """Whether a static member of this name has to leave and join again; to be asked before it joins.

        Waits for 3 s at most. True when the servers do not tell.
        """
        try:
            known = Question(self._admin(), self._group, self._topics, _ANSWER_SECONDS).answer()
        except KafkaException:  # a machine without a thread to spare, say
            known = None
        if known is None:
            return True
        return name in known.names and not (known.is_settled and not known.unowned)

    def is_to_rejoin(self, member_id: str, now: float) -> bool:
        """Whether this member is to leave and join again, so that partitions without owner get one."""
        if self._question is None:
            if now >= self._ask_at:
                self._ask_at = now + LOOK_SECONDS
                self._ask()
            return False
        if not self._question.is_answered:
            return False
        found, self._question = self._question.answer(), None
        return found is not None and self._judge(found, member_id, now)

    def _ask(self) -> None:
        try:
            self._question = Question(self._admin(), self._group, self._topics, LOOK_SECONDS)
        except KafkaException as error:
            logger.debug("The assignment of a group cannot be asked for: %s", error)

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
