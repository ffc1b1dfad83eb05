"""A member of a Kafka consumer group.

The end of a partition arrives among its messages; the listener hears of it only when those have been
handed out: in the next poll, when none of them wait in the prefetch any more.

The servers may end a membership for good: when another static member has joined under the same name. The
client is of no more use then, and tells of it once, by an error in place of a message, without any of the
callbacks. All partitions are lost, and the consumer joins again with a new client.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as RawMessage

from site_spider import runtime
from site_spider.adapters.kafka.assignment import KafkaAssignment, OwnerWatch, listed
from site_spider.adapters.kafka.client import MISSING, BrokerHealth, Certificates, KafkaConfig, is_fatal, to_message
from site_spider.adapters.kafka.member_name import MemberSlot
from site_spider.adapters.kafka.positions import Answered, KafkaCommits, TopicIds, committed_by
from site_spider.adapters.kafka.transactions import KafkaTransactions, Topics
from site_spider.bounded import LogLimit
from site_spider.contracts import seed_log
from site_spider.contracts.seed_log import Listener, Message, Partition, Position
from site_spider.errors import ConfigError, LogSilent, LogUnavailable
from site_spider.results.transaction_queue import Item

logger = logging.getLogger(__name__)

# what the client reports of a right that is missing, which ends the crawl
_RIGHTS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Read and Describe on the topic {topics}",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "Read and Describe on the group {group}",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "Write and Describe on transactional ids that begin with {group}"
    ),
}


# --- gaps: finds messages that the servers deleted before the group read them ----------------------------
# A client that asks for an offset below the start of the log is moved to the start, without a word. So the
# offset that a partition hands out is compared with the one that was due. Most gaps are none of this:
# compaction and the marks of transactions leave some. The start of the log tells, and is asked for at a
# gap, but not often.

_ASK_AGAIN_SECONDS = 10.0
_MOST_ASKED = 100  # partitions, in one look: a tenth of a second

_ANSWER_SECONDS = 1.0

Tell = Callable[[Partition, int, int], None]


class Gaps:
    """Gaps of one member; `start_of` asks for the start of a partition's log and yields None without an answer."""

    def __init__(self, start_of: Callable[[Partition], int | None], tell: Tell) -> None:
        self._start_of = start_of
        self._tell = tell  # the first offset that is gone, and the one after the last
        self._due: dict[Partition, int] = {}  # what is handed out next
        self._open: dict[Partition, tuple[int, int]] = {}  # gaps that nothing is known about
        self._ask_at: dict[Partition, float] = {}
        self._look_at = 0.0

    def saw(self, partition: Partition, offset: int, following: int, begins_at: int | None) -> None:
        """Everything below `offset` was handed out or is not there, and `following` is due next.

        `begins_at` is what was committed when the partition was assigned.
        """
        due = self._due.get(partition, begins_at)
        self._due[partition] = following
        if due is not None and offset > due:
            first, _ = self._open.get(partition, (due, 0))
            self._open[partition] = first, offset

    def is_behind(self, partition: Partition, offset: int) -> bool:
        """Whether it was handed out already: the log was cut."""
        return offset < self._due.get(partition, 0)

    def drop(self, partitions: Collection[Partition]) -> None:
        for partition in partitions:
            self._due.pop(partition, None)
            self._open.pop(partition, None)

    def look(self, now: float) -> None:
        """Ask about gaps that are known, each partition now and then, and no server while there is no answer."""
        due = (one for one in self._open if now >= max(self._ask_at.get(one, 0.0), self._look_at))
        for partition in list(islice(due, _MOST_ASKED)):
            self._ask_at[partition] = now + _ASK_AGAIN_SECONDS
            first, beyond = self._open.pop(partition)
            if (start := self._start_of(partition)) is None:
                self._open[partition], self._look_at = (first, beyond), now + _ASK_AGAIN_SECONDS  # the others first
                return
            if start > first:
                self._tell(partition, first, min(start, beyond))


# --- prefetch: messages that the client has fetched and nobody has polled yet ----------------------------
# A client that is paused drops what it had fetched, and after it is resumed takes up to a second to fetch
# again (0.6 s on average, confluent-kafka 2.16). A crawl with few seeds in flight pauses after each
# handful, and would mostly wait. So a pause is ours: the messages of a paused partition are kept here, and
# the client is stopped only when it has given many. They are dropped when the partition leaves, for its next
# owner gets them again.

MOST_MESSAGES = 500  # of a partition, before the client is stopped there
FEW_MESSAGES = 100  # then it goes on
MOST_BYTES = 16_000_000  # over all partitions

Act = Callable[[Partition], None]


