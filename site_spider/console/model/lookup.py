"""Where one URL is: what it would be as a seed, and what its messages in the log say."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from site_spider.contracts.seed_log import Message, Partition, PartitionProgress
from site_spider.errors import SeedError
from site_spider.ledger.metadata import decode
from site_spider.page.url import canonical_url, host_of, url_id
from site_spider.seed.seed import seed_message
from site_spider.seed.tiers import partition_of

_MOST_FOUND = 20


class Sought(NamedTuple):
    """A URL as a seed."""

    url: str
    canonical: str
    host: str
    key: bytes
    url_id: str
    task_id: str | None


class Found(NamedTuple):
    """A message of the seed topic that names the URL; `state` is waiting, in flight or done."""

    place: str
    state: str
    before: int  # messages of its partition that come first and are not complete


def sought(url: str, task_id: str | None, *, by_task: bool) -> Sought:
    """As a seed with this URL would be. Raises SeedError."""
    key, value = seed_message(url, task_id=task_id)
    plain = str(json.loads(value)["url"])
    try:
        canonical, identifier = canonical_url(plain), url_id(plain, task_id if by_task else None)
    except ValueError as error:
        raise SeedError(f"url: {error}") from error
    return Sought(plain, canonical, host_of(plain), key, identifier, task_id)


def partition_for(key: bytes, topic: str, partitions: int) -> Partition | None:
    """Where a seed with this key lies."""
    return Partition(topic, partition_of(key, partitions)) if partitions else None


def found_in(messages: Iterable[Message], wanted: Sought, progress: PartitionProgress) -> list[Found]:
    """The messages that name this URL, and what became of each."""
    offset, metadata = progress.committed or (progress.start, "")
    ahead = decode(offset, metadata)
    found = []
    for message in _naming(messages, wanted):
        complete = any(first <= message.offset < end for first, end in ahead.complete)
        if message.offset < offset or complete:
            state = "done"
        else:
            state = "in flight" if message.offset < ahead.position else "waiting"
        place = f"{message.partition.topic}/{message.partition.number}@{message.offset}"
        found.append(Found(place, state, max(0, message.offset - offset) if state == "waiting" else 0))
    return found[-_MOST_FOUND:]


def _naming(messages: Iterable[Message], wanted: Sought) -> Iterator[Message]:
    host = wanted.host.encode()
    for message in messages:
        value = message.value or b""
        is_likely = host in value or message.key == wanted.key
        if is_likely and _canonical_in(value) == wanted.canonical:
            yield message


def _canonical_in(value: bytes) -> str | None:
    try:
        document = json.loads(value)
        url = document.get("url") if isinstance(document, dict) else None
        return canonical_url(url) if isinstance(url, str) else None
    except (ValueError, RecursionError):
        return None
