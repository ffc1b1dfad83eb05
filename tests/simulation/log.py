"""The seed log of the simulation: fulfils `site_spider.contracts.seed_log` as Kafka's adapter does.

What the network does is decided by a generator of its own. Messages that were sent arrive even if their
sender dies.
"""

from __future__ import annotations

import contextvars
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from math import inf
from typing import Any

from tests.simulation.group import SESSION_SECONDS, Group
from tests.simulation.truth import Sent
from tests.simulation.virtual import EPOCH, NETWORK, PROCESS, Line, Machine, sleep

from site_spider.contracts.seed_log import Listener, LogFacts, Message, MessagePlace, Partition
from site_spider.contracts.seed_log import PartitionProgress, Position, SeedLog
from site_spider.contracts.sink import Record
from site_spider.errors import CommitInDoubt, LogSilent, LogUnavailable, TopicMissing
from site_spider.results.transaction_queue import Item
from site_spider.seed.topics import partition_of

LOST_ANSWER_SECONDS = 5.0
SLOW_SHARE = 0.02  # of what goes over the network, on a good day

Positions = Mapping[Partition, Position]


class Broker:
    """The servers: topics, groups, and how well they are."""

    def __init__(self, rng: random.Random, world: Any, partitions: int) -> None:
        self.rng, self.world = rng, world
        self.topics: dict[str, list[list[Message]]] = {}
        self.groups: dict[str, Group] = {}
        self.readers: dict[str, list[Any]] = {}
        self.refused = self.unanswered = self.slow = 0.0  # shares of commits
        self.takes_messages = True  # the leaders of partitions live; that of the group is another one
        self._partitions = partitions

    @property
    def is_down(self) -> bool:
        return "broker" in self.world.away_since

    def at(self, seconds: float, call: Callable[..., object], *args: Any) -> None:
        """On the network: of no process."""
        Machine.running().call_later(seconds, call, *args, context=NETWORK)

    def latency(self) -> float:
        is_slow = self.rng.random() < max(self.slow, SLOW_SHARE)
        return self.rng.uniform(0.3, 3.0) if is_slow else self.rng.uniform(0.0005, self.world.plan.network_seconds)

    def topic(self, name: str, partitions: int = 0, *, more: int = 0) -> list[list[Message]]:
        """Made when it is asked for first; it gets so many partitions more."""
        if is_new := name not in self.topics:
            self.topics[name] = [[] for _ in range(partitions or self._partitions)]
        self.topics[name] += [[] for _ in range(more)]
        for group in self.groups.values() if is_new or more else ():
            if any(name in member.client.topics for member in group.members.values()):
                group.topics_have_changed()
        return self.topics[name]

    def group(self, name: str) -> Group:
        return self.groups.setdefault(name, Group(self))

    def append(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Any, sent: Sent | None = None
    ) -> MessagePlace:
        parts = self.topic(topic)
        number = self.rng.randrange(len(parts)) if key is None else partition_of(key, len(parts))
        now_ms = int((EPOCH + Machine.now()) * 1000)  # by the servers' own clock
        place = MessagePlace(Partition(topic, number), len(parts[number]), now_ms)
        message = Message(place.partition, place.offset, key, value, tuple(headers), now_ms)
        parts[number].append(message)
        self.world.truth.appended(message, sent)
        for reader in self.readers.get(topic, ()):
            reader.poke_soon()
        return place

    def ask(self) -> Broker:
        """A question, on a thread. Raises LogUnavailable."""
        sleep(self.latency())
        if self.is_down:
            sleep(1.0)
        if self.is_down:
            raise LogUnavailable("the log does not answer")
        return self


class _Client:
    """Of a process; it has threads of its own."""

    is_client = True

    def __init__(self, broker: Broker) -> None:
        self.broker, self.process, self.line = broker, PROCESS.get(), Line()
        self.context = contextvars.copy_context()

    def arrive(self, seconds: float, call: Callable[..., object], *args: Any) -> None:
        """At this client, if its process lives then."""
        Machine.running().call_later(seconds, call, *args, context=self.context)


