"""Which dead letters were put back already, and which are copies of one another.

Theory: a consumer group of its own, `<dead-letter topic>.replay`, remembers them. All below its committed
offset were put back, and so were the runs in the commit's metadata: those that somebody chose. What does not
fit into the metadata is left out from the far end, so it may be put back a second time and is never
forgotten.

A process that dies before its commit leaves its dead letters to be written a second time by the next one.
They are one dead letter: their message came from the same place of the same topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from site_spider.contracts.seed_log import Message, Partition, Position, SeedLog
from site_spider.ledger.metadata import Ahead, Run, decode, encode

_ORIGIN: Final = ("origin_topic", "origin_partition", "origin_offset", "origin_timestamp")


def group_of(topic: str) -> str:
    """The group that remembers."""
    return f"{topic}.replay"


class PutBack(NamedTuple):
    """Of one partition: all offsets below `below`, and those in `runs`, which are ascending and disjoint."""

    below: int = 0
    runs: tuple[Run, ...] = ()

    @classmethod
    def of(cls, position: Position | None) -> PutBack:
        """From what the group has committed."""
        if position is None:
            return cls()
        return cls(position.offset, decode(position.offset, position.metadata).complete)

    def __contains__(self, offset: object) -> bool:
        if not isinstance(offset, int):
            return False
        return offset < self.below or any(first <= offset < end for first, end in self.runs)

    def up_to(self, offset: int) -> PutBack:
        """The same, with all below this one."""
        below = max(offset, self.below)
        runs = [(max(first, below), end) for first, end in self.runs if end > below]
        if runs and runs[0][0] == below:
            below = runs.pop(0)[1]
        return PutBack(below, tuple(runs))

    def with_offsets(self, offsets: Iterable[int]) -> PutBack:
        """The same, with these."""
        single = [(offset, offset + 1) for offset in offsets if offset >= self.below]
        merged: list[Run] = []
        for first, end in sorted([*self.runs, *single]):
            if merged and first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((first, end))
        return PutBack(self.below, tuple(merged)).up_to(self.below)

    def position(self) -> Position:
        """To be committed."""
        return Position(self.below, encode(self.below, Ahead(self.below, self.runs)))


class Copies:
    """Tells dead letters of the same message; those below are told by what was put back."""

    def __init__(self) -> None:
        self._put_back: set[int] = set()
        self._met: set[int] = set()

    @classmethod
    def read(cls, log: SeedLog, topic: str, done: Mapping[Partition, PutBack]) -> Copies:
        """Reads what was put back. Raises TopicMissing, LogUnavailable."""
        copies = cls()
        if any(some.below or some.runs for some in done.values()):
            copies.note(log.read(topic), done)
        return copies

    def note(self, messages: Iterable[Message], done: Mapping[Partition, PutBack]) -> None:
        """Of these, some were put back."""
        for message in messages:
            some = done.get(message.partition)
            if some is not None and message.offset in some and (origin := _origin(message)) is not None:
                self._put_back.add(origin)

    def is_put_back(self, message: Message) -> bool:
        """Whether it was, or a copy of it."""
        return _origin(message) in self._put_back

    def may_go(self, message: Message) -> bool:
        """Whether neither it nor a copy was put back, or asked about before."""
        return not self.is_put_back(message) and self.is_first(message)

    def is_first(self, message: Message) -> bool:
        """Whether no copy was asked about before."""
        origin = _origin(message)
        if origin is None:
            return True
        is_first = origin not in self._met
        self._met.add(origin)
        return is_first


def _origin(message: Message) -> int | None:
    """Of the message that was set aside; None when nothing tells.

    Where it stood is not enough: a topic that is made anew has the same offsets again.
    """
    headers = dict(message.headers)
    place = tuple(headers.get(name) for name in _ORIGIN)
    return None if None in place[:3] else hash((*place, message.key, message.value))


def put_back(log: SeedLog, topic: str) -> Mapping[Partition, PutBack]:
    """What was put back, of each partition. Raises TopicMissing, LogUnavailable."""
    return {part.partition: PutBack.of(part.committed) for part in log.progress(topic, group_of(topic))}
