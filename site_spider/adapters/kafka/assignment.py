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
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from site_spider import runtime
from site_spider.adapters.kafka.closing import ClientClosing
from site_spider.adapters.kafka.group_assignment import listed
from site_spider.adapters.kafka.topic_ids import TopicIds
from site_spider.contracts.seed_log import Listener, Partition, Position
from site_spider.errors import GroupRebalances, LogUnavailable

logger = logging.getLogger(__name__)

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
        self, listener: Listener, ids: TopicIds, commit: Callable[[Mapping[Partition, Position]], None]
    ) -> None:
        self._listener = listener
        self._ids = ids
        self._commit = commit
        self._client: Consumer | None = None
        self._topics: Sequence[str] = ()
        self._closing: ClientClosing | None = None
        self._owned: dict[Partition, int] = {}  # with the number of the assignment, to tell two of them apart
        self._begun_at: dict[Partition, int | None] = {}
        self._assignments = 0
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
        if self._client is not None:
            self.unsubscribe()
            self._subscribe(self._client)

    def unsubscribe(self) -> None:
        """Leave the group: its other members hear of it at once. To be called when all is given up."""
        if self._client is None:
            return
        has_assignment = bool(self._client.assignment())
        self._is_revoked = False
        self._client.unsubscribe()
        deadline = runtime.monotonic() + (_UNSUBSCRIBE_SECONDS if has_assignment else _COMMIT_PAUSE_SECONDS)
        while not self._is_revoked and runtime.monotonic() < deadline:
            self._client.poll(_UNSUBSCRIBE_STEP_SECONDS)

    def __contains__(self, partition: object) -> bool:
        return partition in self._owned

    def number(self, partition: Partition) -> int | None:
        """Which assignment of the partition this is; None when it is not ours."""
        return self._owned.get(partition)

    def begins_at(self, partition: Partition) -> int | None:
        """The offset that was committed when it was assigned; None when nothing was."""
        return self._begun_at.get(partition)

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
        if not waiting or self._client is None:
            return
        try:
            positions = self._committed(self._client, waiting, _LEARN_AGAIN_TIMEOUT_SECONDS)
        except KafkaException:
            return  # it was said when it began
        if self._ids.former:
            return  # the consumer joins again: the client has begun at an offset of another topic
        self._unlearned.clear()
        self._client.resume(waiting)
        self._announce(positions)

    def unlearned_seconds(self) -> float:
        """For how long some committed position has not been told; 0 when all are known."""
        return runtime.monotonic() - self._unlearned_since if self._unlearned else 0.0

    def lose_all(self) -> None:
        """The membership has ended, and the client does not say so; `raise_failure` as in a rebalance."""
        gone = sorted(self._owned)
        self._clear()
        try:
            if gone:
                self._listener.lost(gone)
        except Exception as error:  # noqa: BLE001 - raised once a new client has joined
            self._failure = error

    def give_up_all(self) -> None:
        """Before the client is closed; `raise_failure` as in a rebalance."""
        leaving = sorted(self._owned)
        try:
            if leaving:
                self._commit_before_leaving(self._listener.revoked(leaving), _LAST_COMMIT_SECONDS)
        except Exception as error:  # noqa: BLE001 - raised once the client is closed
            self._failure = error
        self._clear()

    def close(self) -> None:
        """Close the client; `raise_failure` as in a rebalance. To be called when all is given up."""
        if self._closing is not None:
            self._closing.run()

    def _on_assign(self, client: Consumer, raw: list[TopicPartition]) -> None:
        if self._closing is not None and self._closing.has_begun:
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
            logger.warning(
                "The committed positions of %s cannot be read yet: %s", listed(to_ours(raw)), error
            )
            client.incremental_assign(raw)
            client.pause(raw)
            self._unlearned_since = runtime.monotonic()
            self._unlearned.update(to_ours(raw))
            return
        client.incremental_assign(_begun(raw, self._ids.former))
        self._ids.former.clear()
        client.resume(raw)  # the client remembers a pause beyond the assignment that it was made in
        try:
            self._announce(positions)
        except Exception as error:  # noqa: BLE001 - raised once the client has gone on
            self._failure = error

    def _committed(
        self, client: Consumer, raw: list[TopicPartition], timeout_seconds: float
    ) -> dict[Partition, Position | None]:
        answers = client.committed(raw, timeout=timeout_seconds)
        for answer in answers:
            if answer.error:
                raise KafkaException(answer.error)
        return self._ids.positions(answers, self._owned)

    def _announce(self, positions: Mapping[Partition, Position | None]) -> None:
        if positions:
            self._assignments += 1
            self._owned.update(dict.fromkeys(positions, self._assignments))
            self._begun_at.update((one, at.offset if at else None) for one, at in positions.items())
            self._listener.assigned(positions)

    def _on_revoke(self, client: Consumer, raw: list[TopicPartition]) -> None:
        leaving = [partition for partition in to_ours(raw) if partition in self._owned]
        try:
            if leaving:
                self._commit_before_leaving(self._listener.revoked(leaving), 0)
        except Exception as error:  # noqa: BLE001 - raised once the client has gone on
            self._failure = error
        self._forget(raw)
        client.incremental_unassign(raw)
        self._is_revoked = True

    def _on_lost(self, client: Consumer, raw: list[TopicPartition]) -> None:
        gone = [partition for partition in to_ours(raw) if partition in self._owned]
        logger.warning("The group went on without this member and took %s away.", listed(to_ours(raw)))
        self._forget(raw)
        try:
            if gone:
                self._listener.lost(gone)
        except Exception as error:  # noqa: BLE001 - raised once the client has gone on
            self._failure = error
        client.incremental_unassign(raw)

    def _forget(self, raw: Iterable[TopicPartition]) -> None:
        for partition in to_ours(raw):
            self._owned.pop(partition, None)
            self._ends.pop(partition, None)
            self._unlearned.discard(partition)

    def _clear(self) -> None:
        self._owned.clear()
        self._ends.clear()
        self._unlearned.clear()

    def _commit_before_leaving(
        self, positions: Mapping[Partition, Position], patience_seconds: float
    ) -> None:
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


def _begun(raw: Iterable[TopicPartition], former: Container[Partition]) -> list[TopicPartition]:
    """Where the client is to begin; the servers have an offset of a former topic for some."""
    return [
        TopicPartition(one.topic, one.partition, OFFSET_BEGINNING) if ours in former else one
        for one, ours in zip(raw, to_ours(raw), strict=True)
    ]