class _Polled(_Client):
    """It is polled by a thread, and woken by what arrives."""

    def __init__(self, broker: Broker, topics: Sequence[str]) -> None:
        super().__init__(broker)
        self.topics = tuple(topics)
        self._is_poked = self._is_on_the_way = False
        for topic in topics:
            broker.readers.setdefault(topic, []).append(self)

    def poke(self) -> None:
        self._is_poked, self._is_on_the_way = True, False
        self.line.notify()

    def poke_soon(self) -> None:
        if not self._is_on_the_way:
            self._is_on_the_way = True
            self.arrive(0.003, self.poke)

    def poll_until(self, seconds: float, take: Callable[[], list[Message]]) -> list[Message]:
        deadline = Machine.now() + seconds
        while not (found := take()) and Machine.now() < deadline:
            self.line.wait(lambda: self._is_poked, deadline - Machine.now())
            self._is_poked = False
        return found

    def forget(self) -> None:
        for topic in self.topics:
            if self in self.broker.readers.get(topic, ()):
                self.broker.readers[topic].remove(self)


Answered = Callable[[LogUnavailable | None], None]


class _Commit:
    is_client = True

    def __init__(self, consumer: SimConsumer, positions: Positions, items: Sequence[Item]) -> None:
        self.consumer, self.positions, self.items = consumer, dict(positions), items
        self.generation, self.number = consumer.generation, consumer.number
        self.is_void = False  # a transaction that was ended before it arrived
        self.refused: dict[int, str] = {}  # items
        self.is_answered = False
        self.answer: LogUnavailable | None = None
        self.answered: Answered = lambda _answer: None

    def apply(self) -> None:
        consumer, broker = self.consumer, self.consumer.broker
        if consumer.is_joining and self.number == consumer.number:  # behind the join on their connection
            return broker.at(0.05, self.apply)
        refusal = None
        if not (is_silent := broker.is_down or self.is_void or broker.rng.random() < broker.unanswered / 2):
            refusal = consumer.group.refusal(self.number, self.generation)
            if refusal is None and broker.rng.random() < broker.refused:
                refusal = LogUnavailable("the servers refuse a commit for now")
            if refusal is None:
                self._store()
            is_silent = broker.rng.random() < broker.unanswered
        seconds, answer = (LOST_ANSWER_SECONDS, LogSilent("no answer to a commit")) if is_silent else (0.0, refusal)
        return consumer.arrive(seconds + broker.latency(), self.hear, answer)

    def _store(self) -> None:
        group, world = self.consumer.group, self.consumer.broker.world
        records = [(at, one) for at, one in enumerate(self.items) if isinstance(one, Record)]
        self.refused = {at: "refused by the sink" for at, one in records if world.truth.refuses(one)}
        if self.refused:
            return
        for item in self.items:
            if isinstance(item, Record):
                world.truth.store("kafka", item, self.consumer.process.name)
            else:
                self.consumer.broker.append(item.topic or world.topics.seeds, item.key, item.value, ())
        for partition, position in sorted(self.positions.items()):
            world.truth.committing(self.consumer, partition, position)
            group.committed[partition] = Position(*position)

    def hear(self, answer: LogUnavailable | None) -> None:
        self.is_answered, self.answer = True, answer
        self.consumer.poke()