class KafkaPrefetch:
    """Between one client and its reader; the consumer's thread uses it."""

    def __init__(self, stop: Act, go_on: Act) -> None:
        self._stop, self._go_on = stop, go_on
        self._held: dict[Partition, deque[Message]] = {}
        self._bytes = 0
        self._paused: set[Partition] = set()
        self._stopped: set[Partition] = set()

    def __contains__(self, partition: object) -> bool:
        return partition in self._held

    def pause(self, partitions: Collection[Partition]) -> None:
        self._paused = set(partitions)

    def drop(self, partitions: Collection[Partition]) -> None:
        """These have left; with a new assignment the client goes on."""
        for partition in partitions:
            self._bytes -= sum(map(_size, self._held.pop(partition, ())))
        self._paused.difference_update(partitions)
        self._stopped.difference_update(partitions)

    def put(self, message: Message) -> None:
        self._held.setdefault(message.partition, deque()).append(message)
        self._bytes += _size(message)

    def take(self, limit: int) -> list[Message]:
        """Up to `limit` messages, of each partition in order; the partitions take turns to be first."""
        batch: list[Message] = []
        for partition in [one for one in self._held if one not in self._paused]:
            if len(batch) >= limit:
                break
            held = self._held.pop(partition)
            while held and len(batch) < limit:
                batch.append(held.popleft())
            if held:
                self._held[partition] = held  # behind the others
        self._bytes -= sum(map(_size, batch))
        self._balance()
        return batch

    def _balance(self) -> None:
        """Stop the client where enough waits, and let it go on where little is left."""
        for partition, held in self._held.items():
            is_much = len(held) >= MOST_MESSAGES or self._bytes >= MOST_BYTES
            if is_much and partition not in self._stopped:
                self._stopped.add(partition)
                self._stop(partition)
        for partition in list(self._stopped):
            # one of which nothing is held goes on whatever the others hold: they may be paused for long
            few = len(self._held.get(partition, ()))
            if not few or (few < FEW_MESSAGES and self._bytes < MOST_BYTES):
                self._stopped.discard(partition)
                self._go_on(partition)


def _size(message: Message) -> int:
    return len(message.value or b"") + len(message.key or b"")


# Servers that come back from an outage may fence a member by an earlier membership of its own, the answer
# to which never arrived: joining again helps at once. Two processes with one name would fence each other
# for ever, so there is a limit. Beyond it the process ends, and is started again with growing pauses.
_MOST_REJOINS, _REJOINS_SECONDS = 3, 120.0  # many session timeouts: two of one name fence each other each heartbeat
_LEARN_SECONDS = 20.0  # until committed positions are told; a new membership aborts what may hold them up
_STEP_SECONDS = 0.5  # one poll of the client; between two we see to what is unlearned or away


class _Ended(LogUnavailable):
    """The servers have ended this membership."""


