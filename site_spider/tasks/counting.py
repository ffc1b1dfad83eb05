"""Counts the seeds of one task in one partition, each once, whoever does it how often.

Theory of operation. A seed whose work is done has one hold left, ours. A tally that counts it goes to the
control log. When that is read back as valid, the hold is released: the seed is complete, and its offset can
be committed. So nothing is committed that was not counted. A crash in between repeats the seed, but the
tally says that its offset was counted, so the repeat counts nothing.

A tally says which offsets it has counted as a bound and the holes below it. Holes are seeds in flight, so
their number is bounded. A process that lost the partition may write a tally late. Then either its version
is void, or the new owner's is, and that one builds anew on what it reads. Each offset is in one valid
tally.
"""

from __future__ import annotations

from collections.abc import Callable

from site_spider.contracts.seed_log import Partition
from site_spider.tasks.counts import Counts
from site_spider.tasks.ending import Tally


class Counting:
    """One task in one partition, in one epoch of a process."""

    __slots__ = ("_open", "_partition", "_ready", "_sent", "_uncounted", "_writer")

    def __init__(self, partition: Partition, writer: str) -> None:
        self._partition = partition
        self._writer = writer
        self._open: dict[int, None] = {}  # arrived and not known to be committed, ascending
        self._uncounted: dict[int, None] = {}  # of these, what no tally has that was read, ascending
        self._ready: dict[int, Counts] = {}  # of these, what is done but for the counting
        self._sent = 0  # the version of the tally that is on its way

    def arrived(self, offset: int) -> None:
        """A seed of the task was polled; offsets ascend."""
        self._open[offset] = None
        self._uncounted[offset] = None

    def done(self, offset: int, counts: Counts) -> None:
        """Nothing is left of its work."""
        if offset in self._uncounted:
            self._ready[offset] = counts

    def skipped(self, offset: int) -> None:
        """It is not to be counted."""
        self._uncounted.pop(offset, None)
        self._ready.pop(offset, None)

    def skip_all(self) -> list[int]:
        """What is done is not to be counted; returns the offsets."""
        offsets = list(self._ready)
        for offset in offsets:
            self.skipped(offset)
        return offsets

    def committed(self, is_committed: Callable[[int], bool]) -> None:
        """Offsets were committed."""
        for offset in [offset for offset in self._open if is_committed(offset)]:
            del self._open[offset]

    @property
    def is_waiting(self) -> bool:
        """Whether something is done and not known to be counted."""
        return bool(self._ready)

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the task is in flight here."""
        return not self._open

    def passed(self, position: int) -> int:
        """Below it all is complete and committed; `position` is the next offset to be polled."""
        return next(iter(self._open), position)

    def read(self, last: Tally | None) -> list[int]:
        """The last valid tally in the log; returns the offsets that it has counted and that waited for it."""
        if last is None:
            return []
        if last.version >= self._sent:
            self._sent = 0
        counted = [offset for offset in self._ready if last.has_counted(offset)]
        for offset in counted:
            self.skipped(offset)
        return counted

    def next_tally(self, last: Tally | None, position: int, *, tells_passed: bool) -> Tally | None:
        """What is to be written now; None when there is no news, or one is on its way.

        `tells_passed`: `passed` alone is news.
        """
        last = last or Tally(self._partition, self._writer, 0, 0)
        fresh = {offset: counts for offset, counts in self._ready.items() if not last.has_counted(offset)}
        passed = max(last.passed, self.passed(position))
        if self._sent or not (fresh or (tells_passed and passed > last.passed)):
            return None
        top = max([last.top, *(offset + 1 for offset in fresh)])
        holes = [*last.holes, *(offset for offset in self._uncounted if last.top <= offset < top)]
        self._sent = last.version + 1
        return Tally(
            self._partition,
            self._writer,
            self._sent,
            passed,
            top,
            frozenset(offset for offset in holes if offset >= passed and offset not in fresh),
            sum(fresh.values(), last.counts) if fresh else last.counts,
        )

    def failed(self) -> None:
        """The tally that was on its way is not in the log; it is written anew."""
        self._sent = 0