class SimConsumer(_Polled):
    """A member of a group. Its client's own threads, which beat and hear, are callbacks here."""

    session_seconds = SESSION_SECONDS

    def __init__(
        self, broker: Broker, topics: tuple[str, ...], group: str, listener: Listener, *, is_transactional: bool
    ) -> None:
        super().__init__(broker, topics)
        self._is_transactional = is_transactional
        self._doubtful: _Commit | None = None
        self.member_name: str = self.process.member_name
        self.group = broker.group(group)
        self.listener = listener
        self.owned: dict[Partition, int] = {}  # with the next offset to hand out
        self.number, self.generation = 0, -1  # as a member
        self.has_given_up = False  # and has not joined again
        self.is_joining = self._is_arriving = False  # not answered; on its way to the group
        self._owes_join = self._rebalances = self._is_out = self._is_closed = False
        self._assignment: frozenset[Partition] | None = None  # heard, and not dealt with
        self._paused: set[Partition] = set()
        self._ends: dict[Partition, int] = {}
        self._pending: _Commit | None = None
        self._applies_at = self._heard_at = 0.0
        self._turn = 0
        self.process.consumers.append(self)
        self._join()

    # --- what the client's own threads do -------------------------------------------------------

    @property
    def can_answer(self) -> bool:
        return not (self.process.is_dead or self.process.is_frozen or self._is_closed)

    def hear(self, what: Callable[..., None], *args: Any) -> None:
        """In the order of the coordinator: it is one connection."""
        self._heard_at = max(self._heard_at + 1e-6, Machine.now() + self.broker.latency())
        self.arrive(self._heard_at - Machine.now(), what, *args)

    def rebalances(self) -> None:
        if self._is_arriving:
            return  # it joins already
        self.is_joining = False  # what it waited for will not come
        self._rebalances = True
        self.poke()

    def is_assigned(self, number: int, generation: int, assignment: frozenset[Partition]) -> None:
        if number != self.number:
            return  # it is another member by now
        self.is_joining = False
        self.generation = generation  # of what is committed from now on, as the client's own thread does it
        self._assignment = assignment
        self.poke()

    def is_out(self, number: int) -> None:
        if number == self.number:
            self._is_out = True
            self.poke()

    def _join(self, *, as_new: bool = False) -> None:
        self.number = 0 if as_new else self.number
        self.is_joining, self._rebalances, self._is_out = True, False, False
        self._is_arriving = True
        self.broker.at(self.broker.latency(), self._arrive_at_group)

    def _arrive_at_group(self) -> None:
        if self.process.is_dead or self._is_closed:
            return
        if self.broker.is_down:
            self.broker.at(0.25, self._arrive_at_group)
            return
        self._is_arriving = False
        if self.number and self.number not in self.group.members:  # expelled: an unknown member, as Kafka says
            self.hear(self.is_out, self.number)
            return
        if not self.number:
            is_known = self.member_name in [one.client.member_name for one in self.group.members.values()]
            self._owes_join = self.member_name != "" and is_known and not self.group.is_settled(self.topics)
        self.has_given_up = False
        self.number = self.group.join(self, self.number)
        if self.process.is_frozen:
            self.group.lost_sight(self)

    # --- polling --------------------------------------------------------------------------------

    @property
    def is_member(self) -> bool:
        return self.number in self.group.members

    @property
    def is_away(self) -> bool:
        return self.broker.is_down

    def poll(self, timeout_seconds: float, limit: int) -> list[Message]:
        return self.poll_until(timeout_seconds, lambda: self._serve() or self._take(limit))

    def _serve(self) -> list[Message]:
        """Nothing, but what has been heard is dealt with."""
        if self._pending is not None and self._pending.is_answered:
            self._answer(self._pending.answer)
        since = self.broker.world.away_since.get("broker", inf)
        if self._is_out or (self.owned and Machine.now() - since > SESSION_SECONDS):
            self._lose_all()
        if not self.broker.is_down:
            if self._assignment is not None:
                self._take_assignment(self._assignment)
            if self._rebalances and not self.is_joining and not self._is_out:
                self._join()
        return []

    def _answer(self, answer: LogUnavailable | None) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.answered(answer)

    def _lose_all(self) -> None:
        gone = sorted(self.owned)
        self._assignment = None
        self._end_doubt()
        self._drop(gone)
        self._answer(LogUnavailable("the membership ended before a commit did"))
        if gone:
            self.broker.world.trace("lost", self.process.name, len(gone))
            self.listener.lost(gone)
        self.broker.at(0, self.group.leave, self.number)
        self._join(as_new=True)

    def _take_assignment(self, assignment: frozenset[Partition]) -> None:
        self._assignment = None
        if self._owes_join:  # it takes no part: it leaves, and joins again
            self._owes_join = False
            self.broker.world.trace("pays", self.process.name)
            self.group.leave(self.number)
            self._join(as_new=True)
            return
        if leaving := sorted(set(self.owned) - assignment):
            self._give_up(leaving)
            self.has_given_up = self._rebalances = True
        if coming := sorted(assignment - set(self.owned)):
            sleep(self.broker.latency())
            if self._is_out or self._assignment is not None:
                return  # what is newer counts
            positions = {one: self.group.committed.get(one) for one in coming}
            self.owned |= {one: position.offset if position else 0 for one, position in positions.items()}
            told = [(*one, at.offset if at else None) for one, at in positions.items()]
            self.broker.world.trace("assigned", self.process.name, told)
            self.listener.assigned(positions)

    def _give_up(self, leaving: list[Partition]) -> None:
        self.broker.world.has_moved = True
        self.broker.world.trace("revoking", self.process.name, [one.number for one in leaving])
        self.process.lost_at = inf
        positions = self.listener.revoked(leaving)
        for _attempt in range(3):
            try:
                self.commit({one: at for one, at in positions.items() if one in self.owned})
                break
            except LogUnavailable:
                sleep(0.3)
        self._drop(leaving)

    def _drop(self, partitions: Sequence[Partition]) -> None:
        self.process.lost_at = Machine.now()
        for one in partitions:
            self.owned.pop(one, None)
            self._ends.pop(one, None)
            self._paused.discard(one)

    @property
    def has_more(self) -> bool:
        """Whether it should have been handed something, or may be when the log is there again. Not while it revokes."""
        if self.process.lost_at == inf:
            return False
        before_ms = int((EPOCH + Machine.now() - 1.0) * 1000)
        waiting = [self.broker.topics[one.topic][one.number][at : at + 1] for one, at in self.owned.items()]
        return self.broker.is_down or any(one.timestamp_ms < before_ms for some in waiting for one in some)

    def _take(self, limit: int) -> list[Message]:
        batch: list[Message] = []
        if self.broker.is_down:
            return batch
        self._turn += 1
        owned, turn = sorted(self.owned), self._turn % max(1, len(self.owned))
        for one in [one for one in owned[turn:] + owned[:turn] if one not in self._paused]:
            part, at = self.broker.topics[one.topic][one.number], self.owned[one]
            found = part[at : at + limit - len(batch)]
            batch += found
            self.owned[one] = at + len(found)
            if not found and self._ends.get(one) != at:
                self._ends[one] = at
                self.listener.reached(one, at)
        return batch

    # --- commits --------------------------------------------------------------------------------

    def _send(self, positions: Positions, items: Sequence[Item] = ()) -> _Commit:
        if not positions.keys() <= self.owned.keys():
            raise LogUnavailable("not assigned (any more)")
        commit = _Commit(self, positions, items)
        self._applies_at = max(self._applies_at + 1e-6, Machine.now() + self.broker.latency())
        self.broker.at(self._applies_at - Machine.now(), commit.apply)
        return commit

    def commit(self, positions: Positions) -> None:
        if positions and self._is_transactional:
            self.commit_with((), positions)
        elif positions:
            self._wait_for(self._send(positions))

    def _wait_for(self, commit: _Commit) -> None:
        if not self.line.wait(lambda: commit.is_answered, 10.0):
            raise LogSilent("no answer to a commit")
        if commit.answer is not None:
            raise commit.answer

    def commit_with(self, items: Sequence[Item], positions: Positions) -> Mapping[int, str]:
        if self._doubtful is not None and not self._doubtful.items:
            self._end_doubt()
        if self._doubtful is not None:
            raise LogUnavailable("the end of an earlier transaction is not known")
        commit = self._send(positions, items)
        try:
            self._wait_for(commit)
        except LogSilent as error:
            self._doubtful = commit
            raise CommitInDoubt("no answer to a transaction") from error
        return commit.refused

    def was_committed(self, positions: Positions) -> bool:
        self.broker.ask()
        self._end_doubt()
        committed = self.group.committed
        return bool(positions) and all(committed.get(one) == at for one, at in positions.items())

    def _end_doubt(self) -> None:
        if self._doubtful is not None:
            self._doubtful.is_void, self._doubtful = True, None

    def begin_commit(self, positions: Positions, answered: Answered) -> None:
        if positions and positions.keys() <= self.owned.keys():
            self._pending = self._send(positions)
            self._pending.answered = answered
        else:
            answered(LogUnavailable("not assigned (any more)") if positions else None)

    def pause(self, partitions: Collection[Partition]) -> None:
        self._paused = set(partitions)

    def close(self, *, for_good: bool = False) -> None:
        if self.owned:
            self._give_up(sorted(self.owned))
        self._is_closed = True
        if for_good or not self.member_name:
            self.group.leave(self.number)
        else:
            self.group.lost_sight(self)
        self.forget()


