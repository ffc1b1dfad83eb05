"""Which dead letters were put back already.

Theory: a consumer group of its own, `<dead-letter topic>.replay`, remembers them. All below its committed
offset were put back, and so were the runs in the commit's metadata: those that somebody chose. What does not
fit into the metadata is left out from the far end, so it may be put back a second time and is never
forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from site_spider.contracts.seed_log import Partition, Position, SeedLog
from site_spider.ledger.metadata import Ahead, Run, decode, encode


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


def put_back(log: SeedLog, topic: str) -> Mapping[Partition, PutBack]:
    """What was put back, of each partition. Raises TopicMissing, LogUnavailable."""
    return {part.partition: PutBack.of(part.committed) for part in log.progress(topic, group_of(topic))}
