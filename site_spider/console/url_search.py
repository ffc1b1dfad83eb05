"""Finds where a URL is: in the log, at a process, among dead letters, among results. Blocks: for a thread."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from site_spider import runtime
from site_spider.contracts.seed_log import Message, Partition, PartitionProgress, Position, SeedLog
from site_spider.contracts.sink import Fields, ResultReader
from site_spider.dead_letter_replay import newest
from site_spider.errors import SiteSpiderError
from site_spider.ledger.metadata import DoneOffsets
from site_spider.observe.progress import of_topics
from site_spider.page.url import canonical_url, host_of, url_id
from site_spider.seed.seed import seed_message
from site_spider.seed.topics import partition_of

_SECONDS = 5.0  # of reading the log
_MOST_MESSAGES = 100_000
_MOST_LETTERS = 1_000
_MOST_RESULTS = 5
_MOST_FOUND = 20
_SHOWN = ("url_id", "url", "status", "description", "task_id", "fetched_at", "final_url", "content_type")

Document = dict[str, Any]


class Sought(NamedTuple):
    """A URL as a seed."""

    url: str
    canonical: str
    host: str
    key: bytes
    url_id: str
    task_id: str | None

    @classmethod
    def of(cls, url: str, task_id: str | None, *, by_task: bool) -> Sought:
        """As a seed with this URL would be. Raises SeedError."""
        key, value = seed_message(url, task_id=task_id)
        plain = str(json.loads(value)["url"])
        identifier = url_id(plain, task_id if by_task else None)
        return cls(plain, canonical_url(plain), host_of(plain), key, identifier, task_id)

    def is_in(self, message: Message) -> bool:
        value = message.value or b""
        if self.host.encode() not in value and message.key != self.key:
            return False
        try:
            document = json.loads(value)
            url = document.get("url") if isinstance(document, dict) else None
            return isinstance(url, str) and canonical_url(url) == self.canonical
        except (ValueError, RecursionError):
            return False


@dataclass(frozen=True, slots=True)
class UrlSearch:
    """`reader` makes a reader of results, or raises ConfigError when they cannot be read back."""

    log: SeedLog
    topics: tuple[str, ...]
    group: str
    dead_letter_topic: str
    reader: Callable[[], ResultReader]
    by_task: bool
    names: Fields  # that fields of results have in the store

    def find(self, url: str, task_id: str | None) -> Document:
        """All that is known of it. What cannot be asked is said in `troubles`. Raises SeedError."""
        wanted = Sought.of(url, task_id, by_task=self.by_task)
        document: Document = {
            **wanted._asdict(),
            "key": wanted.key.decode("utf-8", "replace"),
            "partition": None,
            "partition_name": None,
            "messages": [],
            "is_read_to_the_end": True,
            "dead_letters": [],
            "results": [],
            "troubles": [],
        }
        for look in (self._look_at_log, self._look_at_dead_letters, self._look_at_results):
            try:
                document |= look(wanted)
            except SiteSpiderError as error:
                document["troubles"].append(str(error))
        return document | {"state": _state(document)}

    def _look_at_log(self, wanted: Sought) -> Document:
        """Of several topics with such a message the first one gives the partition that is named."""
        parts = {part.partition: part for part in of_topics(self.log, self.topics, self.group)}
        sizes = Counter(partition.topic for partition in parts)
        homes = [Partition(topic, partition_of(wanted.key, sizes[topic])) for topic in self.topics if sizes[topic]]
        found = {home: deque[Document](maxlen=_MOST_FOUND) for home in homes if home in parts}
        is_cut, deadline = False, runtime.monotonic() + _SECONDS
        messages = chain.from_iterable(self._open_messages(parts, home) for home in found)
        for number, message in enumerate(messages):
            if is_cut := number >= _MOST_MESSAGES or runtime.monotonic() > deadline:
                break
            if message.partition in found and wanted.is_in(message):
                found[message.partition].append(_place(message, parts[message.partition]))
        named = next((home for home, places in found.items() if places), next(iter(found), None))
        return {
            "partition": named and named.number,
            "partition_name": named and str(named),
            "messages": [*chain(*found.values())],
            "is_read_to_the_end": not is_cut,
        }

    def _open_messages(self, parts: Mapping[Partition, PartitionProgress], home: Partition) -> Iterator[Message]:
        """Of this partition, all that are not below the watermark."""
        committed = parts[home].committed
        first = parts[home].start if committed is None else committed.offset
        start = {other: part.end for other, part in parts.items() if other.topic == home.topic} | {home: first}
        return self.log.read(home.topic, start)

    def _look_at_dead_letters(self, wanted: Sought) -> Document:
        found = newest(self.log, self.dead_letter_topic, _MOST_LETTERS, wanted.url.encode())
        return {
            "dead_letters": [
                {"origin": each.origin, "error": each.headers.get("error"), "replayed": each.replayed}
                for each in found[:_MOST_RESULTS]
            ]
        }

    def _look_at_results(self, wanted: Sought) -> Document:
        """By its usual url_id; a producer may have given it another one."""
        names, asked = self.names, {"url": wanted.url}
        if wanted.task_id is not None:
            asked["task_id"] = wanted.task_id
        with closing(self.reader()) as reader:
            by_id = reader.get(wanted.url_id)
            found = [] if by_id is None else [by_id]
            if not found and (not names or asked.keys() <= names.keys()):
                fields = {names.get(name, name): value for name, value in asked.items()}
                found = list(reader.search(limit=_MOST_RESULTS, fields=fields))
        return {"results": [{name: result.get(names.get(name, name)) for name in _SHOWN} for result in found]}


def _place(message: Message, progress: PartitionProgress) -> Document:
    """Where it stands, what became of it, and how many of its partition come first and are not complete."""
    done = DoneOffsets(progress.committed or Position(progress.start))
    state = "waiting" if message.offset >= done.position else "in flight"
    state = "done" if message.offset in done else state
    before = max(0, message.offset - done.watermark) if state == "waiting" else 0
    return {"place": f"{message.partition}@{message.offset}", "state": state, "before": before}


def _state(document: Document) -> str:
    states = {each["state"] for each in document["messages"]}
    if open_states := states & {"in flight", "waiting"}:
        return str(min(open_states))
    if document["results"]:
        failed = any(result["description"] is not None for result in document["results"])
        return "done, with a failure" if failed else "done, with a result"
    if document["dead_letters"]:
        return "dead letter"
    if not document["is_read_to_the_end"]:
        return "unknown: not found so far, and the partition has too many messages to read them all here"
    return "unknown: no seed of it waits in its partition, and no result is stored"