class SimProducer(_Client):
    """Messages of one producer arrive in order, and are tried again while the servers are away."""

    _unfinished = 0
    _is_closed = False

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._times = [0.0, 0.0, 0.0]  # of the last message: when it leaves, arrives, and is confirmed

    def send(self, topic: str, key: Any, value: Any, headers: Any = ()) -> Future[MessagePlace]:
        future: Future[MessagePlace] = Future()
        future.set_running_or_notify_cancel()
        if self._is_closed:
            future.set_exception(LogUnavailable("the producer is closed"))
        else:  # out of this process, then over the network: what has left it arrives even if it dies
            self._unfinished += 1
            self.process.leaving[topic] += 1
            sent = Sent(self.process, Machine.now())
            self._next(0, self.context, self._leave, (topic, key, value, headers, sent), future)
        return future

    def _next(self, stage: int, context: contextvars.Context, call: Any, *args: Any) -> None:
        self._times[stage] = max(self._times[stage] + 1e-6, Machine.now() + self.broker.latency() / 2)
        Machine.running().call_at(self._times[stage], call, *args, context=context)

    def _leave(self, message: Any, future: Any) -> None:
        self.process.leaving[message[0]] -= 1
        self._next(1, NETWORK, self._arrive, message, future)

    def _arrive(self, message: Any, future: Any) -> None:
        if not self.broker.is_down and self.broker.takes_messages:
            self._next(2, self.context, self._done, future, self.broker.append(*message))
        elif not self.process.is_dead:
            self._times[1] = max(self._times[1] + 1e-6, Machine.now() + 0.25)
            Machine.running().call_at(self._times[1], self._arrive, message, future, context=NETWORK)

    def _done(self, future: Any, place: MessagePlace) -> None:
        self._unfinished -= 1
        future.set_result(place)
        self.line.notify()

    def flush(self, timeout_seconds: float) -> int:
        self.line.wait(lambda: not self._unfinished, timeout_seconds)
        return self._unfinished

    def close(self) -> None:
        self.flush(5.0)
        self._is_closed = True


