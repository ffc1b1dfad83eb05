"""Finds where a URL is: in the log, at a process, among dead letters, among results. Blocks: for a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from site_spider import runtime
from site_spider.console.model.reading import Sought, found_in, partition_for, sought
from site_spider.contracts.seed_log import Message, Partition, PartitionProgress, SeedLog, Topics, each_topic
from site_spider.contracts.sink import ResultReader
from site_spider.dead_letters.replay import newest
from site_spider.errors import SiteSpiderError
from site_spider.observe.progress import of_topics

_SECONDS = 5.0  # of reading the log
_MOST_MESSAGES = 100_000
_MOST_LETTERS = 1_000
_MOST_RESULTS = 5
_SHOWN = ("url_id", "url", "status", "description", "task_id", "fetched_at", "final_url", "content_type")

Document = dict[str, Any]


class UrlSearch:
    """`reader` makes a reader of results, or raises ConfigError when they cannot be read back."""

    def __init__(
        self,
        log: SeedLog,
        topics: Topics,
        group: str,
        dead_letter_topic: str,
        reader: Callable[[], ResultReader],
        *,
        by_task: bool,
    ) -> None:
        self._log = log
        self._topics = each_topic(topics)
        self._group = group
        self._dead_letter_topic = dead_letter_topic
        self._reader = reader
        self._by_task = by_task

    def find(self, url: str, task_id: str | None) -> Document:
        """All that is known of it. What cannot be asked is said in `troubles`. Raises SeedError."""
        wanted = sought(url, task_id, by_task=self._by_task)
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
        found: Document = {}
        parts = of_topics(self._log, self._topics, self._group)
        reading = _Bounded()
        for topic in self._topics:
            of_topic = {part.partition: part for part in parts if part.partition.topic == topic}
            partition = partition_for(wanted.key, topic, len(of_topic))
            if partition not in of_topic:
                continue
            here = found_in(reading(self._open_messages(of_topic, partition)), wanted, of_topic[partition])
            messages = found.get("messages", [])
            if not messages and (here or not found):
                found |= {"partition": partition.number, "partition_name": _named(partition)}
            found["messages"] = [*messages, *(each._asdict() for each in here)]
        return found | {"is_read_to_the_end": not reading.is_cut}

    def _open_messages(
        self, parts: dict[Partition, PartitionProgress], partition: Partition
    ) -> Iterator[Message]:
        """Of this partition, all that are not below the watermark."""
        committed = parts[partition].committed
        first = parts[partition].start if committed is None else committed.offset
        start = {other: part.end for other, part in parts.items()} | {partition: first}
        return self._log.read(partition.topic, start)

    def _look_at_dead_letters(self, wanted: Sought) -> Document:
        letters = newest(self._log, self._dead_letter_topic, _MOST_LETTERS)
        raw = wanted.url.encode()
        found = [letter for letter in letters if raw in (letter.message.value or b"")]
        return {
            "dead_letters": [
                {"origin": each.origin, "error": each.headers.get("error"), "replayed": each.replayed}
                for each in found[:_MOST_RESULTS]
            ]
        }

    def _look_at_results(self, wanted: Sought) -> Document:
        with closing(self._reader()) as reader:
            by_id = reader.get(wanted.url_id)
            found = [] if by_id is None else [by_id]
            if not found and wanted.task_id is None:
                found = list(reader.search(limit=_MOST_RESULTS, fields={"url": wanted.url}))
        return {"results": [{name: result.get(name) for name in _SHOWN} for result in found]}


class _Bounded:
    """Passes on messages, so many and so long altogether."""

    def __init__(self) -> None:
        self.is_cut = False
        self._count = 0
        self._deadline = 0.0  # begins with the first

    def __call__(self, messages: Iterator[Message]) -> Iterator[Message]:
        self._deadline = self._deadline or runtime.monotonic() + _SECONDS
        for message in messages:
            self._count += 1
            if self._count > _MOST_MESSAGES or runtime.monotonic() > self._deadline:
                self.is_cut = True
                return
            yield message


def _named(partition: Partition) -> str:
    return f"{partition.topic}/{partition.number}"


def _state(document: Document) -> str:
    """In words."""
    states = {each["state"] for each in document["messages"]}
    if "in flight" in states:
        return "in flight"
    if "waiting" in states:
        return "waiting"
    if document["results"]:
        failed = any(result["description"] is not None for result in document["results"])
        return "done, with a failure" if failed else "done, with a result"
    if document["dead_letters"]:
        return "dead letter"
    if not document["is_read_to_the_end"]:
        return "unknown: not found so far, and the partition has too many messages to read them all here"
    return "unknown: no seed of it waits in its partition, and no result is stored"