class KafkaConsumer(seed_log.TransactionalConsumer):
    """Reads `topics` as a member of `group` and tells `listener`; one thread uses it. With `items` each
    commit is a transaction.

    Raises ConfigError when the client refuses its options.
    """

    def __init__(
        self, config: KafkaConfig, topics: tuple[str, ...], group: str, listener: Listener, items: Topics | None = None
    ) -> None:
        self._topics = topics
        self._group = group
        self._said: int | None = None  # the client's last error of a topic
        self.session_seconds = config.session_seconds
        self._commits = KafkaCommits(group)
        self._ids = TopicIds(config)
        self._owners = OwnerWatch(self._ids.client, group, topics, config.client_ids)
        self._assignment = KafkaAssignment(listener, self._ids, self.commit, self._dropped)
        self._config = config
        who = f"the consumer of {', '.join(topics)}"
        self._certificates = Certificates(config, who)
        # `list_topics` of the member, called within a rebalance, makes the next callback of that rebalance
        # abort the process (measured with confluent-kafka 2.16), so another client is asked
        self._health = BrokerHealth(
            config.brokers, who, lambda seconds: self._ids.client().list_topics(topics[0], timeout=seconds)
        )
        self._slot = MemberSlot.try_claim(group, config.member_name)
        self._rejoins = LogLimit(_MOST_REJOINS, _REJOINS_SECONDS)
        self._gaps = Gaps(self._start_of, listener.deleted)
        self._cut: set[Partition] = set()  # of these the client has begun anew, and the rest of a batch is void
        self._items = items  # where those of transactions go
        self._transactions: KafkaTransactions | None = None
        self._prefetch = KafkaPrefetch(
            lambda partition: self._client.pause([TopicPartition(*partition)]),
            lambda partition: self._client.resume([TopicPartition(*partition)]),
        )
        self._join()

    def _join(self) -> None:
        instance = self._slot.instance_id if self._slot else None
        owes_join = instance is not None and self._owners.owes_join(instance)
        try:
            config = self._config.member(self._group, instance, self._health.on_error)
            self._client = self._config.made(Consumer, {**config, "on_commit": self._commits.on_commit})
        except ConfigError:
            self._release_slot()
            raise
        if self._items is not None:
            identity = f"{self._group}-{instance or runtime.uuid4().hex}"
            self._transactions = KafkaTransactions(self._config, identity, self._items, self._client)
        self._assignment.subscribe(self._client, self._topics, owes_join=owes_join)

    def _replace_client(self, let_go: Callable[[], None]) -> None:
        let_go()
        self._commits.drop()
        self._leave()
        self._ids.forget()
        self._join()
        self._assignment.raise_failure()

    @property
    def member_name(self) -> str:
        return self._slot.instance_id if self._slot else ""

    @property
    def is_member(self) -> bool:
        return bool(self._client.memberid())

    @property
    def is_away(self) -> bool:
        return self._health.away

    def poll(self, timeout_seconds: float, limit: int) -> list[Message]:
        try:
            if self._certificates.are_renewed() or self._ids.have_changed():
                self._replace_client(lambda: self._assignment.give_up_all(self._prefetch))
            return self._polled(timeout_seconds, limit)
        except _Ended as ended:
            if not self._rejoins.admit(runtime.monotonic()):
                raise
            logger.warning("%s Joining again.", ended)
            self._replace_client(self._assignment.lose_all)
            return []

    def _polled(self, timeout_seconds: float, limit: int) -> list[Message]:
        deadline = runtime.monotonic() + timeout_seconds
        self._assignment.announce_ends(self._prefetch)
        self._gather(0, limit)  # also when enough waits here: the client answers rebalances in it
        while True:
            self._health.look()
            self._see_to_owners()
            self._assignment.learn_late()
            if not self._health.away and self._assignment.unlearned_seconds() > _LEARN_SECONDS:
                raise _Ended(f"Kafka does not tell group {self._group} what is committed.")
            batch = self._prefetch.take(limit)
            if batch:
                return batch
            self._assignment.announce_ends(self._prefetch)
            remaining = deadline - runtime.monotonic()
            if remaining <= 0:
                return []
            self._gather(min(remaining, _STEP_SECONDS), limit)

    def _see_to_owners(self) -> None:
        if self._assignment.is_to_rejoin:
            self._assignment.rejoin()
        elif not self._health.suspected and self._owners.is_to_rejoin(self._client.memberid, runtime.monotonic()):
            self._assignment.give_up_all(self._prefetch)
            self._assignment.rejoin()
            self._assignment.raise_failure()

    def commit(self, positions: Mapping[Partition, Position]) -> None:
        """Takes up to 10 s when the coordinator is away."""
        if not positions:
            return
        if self._transactions is not None:
            self.commit_with((), positions)
        else:
            self._check(positions)
            self._commits.wait(self._client, self._ids.signed(positions))

    def begin_commit(self, positions: Mapping[Partition, Position], answered: Answered) -> None:
        try:
            self._check_assigned(positions)
        except LogUnavailable as error:
            return answered(error)
        if not positions:
            return answered(None)
        return self._commits.begin(self._client, self._ids.signed(positions), answered)

    def commit_with(self, items: Sequence[Item], positions: Mapping[Partition, Position]) -> Mapping[int, str]:
        assert self._transactions is not None
        self._check(positions)
        return self._transactions.run(items, self._ids.signed(positions))

    def was_committed(self, positions: Mapping[Partition, Position]) -> bool:
        assert self._transactions is not None
        return self._transactions.was_committed(positions)

    def _check(self, positions: Mapping[Partition, Position]) -> None:
        """Raises LogUnavailable when a commit cannot be, without waiting for servers that are away."""
        self._check_assigned(positions)
        if (self._health.suspected or self._commits.is_late) and not self._health.answers():
            raise LogSilent(f"Kafka does not answer, so group {self._group} cannot commit: {self._health.detail}.")

    def _check_assigned(self, positions: Mapping[Partition, Position]) -> None:
        foreign = [partition for partition in positions if partition not in self._assignment]
        if foreign:
            raise LogUnavailable(f"Group {self._group} cannot commit {listed(foreign)} here: not assigned (any more).")

    def pause(self, partitions: Collection[Partition]) -> None:
        self._prefetch.pause(partitions)

    def close(self, *, for_good: bool = False) -> None:
        """A static member does not leave the group by closing: its partitions wait for its return
        for the session timeout (10 s), and then go to others. It leaves by unsubscribing.
        """
        try:
            self._assignment.give_up_all(self._prefetch)
            if for_good:
                self._assignment.unsubscribe()
        finally:
            self._leave()
            self._release_slot()
        self._assignment.raise_failure()

    def _leave(self) -> None:
        self._assignment.close()
        if self._transactions is not None:
            self._transactions.close()

    # --- messages and events -----------------------------------------------------------

    def _gather(self, timeout_seconds: float, limit: int) -> None:
        """Take what the client has, or wait for the first message."""
        first = self._client.poll(timeout_seconds)
        self._assignment.raise_failure()
        if first is None:
            return
        self._cut.clear()
        self._put(first)  # at once: a rebalance within `consume` takes it back, for its next owner gets it again
        self._cut.clear()
        rest = self._client.consume(limit - 1, 0) if limit > 1 else []
        self._assignment.raise_failure()
        for raw in rest:
            self._put(raw)
        self._gaps.look(runtime.monotonic())

    def _put(self, raw: RawMessage) -> None:
        message = self._handed_out(raw)
        if message and message.partition in self._assignment:
            self._prefetch.put(message)

    def _handed_out(self, raw: RawMessage) -> Message | None:
        error = raw.error()
        if error is None:
            self._said = None
            message = to_message(raw)
            if self._is_cut(message.partition, message.offset):
                return None
            self._note_gap(message.partition, message.offset, message.offset + 1)
            self._ids.read(message.partition, message.offset + 1, raw.leader_epoch())
            return message
        if error.code() == KafkaError._PARTITION_EOF:
            self._said = None
            partition, end = Partition(str(raw.topic()), raw.partition() or 0), raw.offset() or 0
            if not self._is_cut(partition, end):
                self._note_gap(partition, end, end)
                self._assignment.note_end(partition, end)
        elif is_fatal(error):
            raise _Ended(f"Kafka ended this membership in group {self._group} for good: {error.str()}.")
        else:
            self._hear(error)
        return None

    def _is_cut(self, partition: Partition, offset: int) -> bool:
        """Whether the log was cut there by a leader that lacked messages: then it is read again from what is committed.

        Of seeds in flight that the log still has nothing would be known any more: who listens begins anew at an
        offset that is behind.
        """
        if partition in self._cut or not self._gaps.is_behind(partition, offset):
            return partition in self._cut
        try:
            [found] = committed_by(self._client, [TopicPartition(*partition)], _ANSWER_SECONDS)
            if found.offset >= offset:
                return False
            begin = found.offset if found.offset >= 0 else OFFSET_BEGINNING
            self._client.seek(TopicPartition(*partition, begin))
        except KafkaException as error:
            raise _Ended(f"Kafka does not tell group {self._group} what is committed: {error}.") from error
        self._cut.add(partition)
        self._dropped([partition])
        if found.offset >= 0:  # what is before was read, whether the log still has it or not
            self._gaps.saw(partition, begin, begin, begin)
        self._client.resume([TopicPartition(*partition)])  # the prefetch may have stopped it
        return True

    def _hear(self, error: KafkaError) -> None:
        """Say it, unless the client repeats itself. Raises ConfigError for a right that is missing."""
        topics = ", ".join(self._topics)
        if right := _RIGHTS.get(error.code()):
            raise ConfigError(
                f"Kafka refuses this process: {error.str()}. "
                f"{KafkaConfig.to_grant(right.format(topics=topics, group=self._group))}"
            )
        if error.code() == self._said:
            return
        self._said = error.code()
        if error.code() == KafkaError._BAD_COMPRESSION:  # which is tried again and again
            remedy = "Nothing behind it is read: raise receive.message.max.bytes in SITE_KAFKA_OPTIONS (100000000)."
            logger.error("Group %s on topic %s: %s. %s", self._group, topics, error.str(), remedy)
        elif error.code() not in MISSING:
            logger.warning("Group %s on topic %s: %s", self._group, topics, error.str())
        elif len(self._topics) == 1:
            logger.info("Topic %s does not exist yet; waiting for it.", topics)
        else:
            logger.info("A topic of %s does not exist yet; waiting for it: %s", topics, error.str())

    def _note_gap(self, partition: Partition, offset: int, following: int) -> None:
        if partition in self._assignment:
            self._gaps.saw(partition, offset, following, self._assignment.begins_at(partition))

    def _start_of(self, partition: Partition) -> int | None:
        try:
            found = self._client.get_watermark_offsets(TopicPartition(*partition), timeout=_ANSWER_SECONDS)
        except KafkaException:
            return None
        return None if found is None else int(found[0])

    # --- the rest ------------------------------------------------------------------------

    def _dropped(self, partitions: Collection[Partition]) -> None:
        self._prefetch.drop(partitions)
        self._gaps.drop(partitions)

    def _release_slot(self) -> None:
        if self._slot:
            self._slot.release()