class SimReader(_Polled):
    def __init__(self, broker: Broker, topic: str) -> None:
        super().__init__(broker, (topic,))
        self._next: Counter[int] = Counter()  # offset, by partition
        self.mark_end()

    def _parts(self) -> Sequence[list[Message]]:
        return self.broker.topics.get(self.topics[0], ())

    def mark_end(self) -> None:
        if self.broker.is_down:
            raise LogUnavailable("the log does not answer")
        self._ends = [len(part) for part in self._parts()]

    @property
    def is_at_end(self) -> bool:
        return all(self._next[number] >= end for number, end in enumerate(self._ends))

    def poll(self, timeout_seconds: float) -> list[Message]:
        return self.poll_until(timeout_seconds, self._take)

    def _take(self) -> list[Message]:
        found: list[Message] = []
        for number, part in enumerate(self._parts() if not self.broker.is_down else ()):
            found += part[self._next[number] :]
            self._next[number] = len(part)
        return found

    close = _Polled.forget


class SimSeedLog(SeedLog):
    address = "simulated"
    has_own_clock = True
    broker: Broker  # set for each run

    @classmethod
    def from_settings(cls, _settings: Any) -> SimSeedLog:
        return cls()

    def check(self, timeout_seconds: float) -> None:
        self.broker.ask()

    def granted(self, rights: object) -> list[Any]:
        return []  # it knows no rights

    def identity(self) -> str:
        return self.address

    def consumer(
        self, topics: tuple[str, ...], group: str, listener: Listener, *, with_results: bool = False
    ) -> SimConsumer:
        return SimConsumer(self.broker, topics, group, listener, is_transactional=with_results)

    def producer(self, purpose: str = "") -> SimProducer:
        return SimProducer(self.broker)

    def keep(self, topic: str, seconds: float) -> None:
        self.broker.ask().topic(topic, 1)

    def progress(self, topic: str, group: str | None) -> list[PartitionProgress]:
        parts = self._parts(topic)
        committed = {} if group is None else self.broker.group(group).committed
        return [PartitionProgress(one, 0, len(part), committed.get(one)) for one, part in parts.items()]

    def make_topic(self, topic: str, partitions: int, *, compacted: bool, dated: bool = False) -> None:
        self.broker.ask().topic(topic, partitions)

    def reader(self, topic: str, *, compacted: bool) -> SimReader:
        return SimReader(self.broker.ask(), topic)

    def facts(self, topic: str, group: str, offsets: Mapping[Partition, int]) -> LogFacts:
        parts = self._parts(topic)
        times = {one: left[0].timestamp_ms / 1000 for one, at in offsets.items() if (left := parts[one][at:])}
        return LogFacts(len(self.broker.group(group).members), None, times)

    def unowned(self, topics: tuple[str, ...], group: str) -> frozenset[Partition] | None:
        return self.broker.ask().group(group).unowned(topics)

    def partitions(self, topic: str) -> int:
        return len(self.broker.ask().topics.get(topic, ()))

    def read(self, topic: str, start: Mapping[Partition, int] | None = None, since_ms: int = 0) -> Iterator[Message]:
        left = {one: part[(start or {}).get(one, 0) :] for one, part in self._parts(topic).items()}
        yield from (message for part in left.values() for message in part if message.timestamp_ms >= since_ms)

    def _parts(self, topic: str) -> dict[Partition, list[Message]]:
        if (parts := self.broker.ask().topics.get(topic)) is None:
            raise TopicMissing(f"Topic {topic} does not exist.")
        return {Partition(topic, number): part for number, part in enumerate(parts)}
