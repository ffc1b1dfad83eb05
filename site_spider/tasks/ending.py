"""When a task has ended: a rule over the records of its control log.

Theory of operation. One log orders all records of a task. A *position* is the offset after a record.

- `Producing`: a producer begins to send seeds of the task, or has sent them all. Then it names its highs:
  for each seed partition, the position of its last seed. One that `closes` says that no more producer comes.
- `Tally`: the owner of a seed partition says what it has counted there, and `passed`: every seed of the task
  below that position is complete, and its offset is committed. Its `highs` are positions of messages that
  seeds of this partition became: links, and what was parked or sent on.
- `Moved`: whoever puts parked messages back says how far, and the highs of where they are now.

The task is over when it is closed, no producer is sending, and `passed` has reached the highest position in
every partition. Why this is never early, and never forgotten, is in docs/decisions/0025.

The rules that must stay in sync with this module:

1. `highs` and `passed` only grow. They are facts, so a late record of a process that lost its partition is
   as true as before.
2. Tallies are numbered: a writer builds on the last one it has read and gives its own the next version. The
   first of each version in the log is valid, any other one is void, and its writer builds anew.
3. A seed completes when its process has read back a valid tally of its own, written after its work was done:
   that has counted it, or says that it was, and names highs of all messages that the process knows of.
4. A tally carries on what the one before it says. So whoever has read back its own takes back those of other
   writers. A writer uses one key as long as it builds on its own tallies, and then never again.
5. Compaction keeps the last record of a key. So an older record may be missing while the later one is not
   read yet: ask `is_over` only at the end of the log.
6. An end is a record, too. It says up to which offset of this log it is told. What a producer says above that
   offset begins the next generation of the task.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, ValidationInfo

from site_spider.contracts.seed_log import Headers, Partition
from site_spider.ledger.ledger import Outcome
from site_spider.ledger.metadata import ascending_from_text, ascending_to_text
from site_spider.seed.seed import MOVED, Seed, first_place, is_of_link
from site_spider.tasks.declaration import bounded

# --- what a record may hold ------------------------------------------------------------------------------

LAST_MS = 253_402_300_799_999  # of the year 9999
LAST_VERSION = 2**62  # of a tally; behind it there is none
ALL_PRODUCERS = "*"
UNKNOWN = -1
_MOST_HOLES = 200_000  # of a tally: seeds in flight
_PARTITION = re.compile(r"([A-Za-z0-9._-]{1,249})/([0-9]{1,9})")


def _partition(said: object) -> object:
    match = _PARTITION.fullmatch(said) if isinstance(said, str) else None
    return said if match is None else Partition(match[1], int(match[2]))


def _offsets(said: object, info: ValidationInfo) -> frozenset[int]:
    """Holes are told by how far they lie above `passed`."""
    least = info.data.get("passed", 0) if info.field_name == "holes" else 0
    if not isinstance(said, str):
        raise ValueError("offsets are a text")  # noqa: TRY004 - as pydantic asks
    found = frozenset(islice(ascending_from_text(said, least), _MOST_HOLES + 1))
    if len(found) > _MOST_HOLES:
        raise ValueError(f"it has more than {_MOST_HOLES} offsets")
    return found


Number = Annotated[int, Field(strict=True, ge=0, le=2**62)]
Milliseconds = Annotated[int, Field(strict=True, ge=0, le=LAST_MS)]
Line = Annotated[str, Field(min_length=1, max_length=1_000)]
Numbers = Annotated[Mapping[Line, Number], Field(max_length=1_000)]
Flag = Annotated[bool, Field(strict=True)]
Place = Annotated[Partition, BeforeValidator(_partition), PlainSerializer(lambda part: f"{part.topic}/{part.number}")]
Highs = Mapping[Place, Number]
Offsets = Annotated[
    frozenset[int], PlainValidator(_offsets), PlainSerializer(lambda offsets: ascending_to_text(sorted(offsets), 0))
]


# --- counts ----------------------------------------------------------------------------------------------
# How the messages of a task have ended: counts that can be added up, and what they say of its seeds.
#
# Theory of operation. A name of a count is an outcome. A message that is not as its producer sent it has a
# prefix before it: `link:` for a link that another process found, `again:` for a seed that was put back
# after a pause, or went on in another process; `moved:` where a release before did not say which seed it
# was. A message whose outcome is `spilled` has left, and comes again with a prefix, perhaps more than once.
# So how a seed that has left ended is told apart: see tasks.page_log.

_LINK, _AGAIN, _MOVED = "link:", "again:", "moved:"
SPILLED = Outcome.SPILLED.value


@dataclass(frozen=True, slots=True)
class Counts:
    """`seeds` by name. Times are milliseconds since 1970, 0 for none. Two messages may count one page."""

    seeds: Numbers = field(default_factory=dict)
    first_ms: Annotated[Milliseconds, Field(alias="first")] = 0
    last_ms: Annotated[Milliseconds, Field(alias="last")] = 0
    pages: Number = 0  # that were answered
    size_bytes: Annotated[Number, Field(alias="bytes")] = 0
    traps: Numbers = field(default_factory=dict)  # links that were not followed, by pattern

    def __add__(self, other: Counts) -> Counts:
        """The sum; of the times the first and the last."""
        starts = [count.first_ms for count in (self, other) if count.first_ms]
        names = {**self.seeds, **other.seeds}
        return Counts(
            {name: self.seeds.get(name, 0) + other.seeds.get(name, 0) for name in names},
            min(starts, default=0),
            max(self.last_ms, other.last_ms),
            self.pages + other.pages,
            self.size_bytes + other.size_bytes,
            bounded(Counter(self.traps) + Counter(other.traps)),
        )

    @property
    def as_sent(self) -> int:
        return sum(count for name, count in self.seeds.items() if ":" not in name)


NOTHING = Counts()


def prefix_of(seed: Seed, headers: Headers) -> str:
    """What stands before the outcome of a message; empty for a seed as its producer sent it."""
    if is_of_link(seed, headers):
        return _LINK
    if first_place(headers):
        return _AGAIN
    return "" if seed.spilled is None and all(name != MOVED for name, _ in headers) else _MOVED


class SeedCounts(NamedTuple):
    """The counts of a task as they are shown: its seeds by outcome, and apart from them what moved."""

    seeds: dict[str, int]
    moved: dict[str, int]  # spilled: messages that left; returned: of these, seeds that came; links: that came

    @classmethod
    def of(cls, counts: Mapping[str, int], came_back: Mapping[str, int] | None = None) -> Self:
        """Of counts by name, and of seeds that had left by outcome; without these, of what has come back."""
        seeds = Counter(came_back)
        moved: Counter[str] = Counter()
        for name, count in counts.items():
            kind, _, outcome = name.rpartition(":")
            moved[{"link": "links", "again": "returned", "moved": "returned"}.get(kind, "")] += count
            if outcome == SPILLED:
                moved[SPILLED] += count
            elif kind in ("", "moved") or (kind == "again" and came_back is None):
                seeds[outcome] += count
        del moved[""]
        moved["returned"] = min(moved["returned"], moved[SPILLED])  # after a death one may come back twice
        ordered = {outcome.value: seeds.pop(outcome.value, 0) for outcome in Outcome}
        return cls({name: count for name, count in (ordered | seeds).items() if count}, dict(+moved))

    def fields(self) -> dict[str, dict[str, int]]:
        return {"seeds": {**self.seeds, "total": sum(self.seeds.values())}, "moved": self.moved}


@dataclass(frozen=True, slots=True)
class Producing:
    """A producer begins (`is_open`), or has sent all its seeds. The name `*` speaks for all before it.

    Whoever has sent all may carry on the words of others that have: `highs` and `messages` are theirs, too.
    `messages` are seeds of producers that were found in the topics; UNKNOWN: perhaps more were done before.
    """

    producer: str
    is_open: Annotated[Flag, Field(alias="open")]
    closes: Flag = False  # the task: no other producer will begin
    highs: Highs = field(default_factory=dict)
    messages: Annotated[int, Field(strict=True, ge=UNKNOWN, le=2**62)] = 0
    closed: Number = 0  # the generation that one of the others has closed


@dataclass(frozen=True, slots=True)
class Tally:
    """What was counted in one partition, from the beginning: the offsets below `top`, but not `holes`."""

    partition: Place
    writer: str
    version: Annotated[int, Field(strict=True, ge=0, le=LAST_VERSION)]
    passed: Number
    top: Number = 0
    holes: Offsets = frozenset()
    counts: Counts = NOTHING
    left: Offsets = frozenset()  # counted as spilled, and not known to be committed
    highs: Highs = field(default_factory=dict)  # of what its seeds became

    def has_counted(self, offset: int) -> bool:
        return (offset < self.top and offset not in self.holes) or self.version >= LAST_VERSION


@dataclass(frozen=True, slots=True)
class Moved:
    """Parked messages below `passed` are elsewhere by now, below `highs`."""

    passed: Highs = field(default_factory=dict)
    highs: Highs = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Uncounted:
    """So many seeds were complete before the log named the task: nobody has counted them."""

    seeds: Number


@dataclass(frozen=True, slots=True)
class TakenBack:
    """A record is gone whose words another one carries on: a tally, or what a producer said."""

    name: str  # of its writer
    partition: Partition | None = None  # of a tally
    is_open: bool = False  # of a producer


@dataclass(frozen=True, slots=True)
class EndTold:
    """The end was told of a generation, from what the log said below an offset; `event` is what was told.

    Its pages are those that the page log has below `pages_upto`, and those of the generation before.
    """

    generation: Number
    upto: Number
    event: Mapping[str, Any]
    pages_upto: Number = 0
    came_back: Numbers = field(default_factory=dict)  # seeds that had left, by outcome


@dataclass(frozen=True, slots=True)
class Noticed:
    """The event of a generation is in the topic of events."""

    generation: Number


class WebhookAttempt(NamedTuple):
    """One attempt to send a webhook; status and error are those of signed_post.post."""

    at_ms: Milliseconds
    status: Number
    error: Annotated[str, Field(max_length=1_000)]


@dataclass(frozen=True, slots=True)
class Attempts:
    """All attempts for the event of a generation."""

    generation: Number
    made: tuple[WebhookAttempt, ...]


Fact = Producing | Tally | Moved | Uncounted | EndTold | Noticed | Attempts | TakenBack
Word = tuple[str, bool]  # a producer, and whether it says there that it begins


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
    lacks_some: bool = False  # seeds that nobody counted
    _found: int = 0  # seeds of producers in the topics, when all of them had sent theirs
    moved: Moved = field(default_factory=Moved)
    words: dict[Word, tuple[int, Producing]] = field(default_factory=dict)  # with their offsets
    writers: dict[Partition, set[str]] = field(default_factory=dict)  # of tallies that are in the log

    def read(self, offset: int, fact: Fact) -> None:
        if isinstance(fact, Producing):
            self._producing(offset, fact)
        elif isinstance(fact, Tally):
            self.writers.setdefault(fact.partition, set()).add(fact.writer)
            self._tallied(fact)
        elif isinstance(fact, Moved):
            before = self.moved
            self.moved = Moved(_highest(before.passed, fact.passed), _highest(before.highs, fact.highs))
            self._raise(fact.highs)
        elif isinstance(fact, Uncounted):
            self.lacks_some = True
        elif isinstance(fact, TakenBack):
            self._taken_back(fact)
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
    def made(self) -> tuple[WebhookAttempt, ...]:
        """Attempts to send the webhook of the last end."""
        attempts, ended = self.attempts, self.ended
        return attempts.made if attempts and ended and attempts.generation == ended.generation else ()

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
        return not self.is_told and any(
            self.passed(partition) < high for partition, high in self.highs.items() if partition.topic == topic
        )

    def passed(self, partition: Partition) -> int:
        """Everything of the task below this position is complete and committed."""
        return max(self.tallied(partition), self.moved.passed.get(partition, 0))

    def tallied(self, partition: Partition) -> int:
        """The same, as far as tallies say it."""
        return self.tallies[partition].passed if partition in self.tallies else 0

    def counts(self) -> Counts:
        return sum((tally.counts for tally in self.tallies.values()), NOTHING)

    @property
    def is_partial(self) -> bool:
        """Whether seeds were complete before the log named the task, and are not in the counts."""
        return self.lacks_some or self._found > self.counts().as_sent

    def carried_words(self, upto: int) -> list[TakenBack]:
        """What producers say in the log below an offset, once it is carried on: all but who is sending."""
        return [
            TakenBack(name, is_open=is_open)
            for (name, is_open), (offset, _) in self.words.items()
            if name != ALL_PRODUCERS and offset < upto and not (is_open and name in self.sending)
        ]

    def carried_on(self, said: Producing) -> Producing:
        """What a producer says in the end, with the words of those that have ended before it."""
        ended = [word for word in self.carried_words(self.read_to) if not word.is_open]
        others = [self.words[word.name, False][1] for word in ended]
        counts = [said.messages, *(other.messages for other in others)]
        now = [self.generation] if not self.is_told else []
        closed = [*(other.closed for other in others), *(now if self.is_closed else [])]
        return replace(
            said,
            highs=_highest(said.highs, *(other.highs for other in others)),
            messages=UNKNOWN if UNKNOWN in counts else max(counts),
            closed=max(closed, default=0),
        )

    def _producing(self, offset: int, said: Producing) -> None:
        if self.is_told:
            self._begin_generation()
        self.words[said.producer, said.is_open] = offset, said
        if said.is_open:
            self.sending.add(said.producer)
        elif said.producer == ALL_PRODUCERS:
            self.sending.clear()
        else:
            self.sending.discard(said.producer)
        self.is_closed = self.is_closed or said.closes or said.closed == self.generation
        self.lacks_some = self.lacks_some or said.messages == UNKNOWN
        self._found = max(self._found, said.messages)
        self._raise(said.highs)

    def _raise(self, highs: Mapping[Partition, int]) -> None:
        for partition, position in highs.items():
            self.highs[partition] = max(position, self.highs.get(partition, 0))

    def _taken_back(self, record: TakenBack) -> None:
        if record.partition is not None:
            self.writers.get(record.partition, set()).discard(record.name)
            return
        self.words.pop((record.name, record.is_open), None)
        if record.is_open:
            self.sending.discard(record.name)

    def _tallied(self, tally: Tally) -> None:
        before = self.tallies.get(tally.partition)
        if before is None or tally.version > before.version:
            self.tallies[tally.partition] = tally
            self._raise(tally.highs)

    def _was_told(self, ended: EndTold) -> None:
        if ended.generation < self.generation or self.is_told:
            return  # told twice
        self.generation, self.ended = ended.generation, ended
        since = sorted(word for word in self.words.values() if word[0] >= ended.upto)
        for offset, said in since:  # while the end was on its way into the log
            self._producing(offset, said)

    def _begin_generation(self) -> None:
        self.generation += 1
        self.is_closed = False
        self.sending.clear()


def _highest(*of: Mapping[Partition, int]) -> dict[Partition, int]:
    found: dict[Partition, int] = {}
    for positions in of:
        for partition, position in positions.items():
            found[partition] = max(position, found.get(partition, 0))
    return found


# --- counting --------------------------------------------------------------------------------------------
# Counts the seeds of one task in one partition. Each is counted once, even if several processes crawl it.
#
# Theory of operation. A seed whose work is done has one hold left, ours. A tally that counts it goes to the
# control log. When that is read back as valid, the hold is released: the seed is complete, and its offset
# can be committed. So nothing is committed that was not counted. A crash in between repeats the seed, but
# the tally says that its offset was counted, so the repeat counts nothing. It waits for a tally all the
# same: that names the messages which the repeat has sent.
#
# A tally says which offsets it has counted as a bound and the holes below it. Holes are seeds in flight, so
# their number is bounded. A process that lost the partition may write a tally late. Then either its version
# is void, or the new owner's is, and that one builds anew on what it reads. Each offset is in one valid
# tally.


@dataclass(slots=True, eq=False)
class Counting:
    """One task in one partition, in one epoch of a process."""

    _partition: Partition
    _name: str  # of the process in this epoch
    _numbers: Iterator[int]  # make keys of the name that nobody has used
    _writer: str | None = None  # of its tallies, once there is one
    _open: dict[int, None] = field(default_factory=dict)  # arrived and not known to be committed, ascending
    _uncounted: dict[int, None] = field(default_factory=dict)  # of these, what has not completed, ascending
    _ready: dict[int, Counts] = field(default_factory=dict)  # of these, what is done but for the counting
    _sent: Tally | None = None  # the tally that is on its way
    _done: tuple[int, ...] = ()  # what completes when that is read back
    _stale: set[str] = field(default_factory=set)  # writers whose tallies were taken back

    def arrived(self, offset: int) -> None:
        """A seed of the task was polled; offsets ascend."""
        self._open[offset] = None
        self._uncounted[offset] = None

    def done(self, offset: int, counts: Counts) -> None:
        """Nothing is left of its work."""
        if offset in self._uncounted:
            self._ready[offset] = counts

    def skipped(self, offset: int) -> None:
        self._uncounted.pop(offset, None)
        self._ready.pop(offset, None)

    def skip_all(self) -> list[int]:
        """What is done is not to be counted; returns the offsets."""
        offsets = list(self._ready)
        for offset in offsets:
            self.skipped(offset)
        return offsets

    def committed(self, is_committed: Callable[[int], bool]) -> None:
        """Asks about the first ones and about what has completed: the others are very many, and cannot be."""
        first, completed = takewhile(is_committed, self._open), self._open.keys() - self._uncounted.keys()
        for offset in {*first, *filter(is_committed, completed)}:
            del self._open[offset]

    @property
    def is_waiting(self) -> bool:
        """Whether something is done and not known to be counted, or a tally is on its way."""
        return bool(self._ready) or self._sent is not None

    @property
    def is_empty(self) -> bool:
        return not self._open

    def passed(self, position: int) -> int:
        """Below it all is complete and committed; `position` is the next offset to be polled."""
        return next(iter(self._open), position)

    def read(self, ending: TaskEnding) -> list[int]:
        """What the log says now; returns the offsets that have waited for it."""
        last, sent = ending.tallies.get(self._partition), self._sent
        if last is not None and last.version >= LAST_VERSION:
            return self.skip_all()
        if last is None or sent is None or last.version < sent.version:
            return []
        self._sent = None
        if (last.writer, last.version) != (sent.writer, sent.version):
            return []
        counted = [offset for offset in self._done if offset in self._ready]
        for offset in counted:
            self.skipped(offset)
        return counted

    def stale(self, ending: TaskEnding) -> list[str]:
        """Writers of tallies that ours carries on, each once."""
        last, writers = ending.tallies.get(self._partition), ending.writers.get(self._partition, set())
        if last is None or last.writer != self._writer:
            return []
        found = sorted(writers - self._stale - {last.writer})
        self._stale.update(found)
        return found

    def next_tally(
        self, ending: TaskEnding, position: int, known: Mapping[Partition, int], *, tells_passed: bool
    ) -> Tally | None:
        """What is to be written now; None when there is no news, or one is on its way.

        `known` are positions of all messages of the task that this process knows. `tells_passed`: `passed`
        alone is news.
        """
        last = ending.tallies.get(self._partition) or Tally(self._partition, "", 0, 0)
        passed = max(last.passed, self.passed(position))
        if self._sent or not (self._ready or (tells_passed and passed > last.passed)):
            return None
        self._name_anew(last)
        fresh = {offset: counts for offset, counts in self._ready.items() if not last.has_counted(offset)}
        top = max([last.top, *(offset + 1 for offset in fresh)])
        holes = [*last.holes, *(offset for offset in self._uncounted if last.top <= offset < top)]
        left = {offset for offset in last.left if offset in self._open or offset >= position}
        self._done = tuple(self._ready)
        self._sent = Tally(
            self._partition,
            self._writer or "",
            last.version + 1,
            passed,
            top,
            frozenset(offset for offset in holes if offset >= passed and offset not in fresh),
            sum(fresh.values(), last.counts) if fresh else last.counts,
            frozenset(left.union(offset for offset, counts in fresh.items() if SPILLED in counts.seeds)),
            {part: high for part, high in _highest(last.highs, known).items() if high > ending.tallied(part)},
        )
        return self._sent

    def _name_anew(self, last: Tally) -> None:
        """One key, as long as a tally is built on one of the same key."""
        if self._writer and last.writer == self._writer:
            return
        is_first = self._writer is None
        is_ours = is_first and last.writer.startswith(f"{self._name}.")
        self._writer = last.writer if is_ours else f"{self._name}.{next(self._numbers)}"

    def failed(self) -> None:
        """The tally that was on its way may not be in the log; it is written anew, under another key."""
        self._sent, self._writer = None, ""
