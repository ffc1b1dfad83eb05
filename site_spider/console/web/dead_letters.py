"""Dead letters for the page of failures: read in a thread, kept for some seconds, one replay at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from site_spider import runtime
from site_spider.contracts.seed_log import Message, Partition, SeedLog
from site_spider.dead_letters.replay import ChosenReplay, Letter, TasksOf, newest
from site_spider.errors import LogUnavailable
from site_spider.text import plural

_MOST = 200
_FRESH_SECONDS = 5.0


class LettersAtHand:
    """Of one topic."""

    def __init__(self, log: SeedLog, topic: str, tasks_of: TasksOf | None = None) -> None:
        self.topic = topic
        self._log = log
        self._tasks_of = tasks_of
        self._known: list[Letter] = []
        self._read_at = 0.0
        self._one = asyncio.Lock()

    async def newest(self) -> tuple[list[Letter], str]:
        """The newest, and what was in the way of reading them."""
        async with self._one:
            if runtime.monotonic() - self._read_at < _FRESH_SECONDS:
                return self._known, ""
            try:
                self._known = await asyncio.to_thread(newest, self._log, self.topic, _MOST)
            except LogUnavailable as error:
                return self._known, f"The dead letters shown may be old: {error}"
            self._read_at = runtime.monotonic()
            return self._known, ""

    async def put_back(self, chosen: Sequence[tuple[int, int]]) -> str:
        """Put back what stands at these partitions and offsets; says what happened. Raises LogUnavailable."""
        complaints: list[str] = []
        places: dict[Partition, set[int]] = {}
        for number, offset in chosen:
            places.setdefault(Partition(self.topic, number), set()).add(offset)

        def complain(message: Message, reason: str) -> None:
            complaints.append(f"{message.partition.number}:{message.offset} {reason}")

        replay = ChosenReplay(self._log, self.topic, complain, self._tasks_of)
        async with self._one:
            self._read_at = 0.0
            frozen = {partition: frozenset(offsets) for partition, offsets in places.items()}
            await asyncio.to_thread(replay.run, frozen)
        said = f"{plural(replay.replayed, 'dead letter')} of {len(chosen)} put back"
        return f"{said}; not: {'; '.join(complaints)}" if complaints else f"{said}."
