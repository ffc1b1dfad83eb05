"""How far a consumer group is, from its commits and the ends of its partitions.

Theory: a message is done when the committed offset lies beyond it, or when a complete run in the
commit's metadata covers it. Everything else up to the end is lag; the part of it that was
handed out to a member already is in flight. A commit below the first offset that is still kept
(retention has removed the rest) counts from there, one beyond the end as if it were the end: the end is
asked for first, and the group does not wait for us.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from site_spider.contracts.seed_log import Partition, PartitionProgress, SeedLog
from site_spider.errors import TopicMissing
from site_spider.ledger.metadata import DoneOffsets, Run, decode
from site_spider.seed.seed import Seed
from site_spider.seed.topics import CrawlTopics
from site_spider.tasks.board import Board
from site_spider.tasks.closing import seed_of


class Progress(NamedTuple):
    """Numbers of messages; `end` is the next offset (summed up, over several partitions).

    `lag` is all that is not done, `in_flight` the part of it that is being worked on. `deleted_unread` were
    deleted by the log's retention before the group had done them, and are part of none of the others.
    """

    done: int
    in_flight: int
    lag: int
    end: int
    deleted_unread: int = 0

    @property
    def passed(self) -> int:
        """How many messages were ever done: unlike `done` it does not shrink with retention."""
        return self.end - self.lag

    @property
    def is_done(self) -> bool:
        return self.lag == 0


def of_partition(progress: PartitionProgress) -> Progress:
    """The progress in one partition."""
    start, end = progress.start, progress.end
    if progress.committed is None:
        return Progress(0, 0, end - start, end)
    offset, metadata = progress.committed
    ahead = decode(offset, metadata)
    watermark = min(max(offset, start), end)
    complete = _count(ahead.complete, watermark, end)
    position = min(max(ahead.position, watermark), end)
    in_flight = position - watermark - _count(ahead.complete, watermark, position)
    deleted = max(0, watermark - offset - _count(ahead.complete, offset, watermark))
    return Progress(watermark - start + complete, in_flight, end - watermark - complete, end, deleted)


def of_topics(log: SeedLog, topics: tuple[str, ...], group: str) -> list[PartitionProgress]:
    """Of all of them; one that does not exist yet has nothing to do.

    Raises LogUnavailable, and TopicMissing where there is none of them.
    """
    found: list[PartitionProgress] = []
    missing: TopicMissing | None = None
    for topic in topics:
        try:
            found += log.progress(topic, group)
        except TopicMissing as error:
            missing = TopicMissing(f"{error} Produce seeds to it, or name another one (SITE_SEED_TOPIC, --topic).")
    if missing is not None and not found:
        raise missing
    return found


def lag_of(log: SeedLog, topics: tuple[str, ...], group: str) -> int:
    """Messages that are not done; a topic that does not exist has none. Raises LogUnavailable."""
    try:
        return total(map(of_partition, of_topics(log, topics, group))).lag
    except TopicMissing:
        return 0


def total(parts: Iterable[Progress]) -> Progress:
    """The sum over partitions."""
    return Progress(*map(sum, zip(Progress(0, 0, 0, 0), *parts, strict=True)))


def _count(runs: Iterable[Run], low: int, high: int) -> int:
    """How many offsets from `low` to before `high` the runs cover."""
    return sum(max(0, min(last, high) - max(first, low)) for first, last in runs)


class Rate:
    """Messages done per second, over a sliding window. Times are of any clock that never goes back."""

    def __init__(self, window_seconds: float = 30.0) -> None:
        self._window_seconds = window_seconds
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, now: float, passed: int) -> None:
        """Note how many were done by now; one older than the window is kept to measure from."""
        self._seen.append((now, passed))
        while len(self._seen) > 2 and self._seen[1][0] <= now - self._window_seconds:
            self._seen.popleft()

    @property
    def per_second(self) -> float | None:
        if len(self._seen) < 2:
            return None
        (then, before), (now, after) = self._seen[0], self._seen[-1]
        return max(0, after - before) / (now - then) if now > then else None

    def seconds_left(self, lag: int) -> float | None:
        """How long the lag will take at this rate; None when that cannot be said."""
        if lag == 0:
            return 0.0
        rate = self.per_second
        return lag / rate if rate else None


# --- The seeds of a task that wait in the topics, by reading these ---------------------------------------


def in_seed_topic(log: SeedLog, topic: str, group: str, task_id: str) -> Iterator[Seed]:
    """Those that the group has not completed, as far as it has committed. Raises LogUnavailable.

    Messages below the watermark of a partition are not read.
    """
    try:
        done = {part.partition: DoneOffsets(part.committed) for part in log.progress(topic, group)}
        messages = log.read(topic, {partition: offsets.watermark for partition, offsets in done.items()})
    except TopicMissing:
        return
    for message in messages:
        is_done = message.offset in done.get(message.partition, ())
        if not is_done and (seed := seed_of(message, task_id)) is not None:
            yield seed


def in_parked_topic(log: SeedLog, topics: CrawlTopics, board: Board, task_id: str) -> Iterator[Seed]:
    """Those behind the offsets up to which they were put back. Raises LogUnavailable."""
    offsets = board.returned(task_id).offsets
    start = {Partition(topics.parked, int(number)): offset for number, offset in offsets.items()}
    try:
        messages = log.read(topics.parked, start)
    except TopicMissing:
        return
    yield from (seed for message in messages if (seed := seed_of(message, task_id)) is not None)
