"""When a task has ended: a rule over the records of its control log.

Theory of operation. One log orders all records of a task. A *position* is the offset after a record.

- `Producing`: a producer begins to send seeds of the task, or has sent them all. Then it names its highs:
  for each seed partition, the position of its last seed. One that `closes` says that no more producer comes.
- `High`: a process has spilled a request. It releases the seed of the request only when the topic has
  acknowledged the message and this log has acknowledged the `High`.
- `Tally`: the owner of a seed partition says what it has counted, and `passed`: every seed of the task below
  that position is complete, and its offset is committed.

The task is over when it is closed, no producer is sending, and `passed` has reached the highest position in
every partition. Suppose a seed of the task is incomplete then. Its position is above `passed`, so it is in
no record read so far. A producer's seed stands in the highs of that producer, which has ended. So the seed
was spilled, its `High` comes later, and its parent is not complete either: the parent's position is above
`passed`, too. The chain of parents ends at a producer's seed, which is a contradiction. Nothing depends on
which process wrote a record, or in what order partitions are read.

The rules that must stay in sync with this module:

1. `highs` and `passed` only grow. They are facts, so a late record of a process that lost its partition is
   as true as before.
2. Tallies are numbered: a writer builds on the last one it has read and gives its own the next version. The
   first of each version in the log is valid, any other one is void, and its writer builds anew
   (tasks.counting).
3. Compaction keeps the last record of a key, and a key has one writer. So an older record may be missing
   while the later one is not read yet: ask `is_over` only at the end of the log.
4. An end is a record, too. It says up to which offset of this log it is told. What a producer says above that
   offset begins the next generation of the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from site_spider.contracts.seed_log import Partition
from site_spider.tasks.counts import NOTHING, Counts

ALL_PRODUCERS = "*"
UNKNOWN = -1
LAST_VERSION = 2**62  # of a tally; behind it there is none
NO_HIGHS: Mapping[Partition, int] = {}


class Producing(NamedTuple):
    """A producer begins (`is_open`), or has sent all its seeds. The name `*` speaks for all before it."""

    producer: str
    is_open: bool
    closes: bool = False  # the task: no other producer will begin
    highs: Mapping[Partition, int] = NO_HIGHS
    messages: int = (
        0  # seeds of producers that were found in the topics; UNKNOWN: perhaps more were done before
    )


class High(NamedTuple):
    """A seed of the task was put into this partition, below this position.

    Or the writer says that it has done so many before the log named the task: nobody has counted these.
    """

    partition: Partition
    writer: str
    position: int
    uncounted: int = 0


@dataclass(frozen=True, slots=True)
class Tally:
    """What was counted in one partition, from the beginning: the offsets below `top`, but not `holes`."""

    partition: Partition
    writer: str
    version: int
    passed: int
    top: int = 0
    holes: frozenset[int] = frozenset()
    counts: Counts = NOTHING

    def has_counted(self, offset: int) -> bool:
        """Whether the seed at this offset is in the counts."""
        return (offset < self.top and offset not in self.holes) or self.version >= LAST_VERSION


class Passed(NamedTuple):
    """Everything of the task below this position was put back elsewhere, with its `High`."""

    partition: Partition
    writer: str
    position: int


class EndTold(NamedTuple):
    """The end was told of a generation, from what the log said below an offset; `event` is what was told.

    Its pages are those that the page log has below `pages_upto`, and those of the generation before.
    """

    generation: int
    upto: int
    highs: Mapping[Partition, int]
    event: Mapping[str, Any]
    pages_upto: int = 0


class Noticed(NamedTuple):
    """The event of a generation is in the topic of events."""

    generation: int


class WebhookAttempt(NamedTuple):
    """One attempt to send a webhook; `error` is empty when it was taken, `status` 0 when nothing answered."""

    at_ms: int
    status: int
    error: str


class Attempts(NamedTuple):
    """All attempts for the event of a generation."""

    generation: int
    made: tuple[WebhookAttempt, ...]


Fact = Producing | High | Tally | Passed | EndTold | Noticed | Attempts


@dataclass(slots=True)
class TaskEnding:
    """All that the log says of one task; see the module's theory of operation."""

    generation: int = 1
    ended: EndTold | None = None  # the last end that was told
    is_closed: bool = False
    sending: set[str] = field(default_factory=set)  # producers that have begun and not ended
    highs: dict[Partition, int] = field(default_factory=dict)
    tallies: dict[Partition, Tally] = field(default_factory=dict)
    attempts: Attempts | None = None  # to send its webhook
    noticed: int = 0  # the last generation whose event is out
    read_to: int = 0  # the position in the control log
    _lacks_some: bool = False  # seeds that nobody counted
    _found: int = 0  # seeds of producers in the topics, when all of them had sent theirs
    _returned: dict[Partition, int] = field(default_factory=dict)  # of parked messages
    _words: dict[str, tuple[int, Producing]] = field(default_factory=dict)  # the last of each producer

    def read(self, offset: int, fact: Fact) -> None:
        """The next record of the log."""
        if isinstance(fact, Producing):
            self._producing(offset, fact)
        elif isinstance(fact, High):
            self._raise(fact.partition, fact.position)
            self._lacks_some = self._lacks_some or fact.uncounted > 0
        elif isinstance(fact, Tally):
            self._tallied(fact)
        elif isinstance(fact, Passed):
            self._returned[fact.partition] = max(fact.position, self._returned.get(fact.partition, 0))
        elif isinstance(fact, EndTold):
            self._was_told(fact)
        elif isinstance(fact, Attempts):
            self.attempts = fact
        else:
            self.noticed = max(self.noticed, fact.generation)
        self.read_to = offset + 1

    @property
    def is_told(self) -> bool:
        """Whether this generation has ended, and its end was told."""
        return self.ended is not None and self.ended.generation == self.generation

    @property
    def is_ending(self) -> bool:
        """Whether no producer will begin any more, or it has ended."""
        return self.is_closed or self.is_told

    @property
    def is_over(self) -> bool:
        """Whether the task has ended, or had; to be asked at the end of the log only."""
        return self.is_told or (self.is_closed and not self.sending and self.is_passed)

    @property
    def has_seeds(self) -> bool:
        """Whether somebody is producing them, or not all of them are complete."""
        return not self.is_told and (bool(self.sending) or not self.is_passed)

    @property
    def is_passed(self) -> bool:
        """Whether all that is known of it is complete and committed."""
        return all(self.passed(partition) >= high for partition, high in self.highs.items())

    def is_waiting_for(self, topic: str) -> bool:
        """Whether something of this topic is not complete and committed."""
        return not self.is_told and any(
            self.passed(partition) < high
            for partition, high in self.highs.items()
            if partition.topic == topic
        )

    def passed(self, partition: Partition) -> int:
        """Everything of the task below this position is complete and committed."""
        counted = self.tallies[partition].passed if partition in self.tallies else 0
        return max(counted, self._returned.get(partition, 0))

    def counts(self) -> Counts:
        """Over all partitions and generations."""
        return sum((tally.counts for tally in self.tallies.values()), NOTHING)

    @property
    def is_partial(self) -> bool:
        """Whether seeds were complete before the log named the task, and are not in the counts."""
        return self._lacks_some or self._found > self.counts().as_sent

    def _producing(self, offset: int, said: Producing) -> None:
        if self.is_told:
            self._begin_generation()
        self._words[said.producer] = offset, said
        if said.is_open:
            self.sending.add(said.producer)
        elif said.producer == ALL_PRODUCERS:
            self.sending.clear()
        else:
            self.sending.discard(said.producer)
        self.is_closed = self.is_closed or said.closes
        self._lacks_some = self._lacks_some or said.messages == UNKNOWN
        self._found = max(self._found, said.messages)
        for partition, position in said.highs.items():
            self._raise(partition, position)

    def _raise(self, partition: Partition, position: int) -> None:
        self.highs[partition] = max(position, self.highs.get(partition, 0))

    def _tallied(self, tally: Tally) -> None:
        before = self.tallies.get(tally.partition)
        if before is None or tally.version > before.version:
            self.tallies[tally.partition] = tally

    def _was_told(self, ended: EndTold) -> None:
        if ended.generation < self.generation or self.is_told:
            return  # told twice
        self.generation, self.ended = ended.generation, ended
        since = sorted(word for word in self._words.values() if word[0] >= ended.upto)
        for offset, said in since:  # while the end was on its way into the log
            self._producing(offset, said)

    def _begin_generation(self) -> None:
        self.generation += 1
        self.is_closed = False
        self.sending.clear()
        self._words.clear()
