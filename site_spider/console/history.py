"""Follows the topic of snapshots: an hour back at the start, then what is new.

Whoever may write to the topic may write anything. A record that is no snapshot is counted, said once and
skipped; of the others so many are read as a fleet of MOST_PROCESSES writes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import NamedTuple

from site_spider.console.model.fleet import MOST_PROCESSES, WINDOW_SECONDS
from site_spider.console.model.reading import OddSnapshot, checked, parsed, state_of
from site_spider.console.model.state import ProcessState
from site_spider.contracts.seed_log import Message, Partition, SeedLog
from site_spider.observe.statistics import LARGEST_STATISTICS_BYTES
from site_spider.text import for_log

logger = logging.getLogger(__name__)

_GAP_SECONDS = 30.0  # of the past, one snapshot of a process in so many is read
_MOST_READ = 12_000  # in one look, beside the newest of each process


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
        self.refused = 0  # records that are no snapshots
        self.said = ""  # of them
        self.has_left_out = False  # a process, in the last look

    def look(self, now: float, known: Collection[str] = ()) -> list[Heard]:
        """What was written since the last look, in order of time; of known processes in any case.

        Raises LogUnavailable, TopicMissing.
        """
        since = now - WINDOW_SECONDS
        messages = self._log.read(self._topic, self._next, int(since * 1000))
        earliest = max(since, self._looked_at)
        found = sorted(self._heard(messages, earliest, now, known), key=lambda heard: heard.at)
        self._looked_at = now
        return found

    def _heard(
        self, messages: Iterator[Message], earliest: float, now: float, known: Collection[str]
    ) -> Iterator[Heard]:
        thinned = _Thinned(known)
        for at, message in thinned(self._noted(messages)):
            try:
                document = checked(parsed(message.value or b""), now)
                state = state_of(document, self._interval_seconds)
            except OddSnapshot as error:
                self._refuse(message, str(error))
                continue
            yield Heard(min(max(at, earliest), now), state)
        self.has_left_out = thinned.has_left_out

    def _noted(self, messages: Iterator[Message]) -> Iterator[Message]:
        for message in messages:
            self._next[message.partition] = message.offset + 1
            size = len(message.value or b"")
            if 0 < size <= LARGEST_STATISTICS_BYTES:
                yield message
            else:
                self._refuse(message, f"it has {size:,} bytes")

    def _refuse(self, message: Message, why: str) -> None:
        self.refused += 1
        place = f"{message.partition.topic}/{message.partition.number} offset {message.offset}"
        are = "record that is no snapshot was" if self.refused == 1 else "records that are no snapshots were"
        self.said = for_log(f"{self.refused:,} {are} skipped; the last at {place}: {why}", one_line=True)
        if self.refused == 1:
            logger.warning("%s. Only crawls should have the right to write to this topic", self.said)


class _Speaker:
    """A process of which messages are read; `held` is its newest, where that was passed over."""

    __slots__ = ("first_at", "held", "read_at")

    def __init__(self, at: float) -> None:
        self.first_at = at
        self.read_at = float("-inf")
        self.held: tuple[float, Message] | None = None


class _Thinned:
    """Of each process one message in a while, and its newest; not in order, as partitions are not.

    Beside those that are known so many are heard that spoke first.
    """

    def __init__(self, known: Collection[str]) -> None:
        self.has_left_out = False  # a process
        self._known = {name.encode() for name in known}
        self._voices: dict[bytes | None, _Speaker] = {}
        self._new: dict[bytes | None, _Speaker] = {}
        self._newest_at = float("-inf")  # when the last of the new ones spoke first
        self._read = 0

    def __call__(self, messages: Iterator[Message]) -> Iterator[tuple[float, Message]]:
        for message in messages:
            at = message.timestamp_ms / 1000
            voice = self._voice(message.key, at)
            if voice is None:
                continue
            if at >= voice.read_at + _GAP_SECONDS and self._read < _MOST_READ:
                voice.read_at, voice.held, self._read = at, None, self._read + 1
                yield at, message
            else:
                voice.held = at, message
        yield from (voice.held for voice in [*self._voices.values(), *self._new.values()] if voice.held)

    def _voice(self, key: bytes | None, at: float) -> _Speaker | None:
        """None where there is no place for a new one."""
        voice = self._voices.get(key) or self._new.get(key)
        if voice is not None:
            return voice
        if key in self._known:
            return self._voices.setdefault(key, _Speaker(at))
        if len(self._new) >= MOST_PROCESSES:
            self.has_left_out = True
            if at >= self._newest_at:
                return None
            del self._new[max(self._new, key=lambda name: self._new[name].first_at)]
        voice = self._new[key] = _Speaker(at)
        self._newest_at = max(each.first_at for each in self._new.values())
        return voice
