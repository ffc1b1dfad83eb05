"""The coordinator of a consumer group, as Kafka's with the protocol `classic` and cooperative rebalances.

Theory of operation. A rebalance waits until every member has joined again, or its session has ended. Then
each gets what it had, up to a fair share, and of the rest what nobody has: a partition that another member
has is given to nobody yet. A member that finds something missing in its assignment gives that up, and joins
again, which makes the next rebalance. Anything may happen between the two.

A static member that joins under a known name while no rebalance is under way gets the assignment of its
predecessor without one (KIP-345). The predecessor is fenced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from site_spider.adapters.local.log_file import fair_share
from site_spider.contracts.seed_log import Partition, Position
from site_spider.errors import GroupRebalances, LogUnavailable

if TYPE_CHECKING:
    from tests.simulation.log import Broker, SimConsumer

SESSION_SECONDS = 10.0
HEARTBEAT_SECONDS = 0.5


@dataclass
class Member:
    """What the coordinator knows of one; its client hears of what becomes of it."""

    number: int
    client: SimConsumer
    claimed: frozenset[Partition] = frozenset()  # what it had when it joined
    assignment: frozenset[Partition] = frozenset()
    has_joined: bool = True
    silence: int = 0  # changes whenever it is heard of


class Group:
    """One group; numbers of members are given in order, so that nothing depends on hashes."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.committed: dict[Partition, Position] = {}
        self.members: dict[int, Member] = {}
        self.generation = 0
        self.state = "stable"  # or preparing, completing
        self._last = 0

    def join(self, client: SimConsumer, number: int) -> int:
        """The number of this member from now on; its assignment is heard later."""
        member = self.members.get(number)
        if member is None:
            namesakes = [one for one in self.members.values() if one.client.member_name == client.member_name]
            former = namesakes[0] if namesakes and client.member_name else None
            self._last += 1
            self.members[self._last] = member = Member(self._last, client)
            if former is not None:
                del self.members[former.number]
                former.client.hear(former.client.is_out, former.client.number)
                member.assignment = former.assignment
                if self.state == "stable":
                    client.hear(client.is_assigned, member.number, self.generation, member.assignment)
                    return member.number
        member.claimed = frozenset(client.owned)
        self.rebalance()
        member.has_joined = True
        self._complete_if_all_joined()
        return member.number

    def leave(self, number: int) -> None:
        """It goes, or is taken for dead."""
        if self.members.pop(number, None) is not None:
            self.rebalance()
            self._complete_if_all_joined()

    def lost_sight(self, client: SimConsumer) -> None:
        """No heartbeat comes any more; after the session it is no member."""
        for member in list(self.members.values()):
            if member.client is client:
                member.silence += 1
                self._broker.at(SESSION_SECONDS, self._expire, member, member.silence)

    def heard_of(self, client: SimConsumer) -> None:
        for member in self.members.values():
            if member.client is client:
                member.silence += 1
                if self.state == "preparing" and not member.has_joined:
                    client.hear(client.rebalances)

    def refusal(self, number: int, generation: int) -> LogUnavailable | None:
        if number not in self.members:
            return LogUnavailable("the group went on without this member")
        if generation != self.generation or self.state == "completing":
            return GroupRebalances("the group is rebalancing")
        return None

    def unowned(self, topics: Iterable[str]) -> frozenset[Partition]:
        assigned = (member.assignment for member in self.members.values())
        return frozenset(self.partitions(topics)).difference(*assigned)

    def is_settled(self, topics: Iterable[str]) -> bool:
        """Whether nothing is owed: each partition has an owner, and no rebalance is under way."""
        return self.state == "stable" and not self.unowned(topics)

    def topics_have_changed(self) -> None:
        """Members hear of new partitions with their metadata, and join again."""
        if self.members:
            self._broker.at(self._broker.rng.uniform(0.5, 5.0), self.rebalance)

    def rebalance(self) -> None:
        if self.state == "preparing":
            return
        self.state = "preparing"
        for member in self.members.values():
            member.has_joined = False
            delay = self._broker.rng.uniform(0.001, HEARTBEAT_SECONDS)
            self._broker.at(delay, self._tell_rebalance, member)

    def partitions(self, topics: Iterable[str]) -> list[Partition]:
        counts = {topic: len(self._broker.topics.get(topic, ())) for topic in topics}
        return [Partition(topic, number) for topic, count in counts.items() for number in range(count)]

    def _expire(self, member: Member, silence: int) -> None:
        if self._broker.is_down:
            self._broker.at(SESSION_SECONDS, self._expire, member, silence)
        elif member.silence == silence and self.members.get(member.number) is member:
            self._broker.world.trace("expelled", member.number)
            member.client.hear(member.client.is_out, member.client.number)
            self.leave(member.number)

    def _tell_rebalance(self, member: Member) -> None:
        if self.members.get(member.number) is member and self.state == "preparing" and not member.has_joined:
            if self._broker.is_down:
                self._broker.at(HEARTBEAT_SECONDS, self._tell_rebalance, member)
            else:
                member.client.hear(member.client.rebalances)

    def _complete_if_all_joined(self) -> None:
        if self.state != "preparing" or not all(member.has_joined for member in self.members.values()):
            return
        self.generation += 1
        self.state = "completing" if self.members else "stable"
        if self.members:
            self._broker.at(self._broker.rng.uniform(0.001, 0.05), self._sync, self.generation)

    def _sync(self, generation: int) -> None:
        """The leader shares the partitions out; while it is silent the group waits for its session to end."""
        if generation != self.generation or self.state != "completing":
            return
        if self._broker.is_down or not next(iter(self.members.values())).client.can_answer:
            self._broker.at(HEARTBEAT_SECONDS, self._sync, generation)
            return
        self.state = "stable"
        every = self.partitions(sorted({topic for member in self.members.values() for topic in member.client.topics}))
        claims = {one: number for number, member in self.members.items() for one in sorted(member.claimed)}
        target = fair_share(list(self.members), every, claims)
        for number, member in self.members.items():
            mine = (one for one in every if target[one] == number)
            member.assignment = frozenset(one for one in mine if claims.get(one, number) == number)
            member.client.hear(member.client.is_assigned, number, generation, member.assignment)
        shared = [sorted(one.number for one in member.assignment) for member in self.members.values()]
        self._broker.world.trace("generation", generation, shared)
