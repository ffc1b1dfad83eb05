"""Dead letters with their reasons, and whether each was put back."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from site_spider import options
from site_spider.contracts.seed_log import Message, Partition, SeedLog
from site_spider.dead_letters.put_back import Copies, PutBack, group_of, put_back
from site_spider.errors import TopicMissing
from site_spider.seed.tiers import CrawlTopics

SUFFIX = ".dead-letters"


def topic_of(settings: options.SettingsView, given: str | None = None) -> str:
    """The dead-letter topic, of the settings or of the topic that somebody gave. Raises ConfigError."""
    topics = CrawlTopics.of(settings)
    if given is None or given in topics.tiers:
        return topics.dead_letters
    return given if given.endswith(SUFFIX) or given == topics.dead_letters else f"{given}{SUFFIX}"


class Letter(NamedTuple):
    """A dead letter, its headers as text, and whether it was put back."""

    message: Message
    headers: Mapping[str, str]
    replayed: bool

    @property
    def origin(self) -> str:
        """Where it came from: topic/partition/offset."""
        return "/".join(self.headers.get(f"origin_{part}", "?") for part in ("topic", "partition", "offset"))

    def document(self) -> dict[str, Any]:
        """All of it for programs."""
        message, headers, replayed = self
        topic, partition = message.partition
        return {
            "topic": topic,
            "partition": partition,
            "offset": message.offset,
            "timestamp": _moment(message.timestamp_ms),
            "error": headers.get("error"),
            **{name: headers.get(name) for name in ("origin_topic", "origin_partition", "origin_offset")},
            "failed_at": headers.get("failed_at"),
            "replayed": replayed,
            **_encoded("key", message.key),
            **_encoded("value", message.value),
            "headers": dict(headers),
        }


def letters(log: SeedLog, topic: str) -> Iterator[Letter]:
    """All of them, each once; none when the topic does not exist. Raises LogUnavailable."""
    try:
        done = put_back(log, topic)
        copies = Copies.read(log, topic, done)
        messages = log.read(topic)
    except TopicMissing:  # nothing was ever set aside
        return
    yield from _with_headers(messages, done, copies)


def newest(log: SeedLog, topic: str, most: int) -> list[Letter]:
    """The last ones of each partition, at most so many, the newest first. Raises LogUnavailable."""
    try:
        parts = log.progress(topic, group_of(topic))
        messages = list(log.read(topic, {part.partition: max(part.start, part.end - most) for part in parts}))
    except TopicMissing:
        return []
    done = {part.partition: PutBack.of(part.committed) for part in parts}
    copies = Copies()
    copies.note(messages, done)
    found = sorted(_with_headers(messages, done, copies), key=lambda letter: -letter.message.timestamp_ms)
    return found[:most]


def _with_headers(
    messages: Iterable[Message], done: Mapping[Partition, PutBack], copies: Copies
) -> Iterator[Letter]:
    for message in filter(copies.is_first, messages):
        headers = {name: value.decode("utf-8", "backslashreplace") for name, value in message.headers}
        is_put_back = message.offset in done.get(message.partition, PutBack())
        yield Letter(message, headers, is_put_back or copies.is_put_back(message))


def beginning(raw: bytes | None, characters: int) -> str | None:
    """What a table shows of a key or value."""
    if raw is None:
        return None
    text = raw[: 4 * characters].decode("utf-8", "backslashreplace")
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def _moment(timestamp_ms: int) -> str | None:
    """None beyond the years that there are: producers set it as they like."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return None


def _encoded(name: str, raw: bytes | None) -> dict[str, str | None]:
    """Bytes as text, or as base64, which a field of its own says, when they are not UTF-8."""
    if raw is None:
        return {name: None}
    try:
        return {name: raw.decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(raw).decode(), f"{name}_encoding": "base64"}
