"""The value of each metric, out of a snapshot with its measurements (see `measurements`).

A reading gives label values with a number. What a document does not have is not exported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nlargest
from itertools import islice
from typing import Any, Final

from site_spider.observe.metrics.numbers import at, label, mappings, moment, number, numbers
from site_spider.seed.tiers import MOST_TIERS

Document = Mapping[str, Any]
Reading = Iterator[tuple[tuple[str, ...], float]]
Read = Callable[[Document], Reading]

OWN: Final = "measurements"  # of a document: what only metrics need
MOST_SINKS: Final = 4
_MOST_OLDEST: Final = 10
_MOST_STATUSES: Final = 24
_MOST_TOPICS: Final = MOST_TIERS
_ALWAYS: Final = ("200", "403", "404", "429", "500", "503")  # so that an increase from 0 is seen
_MOST_TASKS: Final = 50
NO_TASK: Final = "(no task)"
_OTHER: Final = "other"
_KINDS: Final = ("page", "robots")
_OUTCOMES: Final = {
    "result": "completed_with_result",
    "failure": "completed_with_failure",
    "filtered": "filtered",
    "dead_letter": "dead_lettered",
    "spilled": "spilled",
    "cancelled": "cancelled",
}


def one(*path: str) -> Read:
    """A number without labels."""

    def read(document: Document) -> Reading:
        if (value := number(document, *path)) is not None:
            yield (), value

    return read


def own(*path: str) -> Read:
    """A number of the measurements."""
    return one(OWN, *path)


def by_name(*path: str, most: int = 20) -> Read:
    """Numbers by one label; those beyond `most` are left out."""

    def read(document: Document) -> Reading:
        for count, (name, value) in enumerate(numbers(document, *path)):
            if count < most:
                yield (name,), value

    return read


def _completed(document: Document) -> Reading:
    for outcome, key in _OUTCOMES.items():
        if (value := number(document, "seeds", key)) is not None:
            yield (outcome,), value


def _oldest(document: Document) -> Reading:
    found = nlargest(_MOST_OLDEST, numbers(document, "oldest_in_flight_seconds"), key=lambda each: each[1])
    for name, seconds in found:
        topic, _, partition = name.rpartition("/")
        yield (topic, partition), seconds


def _of_kinds(key: str) -> Read:
    def read(document: Document) -> Reading:
        for kind in _KINDS:
            if (value := number(document, "downloads", kind, key)) is not None:
                yield (kind,), value

    return read


def _statuses(document: Document) -> Reading:
    pages = dict.fromkeys(_ALWAYS, 0.0)
    for status, count in numbers(document, "downloads", "page", "statuses"):
        name = status if status in pages or len(pages) < _MOST_STATUSES else _class(status)
        pages[name] = pages.get(name, 0) + count
    yield from ((("page", status), count) for status, count in pages.items())
    robots: dict[str, float] = {}
    for status, count in numbers(document, "downloads", "robots", "statuses"):
        robots[_class(status)] = robots.get(_class(status), 0) + count
    yield from ((("robots", status), count) for status, count in robots.items())


def _class(status: str) -> str:
    return f"{status[0]}xx" if status[:1] in "12345" and len(status) == 3 else _OTHER


def _hosts(document: Document) -> Reading:
    """By reason; the sum of all is not one of them."""
    for reason, count in numbers(document, "hosts"):
        if reason != "waiting":
            yield (reason,), count


def _queues(document: Document) -> Reading:
    for queue, length in numbers(document, "queues"):
        if queue != "bytes":
            yield (queue,), length


def _paused_now(document: Document) -> Reading:
    now = at(document, "pause", "cause")
    for cause, _ in numbers(document, "paused_seconds"):
        yield (cause,), float(cause == now)


def _proxies(document: Document) -> Reading:
    every, resting = number(document, "proxies", "all"), number(document, "proxies", "resting")
    if every is not None and resting is not None:
        yield ("ready",), every - resting
        yield ("resting",), resting


def _sinks(document: Document) -> Iterator[tuple[str, Document]]:
    for count, sink in enumerate(mappings(document, "sinks")):
        if count < MOST_SINKS:
            yield label(sink.get("name", "")), sink


def _of_sinks(key: str) -> Read:
    def read(document: Document) -> Reading:
        for name, sink in _sinks(document):
            if (value := number(sink, key)) is not None:
                yield (name,), float(value)

    return read


def _last_accepts(document: Document) -> Reading:
    for name, sink in _sinks(document):
        if (value := moment(sink, "last_accept_at")) is not None:
            yield (name,), value


def _sink_records(document: Document) -> Reading:
    for name, _ in _sinks(document):
        for outcome in ("acknowledged", "retried", "rejected"):
            if (value := number(document, OWN, "sinks", name, outcome)) is not None:
                yield (name, outcome), value


def _sink_batches(document: Document) -> Reading:
    for name, _ in _sinks(document):
        if (value := number(document, OWN, "sinks", name, "batches")) is not None:
            yield (name,), value


def _log_is_there(document: Document) -> Reading:
    away = at(document, "log_is_away")
    if isinstance(away, bool):
        yield (), float(not away)


def _build(document: Document) -> Reading:
    versions = at(document, OWN, "versions")
    if isinstance(versions, Mapping):
        found = [versions.get(name, "") for name in ("version", "scrapy", "python")]
        whose = at(document, "spider") or "", at(document, OWN, "service") or ""
        yield tuple(map(label, (*found, *whose))), 1.0


def _items(document: Document) -> Reading:
    if (value := number(document, "items")) is not None:
        yield (label(at(document, "spider") or ""),), value


def _of_tasks(count: Callable[[Document], float]) -> Read:
    """Of the largest; ids that are the same as labels are summed up."""

    def read(document: Document) -> Reading:
        found: dict[str, float] = {}
        for task in islice(mappings(document, "tasks", "largest"), _MOST_TASKS):
            name = label(task.get("task_id") or NO_TASK)
            found[name] = found.get(name, 0.0) + count(task)
        yield from (((name,), value) for name, value in found.items())

    return read


def _log_messages(document: Document) -> Reading:
    for count, said in enumerate(mappings(document, OWN, "log_messages")):
        if count < 22 and (value := number(said, "count")) is not None:
            yield (label(said.get("level", "")), label(said.get("logger", ""))), value


def _started(document: Document) -> Reading:
    if (value := moment(document, "started_at")) is not None:
        yield (), value


def _last_completion(document: Document) -> Reading:
    now, since = moment(document, "at"), number(document, "seconds_since_completion")
    if now is not None and since is not None:
        yield (), now - since


def _memory_limit(document: Document) -> Reading:
    yield (), number(document, "memory", "limit_bytes") or 0.0


READINGS: Final[Mapping[str, Read]] = {
    "seeds_consumed": one("seeds", "consumed"),
    "seeds_completed": _completed,
    "seeds_handed_back": one("seeds", "handed_back"),
    "seeds_deleted_unread": one("seeds", "deleted_unread"),
    "seeds_in_flight": one("seeds", "in_flight"),
    "suspected_seeds": own("suspected_seeds"),
    "oldest_in_flight_seconds": _oldest,
    "partitions_assigned": own("partitions"),
    "last_completion_timestamp_seconds": _last_completion,
    "download_attempts": _of_kinds("attempts"),
    "downloads": _statuses,
    "received_bytes": _of_kinds("response_bytes"),
    "sent_bytes": _of_kinds("request_bytes"),
    "failures": by_name("reasons"),
    "retries": by_name("retries", "by_reason"),
    "links": by_name("links"),
    "redirects": by_name(OWN, "redirects"),
    "robots_fetches": by_name(OWN, "robots_fetches"),
    "backoffs": by_name(OWN, "backoffs"),
    "proxy_requests": by_name(OWN, "proxy_requests"),
    "dns_lookups": by_name(OWN, "dns_lookups"),
    "requests_out": one("requests_out"),
    "concurrency_limit": own("concurrency_limit"),
    "proxies": _proxies,
    "items": _items,
    "task_pages": _of_tasks(lambda task: number(task, "pages") or 0.0),
    "task_seeds_completed": _of_tasks(lambda task: sum(value for _, value in numbers(task, "outcomes"))),
    "task_failures": _of_tasks(lambda task: sum(value for _, value in numbers(task, "reasons"))),
    "requests_waiting": _queues,
    "hosts": _hosts,
    "frontier_bytes": one("frontier", "bytes"),
    "frontier_limit_bytes": one("frontier", "max_bytes"),
    "seen_pages": own("seen_pages"),
    "seen_bytes": own("seen_bytes"),
    "paused_seconds": by_name("paused_seconds"),
    "intake_paused": _paused_now,
    "sink_records": _sink_records,
    "sink_batches": _sink_batches,
    "sink_up": _of_sinks("available"),
    "sink_backlog_records": _of_sinks("backlog"),
    "sink_backlog_bytes": _of_sinks("backlog_bytes"),
    "sink_backlog_limit_bytes": _of_sinks("backlog_limit_bytes"),
    "sink_last_accept_timestamp_seconds": _last_accepts,
    "kafka_commits": by_name(OWN, "commits"),
    "kafka_rebalances": by_name(OWN, "rebalances"),
    "kafka_up": _log_is_there,
    "last_commit_timestamp_seconds": own("last_commit_at"),
    "build_info": _build,
    "log_messages": _log_messages,
    "process_restarts": by_name(OWN, "restarts"),
    "process_cpu_seconds": own("process", "cpu_seconds"),
    "process_start_time_seconds": _started,
    "process_resident_memory_bytes": one("memory", "rss_bytes"),
    "process_open_fds": own("process", "open_fds"),
    "process_max_fds": own("process", "max_fds"),
    "memory_soft_limit_bytes": own("soft_limit_bytes"),
    "memory_limit_bytes": _memory_limit,
    "event_loop_silent_seconds": own("loop_silent_seconds"),
    "group_lag_seeds": by_name(OWN, "group", "lag_seeds", most=_MOST_TOPICS),
    "group_lag_age_seconds": by_name(OWN, "group", "lag_age_seconds", most=_MOST_TOPICS),
    "group_members": own("group", "members"),
    "group_partitions_unowned": by_name(OWN, "group", "partitions_unowned", most=_MOST_TOPICS),
    "topic_retention_seconds": by_name(OWN, "group", "retention_seconds", most=_MOST_TOPICS),
    "dead_letters": by_name(OWN, "group", "dead_letters", most=_MOST_TOPICS),
}


def groups(documents: Iterable[Document]) -> dict[str, list[Document]]:
    """Documents by consumer group."""
    found: dict[str, list[Document]] = {}
    for document in documents:
        found.setdefault(label(document.get("group", "")), []).append(document)
    return found
