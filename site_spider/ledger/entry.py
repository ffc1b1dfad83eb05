"""The entry of one seed in flight, and the outcomes of a seed."""

from __future__ import annotations

from enum import Enum

from site_spider.contracts.seed_log import Partition


class Outcome(Enum):
    """How a seed ended."""

    RESULT = "result"  # its page was fetched and the result acknowledged
    FAILURE = "failure"  # a failure result with a description was acknowledged
    FILTERED = "filtered"  # it had been done before
    DEAD_LETTER = "dead_letter"  # set aside with a reason
    SPILLED = "spilled"  # handed on to the log as other seeds
    CANCELLED = "cancelled"  # it had not begun when its task was cancelled or expired


class Entry:
    """One seed in flight: where it came from, its open holds and, once known, its outcome."""

    __slots__ = ("epoch", "holds", "live", "offset", "outcome", "partition")

    def __init__(self, partition: Partition, offset: int, epoch: int) -> None:
        self.partition = partition
        self.offset = offset
        self.epoch = epoch
        self.holds = 1
        self.live = True  # False once its partition was revoked
        self.outcome: Outcome | None = None

    def __repr__(self) -> str:
        state = "live" if self.live else "fenced"
        return (
            f"<seed {self.partition.topic}/{self.partition.number}@{self.offset} {state} {self.holds} holds>"
        )
