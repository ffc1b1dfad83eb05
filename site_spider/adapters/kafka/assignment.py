"""The partitions that a member of a Kafka group owns, and what happens when they are assigned or revoked.

Theory of operation. The client calls `_on_assign`, `_on_revoke` and `_on_lost` from within its poll,
consume and close, on the consumer's thread. An exception there would leave the group half
rebalanced, so the client is always told to go on and `raise_failure` raises it afterwards.
What the group has committed is asked for before the listener hears of a partition; should the servers not
answer then, the partition waits in `_unlearned`, paused, until they do.

While a member waits for the others in a rebalance, the servers answer nothing else that it asks of the
group: a commit is answered when the rebalance is over, with a refusal, since it names the generation before.
From within `close` the client can commit no other. So partitions are given up before it is closed, with
some patience.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from struct import error as StructError  # noqa: N812 - a class
from struct import unpack_from
from types import SimpleNamespace
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from site_spider import runtime
from site_spider.adapters.kafka.client import ClientClosing
from site_spider.adapters.kafka.positions import TopicIds, committed_by
from site_spider.contracts.seed_log import Listener, Partition, Position
from site_spider.errors import GroupRebalances, LogUnavailable

# --- group assignment: sees to it that the group gives each partition to somebody ------------------------
# Theory of operation. In a cooperative rebalance a member first gives up what others are to have, and then
# joins again, so that the others get it. A static member that is killed between the two and comes back
# within its session gets its old assignment without a rebalance (KIP-345): what it had given up then
# belongs to nobody, until somebody joins or leaves. After a change of SITE_SEED_TOPIC it gets partitions of
# the topic before. So a member owes the group a join when the group knows its name already, and says that a
# partition has no owner, or that this member has one of another topic; it pays by leaving and joining again,
# which makes every version of Kafka rebalance. Else nothing is owed: a later rebalance waits for this member.
#
# Members look at the assignment now and then besides: a process of an earlier release may owe a join. Who
# has the fewest partitions pays; when that does not help, the next one.

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

    owned: Mapping[str, frozenset[Partition]]  # also of other topics; by member id, which begins with its name
    partitions: frozenset[Partition]  # of the topics
    is_settled: bool  # no rebalance is under way
    clients: Mapping[str, str] = field(default_factory=dict)  # their ids, by member id

    @property
    def unowned(self) -> frozenset[Partition]:
        """What nobody has; while a rebalance is under way everything."""
        return self.partitions.difference(*self.owned.values())


def assignment_of(admin: AdminClient, group: str, topics: tuple[str, ...], seconds: float) -> GroupAssignment | None:
    """Who has what; waits for the answer. None when the servers do not tell."""
    found = described(admin, group, seconds)
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
        owned={member.id: owned_by(member.assignment or b"") for member in found.members},
        partitions=partitions,
        is_settled=found.state == _SETTLED,
        clients={member.id: member.client_id for member in found.members},
    )


def described(admin: AdminClient, group: str, seconds: float) -> Any | None:
    """A group and its members; None when the servers do not tell.

    Not by describe_consumer_groups: while a coordinator is away, its answer may abort the whole process
    (librdkafka's rd_kafka_enq_once_del_source_return, measured with confluent-kafka 2.16).
    """
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
    """Belongs to one member and its consumer's thread; `admin` returns a client, perhaps a new one each time.

    The client ids of this service begin with `client_id`.
    """

    def __init__(
        self, admin: Callable[[], AdminClient], group: str, topics: tuple[str, ...], client_id: str = ""
    ) -> None:
        self._admin = admin
        self._client_id = client_id
        self._named: set[str] = set()  # clients of other programs, each once
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
        known = self._told(_ANSWER_SECONDS)
        if known is None:
            return True
        had = next((owned for member, owned in known.owned.items() if member.startswith(f"{name}-")), None)
        return had is not None and not (known.is_settled and not known.unowned and had <= known.partitions)

    def is_to_rejoin(self, member_id: Callable[[], str], now: float) -> bool:
        """Whether this member is to leave and join again, so that partitions without owner get one.

        Asks now and then, and waits for 2 s at most. `member_id` stops all threads until the client's has answered.
        """
        if now < self._ask_at:
            return False
        self._ask_at = now + LOOK_SECONDS
        found = self._told(_LOOK_ANSWER_SECONDS)
        if found is None:
            return False
        self._name_strangers(found)
        return self._judge(found, member_id, now)

    def _name_strangers(self, found: GroupAssignment) -> None:
        for member, client in found.clients.items():
            taken = found.owned[member] & found.partitions
            if taken and not client.startswith(self._client_id) and client not in self._named:
                self._named.add(client)
                logger.error(
                    "Group %s: seeds of %s are not crawled, for a member that is another program has them: client %r. "
                    "Stop it, and give it a group of its own",
                    self._group, listed(taken), client,
                )  # fmt: skip

    def _told(self, seconds: float) -> GroupAssignment | None:
        try:
            admin = self._admin()
        except KafkaException as error:  # half of new certificates is there, say
            logger.debug("A group is not asked for: %s", error)
            return None
        return assignment_of(admin, self._group, self._topics, seconds)

    def _judge(self, found: GroupAssignment, member_id: Callable[[], str], now: float) -> bool:
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
                "Group %s: nobody has had %s for %.0f s. "
                "The members leave and join again, one by one, until each partition has an owner.",
                self._group, listed(lasting), now - self._since,
            )  # fmt: skip
        turns = sorted(found.owned, key=lambda one: (len(found.owned[one]), one))
        self._paid += 1
        return turns[(self._paid - 1) % len(turns)] == member_id()


def listed(partitions: Iterable[Partition]) -> str:
    """Partitions for a message to people."""
    return ", ".join(map(str, sorted(partitions)))


_LEARN_TIMEOUT_SECONDS = 5.0  # in a rebalance; not longer than a stop may wait
_LEARN_AGAIN_TIMEOUT_SECONDS = 1.0
_COMMIT_ATTEMPTS = 3  # before partitions leave
_COMMIT_PAUSE_SECONDS = 0.3
_UNSUBSCRIBE_SECONDS = 2.0  # for the client to take part in its own revocation
_UNSUBSCRIBE_STEP_SECONDS = 0.05
_LAST_COMMIT_SECONDS = 15.0  # before the client closes: a rebalance waits for dead members (session timeout)


class KafkaAssignment:
    """The partitions of one consumer; `commit` is the consumer's own, raising LogUnavailable."""

    def __init__(
        self,
        listener: Listener,
        ids: TopicIds,
        commit: Callable[[Mapping[Partition, Position]], None],
        left: Callable[[Collection[Partition]], None],
    ) -> None:
        self._listener = listener
        self._ids = ids
        self._commit = commit
        self._left = left  # hears of partitions that are not ours any more
        self._client: Consumer  # `subscribe` gives these three
        self._closing: ClientClosing
        self._topics: Sequence[str]
        self._owned: dict[Partition, int | None] = {}  # with the offset that was committed at the assignment
        self._unlearned: set[Partition] = set()
        self._unlearned_since = 0.0
        self._ends: dict[Partition, int] = {}
        self._is_revoked = False
        self._owes_join = False
        self._failure: Exception | None = None
        self.is_to_rejoin = False  # what the group has assigned is not the listener's

    def subscribe(self, client: Consumer, topics: Sequence[str], *, owes_join: bool) -> None:
        """Join the group and follow its rebalances.

        Who owes a join takes part only to be taken in, so that it can leave: `is_to_rejoin` says when.
        """
        self._client = client
        self._closing = ClientClosing(client)
        self._owes_join = owes_join
        self._topics = topics
        self._subscribe(client)

    def _subscribe(self, client: Consumer) -> None:
        client.subscribe(
            list(self._topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def rejoin(self) -> None:
        """Leave the group and join again, which makes it rebalance; what is owned is given up before."""
        self.is_to_rejoin = self._owes_join = False
        self.unsubscribe()
        self._subscribe(self._client)

    def unsubscribe(self) -> None:
        """Leave the group: its other members hear of it at once. To be called when all is given up."""
        has_assignment = bool(self._client.assignment())
        self._is_revoked = False
        self._client.unsubscribe()
        deadline = runtime.monotonic() + (_UNSUBSCRIBE_SECONDS if has_assignment else _COMMIT_PAUSE_SECONDS)
        while not self._is_revoked and runtime.monotonic() < deadline:
            self._client.poll(_UNSUBSCRIBE_STEP_SECONDS)

    def __contains__(self, partition: object) -> bool:
        return partition in self._owned

    def begins_at(self, partition: Partition) -> int | None:
        """The offset that was committed when it was assigned; None when nothing was."""
        return self._owned[partition]

    def note_end(self, partition: Partition, offset: int) -> None:
        """The client came to the end of a partition; `announce_ends` tells the listener."""
        if partition in self._owned:
            self._ends[partition] = offset

    def announce_ends(self, waiting: Container[Partition]) -> None:
        """Tell the listener of ends, but for partitions of which messages are `waiting` to be handed out."""
        for partition in [partition for partition in self._ends if partition not in waiting]:
            self._listener.reached(partition, self._ends.pop(partition))

    def raise_failure(self) -> None:
        """Raise what the listener raised during a rebalance."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def learn_late(self) -> None:
        """Ask again for committed positions that the servers did not tell at the rebalance."""
        waiting = [TopicPartition(*partition) for partition in sorted(self._unlearned)]
        if not waiting:
            return
        try:
            positions = self._committed(self._client, waiting, _LEARN_AGAIN_TIMEOUT_SECONDS)
        except KafkaException:
            return  # it was said when it began
        if self._ids.former:
            return  # the consumer joins again: the client has begun at an offset of another topic
        self._unlearned.clear()
        self._look_back(self._client, self._ids.begins(waiting))
        self._client.resume(waiting)
        self._announce(positions)

    def unlearned_seconds(self) -> float:
        """For how long some committed position has not been told; 0 when all are known."""
        return runtime.monotonic() - self._unlearned_since if self._unlearned else 0.0

    def lose_all(self) -> None:
        """The membership has ended, and the client does not say so; `raise_failure` as in a rebalance."""
        self._lose(sorted({*self._owned, *self._unlearned}))

    def give_up_all(self, waiting: Container[Partition]) -> None:
        """Before the client is closed; `announce_ends`, and `raise_failure` as in a rebalance."""
        self.announce_ends(waiting)
        self._give_up(sorted({*self._owned, *self._unlearned}), _LAST_COMMIT_SECONDS)

    def close(self) -> None:
        """Close the client; `raise_failure` as in a rebalance. To be called when all is given up."""
        self._closing.run()

    @contextmanager
    def _failing_later(self) -> Iterator[None]:
        """What the listener raises is raised once the client has gone on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - as above
            self._failure = error

    def _on_assign(self, client: Consumer, raw: list[TopicPartition]) -> None:
        if self._closing.has_begun:
            self._closing.stay_if_late()
            client.incremental_assign(raw)  # nobody hears of it
            return
        if self._owes_join:
            client.incremental_assign(raw)  # as above
            client.pause(raw)
            self.is_to_rejoin = True
            return
        try:
            positions = self._committed(client, raw, _LEARN_TIMEOUT_SECONDS) if raw else {}
        except KafkaException as error:
            logger.warning("The committed positions of %s cannot be read yet: %s", listed(to_ours(raw)), error)
            client.incremental_assign(raw)
            client.pause(raw)
            self._unlearned_since = runtime.monotonic()
            self._unlearned.update(to_ours(raw))
            return
        begins = self._ids.begins(raw)
        client.incremental_assign(begins)
        self._look_back(client, begins)
        self._ids.former.clear()
        client.resume(raw)  # the client remembers a pause beyond the assignment that it was made in
        with self._failing_later():
            self._announce(positions)

    @staticmethod
    def _look_back(client: Consumer, begins: Iterable[TopicPartition]) -> None:
        """The client asks at a seek alone whether the messages before are those that the group has read."""
        for one in begins:
            if one.leader_epoch is not None:
                with suppress(KafkaException):  # it goes on without having asked
                    client.seek(one)

    def _committed(
        self, client: Consumer, raw: list[TopicPartition], timeout_seconds: float
    ) -> dict[Partition, Position | None]:
        return self._ids.positions(committed_by(client, raw, timeout_seconds), self._owned)

    def _announce(self, positions: Mapping[Partition, Position | None]) -> None:
        if positions:
            self._owned.update((one, at.offset if at else None) for one, at in positions.items())
            self._listener.assigned(positions)

    def _on_revoke(self, client: Consumer, raw: list[TopicPartition]) -> None:
        self._give_up(to_ours(raw), 0)
        client.incremental_unassign(raw)
        self._is_revoked = True

    def _on_lost(self, client: Consumer, raw: list[TopicPartition]) -> None:
        logger.warning("The group went on without this member and took %s away.", listed(to_ours(raw)))
        self._lose(to_ours(raw))
        client.incremental_unassign(raw)

    def _give_up(self, partitions: Collection[Partition], patience_seconds: float) -> None:
        leaving = [partition for partition in partitions if partition in self._owned]
        with self._failing_later():
            if leaving:
                self._commit_before_leaving(self._listener.revoked(leaving), patience_seconds)
        self._forget(partitions)

    def _lose(self, partitions: Collection[Partition]) -> None:
        gone = [partition for partition in partitions if partition in self._owned]
        self._forget(partitions)
        with self._failing_later():
            if gone:
                self._listener.lost(gone)

    def _forget(self, partitions: Collection[Partition]) -> None:
        for partition in partitions:
            self._owned.pop(partition, None)
            self._ends.pop(partition, None)
            self._unlearned.discard(partition)
        self._left(partitions)

    def _commit_before_leaving(self, positions: Mapping[Partition, Position], patience_seconds: float) -> None:
        """Try a few times; while the group rebalances for as long as the patience lasts."""
        deadline = runtime.monotonic() + patience_seconds
        for attempt in itertools.count(1):
            try:
                return self._commit(positions)
            except LogUnavailable as error:
                may_wait = isinstance(error, GroupRebalances) and runtime.monotonic() < deadline
                if attempt >= _COMMIT_ATTEMPTS and not may_wait:
                    logger.warning("%s The next owner repeats what was not committed.", error)
                    return None
            runtime.sleep(_COMMIT_PAUSE_SECONDS)
        return None


def to_ours(raw: Iterable[TopicPartition]) -> list[Partition]:
    """The client's partitions as ours."""
    return [Partition(one.topic, one.partition) for one in raw]
