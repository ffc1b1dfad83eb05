"""Follows the topic of snapshots: an hour back at the start, then what is new."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from site_spider.console.model.fleet import WINDOW_SECONDS
from site_spider.console.model.reading import LARGEST_BYTES, OddSnapshot, parsed, state_of
from site_spider.console.model.state import ProcessState
from site_spider.contracts.seed_log import Message, Partition, SeedLog

_GAP_SECONDS = 30.0  # of the past, one snapshot of a process in so many is read
_MOST_KEYS = 2_000


class Heard(NamedTuple):
    """A state, and when it was written, as far as this host can tell."""

    at: float
    state: ProcessState


class History:
    """One thread at a time uses it."""

    def __init__(self, log: SeedLog, topic: str, interval_seconds: float) -> None:
        self._log = log
        self._topic = topic
        self._interval_seconds = interval_seconds
        self._next: dict[Partition, int] = {}
        self._looked_at = 0.0

    def look(self, now: float) -> list[Heard]:
        """What was written since the last look, in order of time. Raises LogUnavailable, TopicMissing."""
        since = now - WINDOW_SECONDS
        messages = self._log.read(self._topic, self._next, int(since * 1000))
        earliest = max(since, self._looked_at)
        found = sorted(self._heard(messages, earliest, now), key=lambda heard: heard.at)
        self._looked_at = now
        return found

    def _heard(self, messages: Iterator[Message], earliest: float, now: float) -> Iterator[Heard]:
        for at, message in _thinned(self._noted(messages)):
            try:
                state = state_of(parsed(message.value or b""), self._interval_seconds)
            except OddSnapshot:
                continue
            yield Heard(min(max(at, earliest), now), state)

    def _noted(self, messages: Iterator[Message]) -> Iterator[Message]:
        for message in messages:
            self._next[message.partition] = message.offset + 1
            if message.value is not None and len(message.value) <= LARGEST_BYTES:
                yield message


def _thinned(messages: Iterator[Message]) -> Iterator[tuple[float, Message]]:
    """Of each process one in a while, and its newest."""
    last: dict[bytes | None, float] = {}
    held: dict[bytes | None, tuple[float, Message]] = {}
    for message in messages:
        at, key = message.timestamp_ms / 1000, message.key
        if key not in last and len(last) >= _MOST_KEYS:
            continue
        if at >= last.get(key, 0.0) + _GAP_SECONDS:
            last[key] = at
            held.pop(key, None)
            yield at, message
        else:
            held[key] = at, message
    yield from held.values()
