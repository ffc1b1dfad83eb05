"""Every metric: its name, kind and meaning, where its value stands in a snapshot, and its labels.

All of them have the labels `group` and `slot` as well, except those of a host, which have `group`. A value of
a label is one of a short list, or the name of a sink, topic, partition, logger, spider or task, each
bounded in number: never a URL, host, seed, pid or text of an exception.

A reading gives label values with a number, out of a snapshot with its measurements (see `readings`). What a
document does not have is not exported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import nlargest
from itertools import accumulate, islice
from math import isfinite
from types import SimpleNamespace
from typing import Any, Final, Literal, NamedTuple

from prometheus_client.core import CounterMetricFamily, Exemplar, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST as PLAIN_TYPE
from prometheus_client.exposition import generate_latest as plain
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPEN_TYPE
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics

from site_spider.observe.counters import OUTCOMES
from site_spider.seed.topics import MOST_TIERS

# --- Numbers out of documents that others wrote: what is missing or of another type is left out ----------

_MOST_NAMES = 1000  # of one mapping
_LONGEST = 100  # characters of a label's value


def at(document: object, *path: str) -> Any:
    """What lies there; None where there is nothing."""
    for key in path:
        if not isinstance(document, Mapping):
            return None
        document = document.get(key)
    return document


def number_at(document: object, *path: str) -> float | None:
    """A number; booleans are 1 and 0."""
    value = at(document, *path)
    try:
        return value if isinstance(value, int | float) and isfinite(value) else None
    except OverflowError:  # an integer beyond all floats
        return None


def numbers(document: object, *path: str) -> Iterator[tuple[str, float]]:
    """Of a mapping, names with their numbers."""
    found = at(document, *path)
    if isinstance(found, Mapping):
        for name, value in islice(found.items(), _MOST_NAMES):
            if (number := number_at(value)) is not None:
                yield label(name), number


def mappings(document: object, *path: str) -> Iterator[Mapping[str, Any]]:
    """Of a list, those that are mappings."""
    found = at(document, *path)
    if isinstance(found, list):
        yield from (one for one in islice(found, _MOST_NAMES) if isinstance(one, Mapping))


def moment(document: object, *path: str) -> float | None:
    """A moment in ISO 8601, of UTC where it says no zone, as Unix time."""
    value = at(document, *path)
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    if found is None or not 1970 < found.year < 9000:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def label(value: object) -> str:
    """A text fit to be a label."""
    return str(value).encode("utf-8", "replace").decode()[:_LONGEST]


Document = Mapping[str, Any]
Reading = Iterator[tuple[tuple[str, ...], float]]
Read = Callable[[Document], Reading]

OWN: Final = "measurements"  # of a document: what only metrics need
MOST_SINKS: Final = 4
_MOST_OLDEST: Final = 10
_MOST_STATUSES: Final = 24
_ALWAYS: Final = ("200", "403", "404", "429", "500", "503")  # so that an increase from 0 is seen
_MOST_TASKS: Final = 50
_MOST_LOG_MESSAGES: Final = 22
NO_TASK: Final = "(no task)"
_OTHER: Final = "other"
_KINDS: Final = ("page", "robots")


def known(found: Iterable[tuple[tuple[str, ...], float | None]]) -> Reading:
    """Of labels with numbers, those that have one."""
    return ((labels, value) for labels, value in found if value is not None)


def computed(value_of: Callable[[Document], float | None]) -> Read:
    """A number without labels, as something makes it of the document."""
    return lambda document: known([((), value_of(document))])


def one(*path: str) -> Read:
    """A number without labels."""
    return computed(lambda document: number_at(document, *path))


def own(*path: str) -> Read:
    """A number of the measurements."""
    return one(OWN, *path)


def by_name(*path: str, most: int = 20, without: str = "") -> Read:
    """Numbers by one label, but for the one of this name; those beyond `most` are left out."""

    def read(document: Document) -> Reading:
        found = (((name,), value) for name, value in numbers(document, *path) if name != without)
        return islice(found, most)

    return read


def _polled(document: Document) -> Reading:
    """A counter never falls; `consumed` does when a partition leaves."""
    consumed, handed_back = (number_at(document, "seeds", name) for name in ("consumed", "handed_back"))
    return known([((), None if consumed is None else consumed + (handed_back or 0))])


def _completed(document: Document) -> Reading:
    return known(((outcome,), number_at(document, "seeds", key)) for key, outcome in OUTCOMES.items())


def _oldest(document: Document) -> Reading:
    found = nlargest(_MOST_OLDEST, numbers(document, "oldest_in_flight_seconds"), key=lambda each: each[1])
    for name, seconds in found:
        topic, _, partition = name.rpartition("/")
        yield (topic, partition), seconds


def _of_kinds(key: str) -> Read:
    return lambda document: known(((kind,), number_at(document, "downloads", kind, key)) for kind in _KINDS)


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


def _paused_now(document: Document) -> Reading:
    now = at(document, "pause", "cause")
    for cause, _ in numbers(document, "paused_seconds"):
        yield (cause,), float(cause == now)


def _proxies(document: Document) -> Reading:
    every, resting = number_at(document, "proxies", "all"), number_at(document, "proxies", "resting")
    if every is not None and resting is not None:
        yield ("ready",), every - resting
        yield ("resting",), resting


def _sinks(document: Document) -> Iterator[tuple[str, Document]]:
    return ((label(sink.get("name", "")), sink) for sink in islice(mappings(document, "sinks"), MOST_SINKS))


def _of_sinks(key: str, read_one: Callable[..., float | None] = number_at) -> Read:
    return lambda document: known(((name,), read_one(sink, key)) for name, sink in _sinks(document))


def _sink_counts(document: Document, *keys: str) -> Reading:
    names = ((name, key) for name, _ in _sinks(document) for key in keys)
    return known((each, number_at(document, OWN, "sinks", *each)) for each in names)


def _log_is_there(document: Document) -> float | None:
    away = at(document, "log_is_away")
    return float(not away) if isinstance(away, bool) else None


def _build(document: Document) -> Reading:
    versions = at(document, OWN, "versions")
    if isinstance(versions, Mapping):
        found = [versions.get(name, "") for name in ("version", "scrapy", "python")]
        whose = at(document, "spider") or "", at(document, OWN, "service") or ""
        yield tuple(map(label, (*found, *whose))), 1.0


def _items(document: Document) -> Reading:
    return known([((label(at(document, "spider") or ""),), number_at(document, "items"))])


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
    told = islice(mappings(document, OWN, "log_messages"), _MOST_LOG_MESSAGES)
    return known(
        (tuple(label(one.get(name, "")) for name in ("level", "logger")), number_at(one, "count")) for one in told
    )


def _last_completion(document: Document) -> float | None:
    now, since = moment(document, "at"), number_at(document, "seconds_since_completion")
    return None if now is None or since is None else now - since


# --- table -----------------------------------------------------------------------------------------------

PREFIX: Final = "site_spider_"
EVERY: Final = ("group", "slot")
OF_A_HOST: Final = ("group",)

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """`name` has neither prefix nor `_total`; `read` gives its values, but those of histograms."""

    kind: Kind
    name: str
    meaning: str
    read: Read
    labels: tuple[str, ...] = ()  # besides those of all
    common: tuple[str, ...] = EVERY
    bounds: tuple[float, ...] = ()  # of a histogram: few enough for all of a process to be 350 series at most

    @property
    def family(self) -> str:
        """Its name with the prefix, as Prometheus has it in TYPE of OpenMetrics."""
        return PREFIX + self.name


def _counter(name: str, meaning: str, read: Read, *labels: str) -> Metric:
    return Metric("counter", name, meaning, read, labels)


def _gauge(name: str, meaning: str, read: Read, *labels: str) -> Metric:
    return Metric("gauge", name, meaning, read, labels)


def _histogram(name: str, meaning: str, bounds: tuple[float, ...], *labels: str) -> Metric:
    return Metric("histogram", name, meaning, lambda _: iter(()), labels, bounds=bounds)


METRICS: Final = (
    # seeds
    _counter("seeds_consumed", "Seeds polled, those handed back included", _polled),
    _counter("seeds_completed", "Completed seeds", _completed, "outcome"),
    _counter("seeds_handed_back", "Seeds whose partition left; another process repeats them",
        one("seeds", "handed_back")),
    _counter("seeds_deleted_unread", "Seeds deleted before the group read them", one("seeds", "deleted_unread")),
    _gauge("seeds_in_flight", "Seeds polled and not complete", one("seeds", "in_flight")),
    _gauge("suspected_seeds", "Seeds that may have killed a process", own("suspected_seeds")),
    _gauge("oldest_in_flight_seconds", "Age of the oldest seed; of the 10 oldest", _oldest, "topic", "partition"),
    _gauge("partitions_assigned", "Assigned partitions", own("partitions")),
    _gauge("last_completion_timestamp_seconds", "Last completion of a seed", computed(_last_completion)),
    _histogram("seed_duration_seconds", "From poll to completion", (0.1, 0.5, 1, 5, 10, 30, 60, 180, 600, 3600)),
    # downloads
    _counter("download_attempts", "Downloads begun: page or robots", _of_kinds("attempts"), "kind"),
    _counter("downloads", "Downloads answered; rare statuses as their class, such as 4xx", _statuses, "kind", "status"),
    _counter("received_bytes", "Responses with their headers", _of_kinds("response_bytes"), "kind"),
    _counter("sent_bytes", "Requests with their headers", _of_kinds("request_bytes"), "kind"),
    _counter("failures", "Failure results", by_name("reasons"), "reason"),
    _counter("retries", "Retries", by_name("retries", "by_reason"), "reason"),
    _counter("links", "Links", by_name("links"), "fate"),
    _counter("redirects", "Redirects", by_name(OWN, "redirects"), "fate"),
    _counter("robots_fetches", "Fetches of robots.txt", by_name(OWN, "robots_fetches"), "outcome"),
    _counter("backoffs", "Steps of back-off of hosts", by_name(OWN, "backoffs"), "cause"),
    _counter("proxy_requests", "Requests through proxies", by_name(OWN, "proxy_requests"), "outcome"),
    _counter("dns_lookups", "Lookups of host names", by_name(OWN, "dns_lookups"), "outcome"),
    _histogram("download_duration_seconds", "Downloads, answered or not",
        (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60), "kind"),
    _histogram("dns_duration_seconds", "Lookups that were not cached", (0.005, 0.025, 0.1, 0.5, 1, 5, 10)),
    _histogram("response_size_bytes", "Bodies of pages", (1e3, 1e4, 5e4, 1e5, 5e5, 1e6, 1e7)),
    _histogram("schedule_delay_seconds", "Wait of a request while its host is free",
        (0.005, 0.05, 0.25, 1, 5, 30, 180, 600)),
    _gauge("requests_out", "Requests under way", one("requests_out")),
    _gauge("concurrency_limit", "CONCURRENT_REQUESTS", own("concurrency_limit")),
    _gauge("proxies", "Proxies, ready or resting", _proxies, "state"),
    # items and tasks
    _counter("items", "Items handed to the sinks", _items, "spider"),
    _counter("task_pages", "Results, failures included; of the 50 largest tasks",
        _of_tasks(lambda task: number_at(task, "pages") or 0.0), "task"),
    _counter("task_seeds_completed", "Completed seeds; of the 50 largest tasks",
        _of_tasks(lambda task: sum(value for _, value in numbers(task, "outcomes"))), "task"),
    _counter("task_failures", "Failure results; of the 50 largest tasks",
        _of_tasks(lambda task: sum(value for _, value in numbers(task, "reasons"))), "task"),
    # the frontier
    _gauge("requests_waiting", "Waiting requests and seeds",
        by_name("queues", most=_MOST_NAMES, without="bytes"), "queue"),
    _gauge("hosts", "Hosts with waiting requests, by why they wait",
        by_name("hosts", most=_MOST_NAMES, without="waiting"), "reason"),
    _gauge("frontier_bytes", "Estimate for requests, seeds in flight and spills", one("frontier", "bytes")),
    _gauge("frontier_limit_bytes", "SITE_FRONTIER_MAX_BYTES", one("frontier", "max_bytes")),
    _gauge("seen_pages", "Pages that the dupefilter knows, if it can count them", own("seen_pages")),
    _gauge("seen_bytes", "Estimate for the dupefilter", own("seen_bytes")),
    _counter("paused_seconds", "Time in which nothing is polled", by_name("paused_seconds"), "cause"),
    _gauge("intake_paused", "Whether nothing is polled now", _paused_now, "cause"),
    # sinks
    _counter("sink_records", "Answers of sinks to records",
        lambda document: _sink_counts(document, "acknowledged", "retried", "rejected"), "sink", "outcome"),
    _counter("sink_batches", "Batches written, answered or not",
        lambda document: ((names[:1], count) for names, count in _sink_counts(document, "batches")), "sink"),
    _histogram("sink_batch_duration_seconds", "Time of a batch", (0.01, 0.05, 0.25, 1, 5, 10, 30, 60), "sink"),
    _gauge("sink_up", "Whether the sink is there", _of_sinks("available"), "sink"),
    _gauge("sink_backlog_records", "Records without a final answer", _of_sinks("backlog"), "sink"),
    _gauge("sink_backlog_bytes", "The same in bytes", _of_sinks("backlog_bytes"), "sink"),
    _gauge("sink_backlog_limit_bytes", "SITE_SINK_BACKLOG_BYTES", _of_sinks("backlog_limit_bytes"), "sink"),
    _gauge("sink_last_accept_timestamp_seconds", "Last acknowledged record",
        _of_sinks("last_accept_at", moment), "sink"),
    # Kafka
    _counter("kafka_commits", "Commits of offsets", by_name(OWN, "commits"), "outcome"),
    _counter("kafka_rebalances", "Changes of the assignment: assigned, revoked or lost",
        by_name(OWN, "rebalances"), "kind"),
    _gauge("kafka_up", "Whether the seed log answers", computed(_log_is_there)),
    _gauge("last_commit_timestamp_seconds", "Last commit of offsets", own("last_commit_at")),
    # the process
    _gauge("build_info", "The service is OTEL_SERVICE_NAME, else the seed topic",
        _build, "version", "scrapy", "python", "spider", "service"),
    _counter("log_messages", "Warnings and errors; loggers beyond 10 as other", _log_messages, "level", "logger"),
    _counter("process_restarts", "Restarts of this slot by crawl_spider.sh", by_name(OWN, "restarts"), "exit_code"),
    _counter("process_cpu_seconds", "CPU time, user and system", own("process", "cpu_seconds")),
    _gauge("process_start_time_seconds", "Start of the process",
        computed(lambda document: moment(document, "started_at"))),
    _gauge("process_resident_memory_bytes", "Resident memory", one("memory", "rss_bytes")),
    _gauge("process_open_fds", "Open file descriptors", own("process", "open_fds")),
    _gauge("process_max_fds", "Limit of open file descriptors", own("process", "max_fds")),
    _gauge("memory_soft_limit_bytes", "SITE_MEMORY_SOFT_BYTES; 0: none", own("soft_limit_bytes")),
    _gauge("memory_limit_bytes", "MEMUSAGE_LIMIT_MB; 0: none",
        computed(lambda document: number_at(document, "memory", "limit_bytes") or 0.0)),
    _histogram("event_loop_lag_seconds", "How late the event loop is, ten times a second",
        (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)),
    _gauge("event_loop_silent_seconds", "Since the event loop turned last", own("loop_silent_seconds")),
    # the group
    _gauge("group_lag_seeds", "Incomplete seeds", by_name(OWN, "group", "lag_seeds", most=MOST_TIERS), "topic"),
    _gauge("group_lag_age_seconds", "Age of the oldest incomplete seed",
        by_name(OWN, "group", "lag_age_seconds", most=MOST_TIERS), "topic"),
    _gauge("group_members", "Members of the consumer group", own("group", "members")),
    _gauge("group_partitions_unowned", "Partitions that no member has",
        by_name(OWN, "group", "partitions_unowned", most=MOST_TIERS), "topic"),
    _gauge("topic_retention_seconds", "Age at which Kafka deletes messages",
        by_name(OWN, "group", "retention_seconds", most=MOST_TIERS), "topic"),
    _gauge("dead_letters", "Messages in the dead-letter topic",
        by_name(OWN, "group", "dead_letters", most=MOST_TIERS), "topic"),
    # the host
    Metric("gauge", "processes_expected", "Processes that crawl_spider.sh has to run here",
        one("expected"), common=OF_A_HOST),
    Metric("gauge", "processes_answering", "Processes that answered here", one("answering"), common=OF_A_HOST),
)  # fmt: skip


# --- exposition ------------------------------------------------------------------------------------------
# All metrics as text, in Prometheus' format or OpenMetrics, of one process or of all of a host. It takes some
# 20 ms for a process, so the event loop is no place for it.

Buckets = list[tuple[str, float] | tuple[str, float, Exemplar]]
_FAMILIES: Final[Mapping[Kind, Callable[..., CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]]] = {
    "counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily
}  # fmt: skip


class Form(NamedTuple):
    """How metrics are written."""

    content_type: str
    write: Callable[..., bytes]


PLAIN: Final = Form(PLAIN_TYPE, plain)
OPENMETRICS: Final = Form(OPEN_TYPE, openmetrics)


def form_for(accept: str) -> Form:
    """By the Accept header of a request."""
    asked = [part.split(";")[0].strip() for part in accept.lower().split(",")]
    return OPENMETRICS if "application/openmetrics-text" in asked else PLAIN


def exposition(
    snapshots: Sequence[Document], form: Form = PLAIN, *, of_host: bool = False, silent: Iterable[str] = ()
) -> bytes:
    """All metrics of these processes; `of_host` says that they are all that answer on this host.

    `silent` has the group of each that runs there and does not.
    """
    documents = _told_apart(snapshots)
    hosts: Mapping[tuple[str, ...], Document] = _hosts(documents, silent) if of_host else {}
    families = (_family(metric, hosts if metric.common == OF_A_HOST else documents) for metric in METRICS)
    told = [family for family in families if family.samples]
    return form.write(SimpleNamespace(collect=lambda: told))  # what both formats ask of a registry


def _told_apart(snapshots: Sequence[Document]) -> dict[tuple[str, ...], Document]:
    """By group and slot. Where two have the same, the later one gets another: no series comes twice."""
    found: dict[tuple[str, ...], Document] = {}
    for snapshot in snapshots:
        if not isinstance(snapshot, Mapping):
            continue
        group, slot = label(snapshot.get("group", "")), label(at(snapshot, OWN, "slot") or "1")
        names = (slot if not again else f"{slot}+{again}" for again in range(len(snapshots)))
        found[next((group, name) for name in names if (group, name) not in found)] = snapshot
    return found


def _hosts(
    documents: Mapping[tuple[str, ...], Document], silent: Iterable[str]
) -> dict[tuple[str, ...], dict[str, float]]:
    """What is known of the processes of each group on this host."""
    running = Counter([*((label(group),) for group in silent), *(place[:1] for place in documents)])
    found = {group: {"answering": 0.0, "expected": float(count)} for group, count in running.items()}
    for place, document in documents.items():
        host = found[place[:1]]
        host["answering"] += 1.0
        host["expected"] = max(host["expected"], number_at(document, OWN, "processes") or 1.0)
    return found


def _family(metric: Metric, documents: Mapping[tuple[str, ...], Document]) -> Family:
    made = _FAMILIES[metric.kind](metric.family, metric.meaning, labels=(*metric.common, *metric.labels))
    for place, document in documents.items():
        if isinstance(made, HistogramMetricFamily):
            for labels, measured in _measured(metric, document):
                _add_histogram(made, metric, (*place, *labels), measured)
        else:
            for labels, value in metric.read(document):
                made.add_metric((*place, *labels), value)
    return made


def _measured(metric: Metric, document: Document) -> Iterator[tuple[tuple[str, ...], Any]]:
    found = at(document, OWN, "histograms", metric.name)
    if not isinstance(found, Mapping):
        return
    if not metric.labels:
        yield (), found
    else:
        yield from (((label(name),), measured) for name, measured in islice(found.items(), MOST_SINKS))


def _add_histogram(family: HistogramMetricFamily, metric: Metric, labels: Sequence[str], measured: object) -> None:
    bounds, counts = at(measured, "bounds"), at(measured, "counts")
    total = number_at(measured, "sum")
    if not (_are_numbers(bounds) and _are_numbers(counts) and total is not None):
        return
    if len(counts) == len(bounds) + 1:
        exemplars = at(measured, "exemplars")
        family.add_metric(labels, _buckets(metric.bounds, bounds, counts, exemplars), total)


def _are_numbers(values: object) -> bool:
    return isinstance(values, list) and all(number_at(value) is not None for value in values)


def _buckets(exported: Iterable[float], bounds: Sequence[float], counts: Sequence[float], exemplars: object) -> Buckets:
    """Summed up to each exported bound. A bucket's exemplar is the last one that was measured in it."""
    wanted = {float(bound) for bound in exported}
    found: Buckets = []
    exemplar: Exemplar | None = None
    given = exemplars if isinstance(exemplars, list) else []
    for index, (bound, count) in enumerate(zip((*bounds, float("inf")), accumulate(counts), strict=True)):
        exemplar = _exemplar(given[index] if index < len(given) else None) or exemplar
        if bound in wanted or bound == float("inf"):
            name = "+Inf" if bound == float("inf") else repr(float(bound))
            found.append((name, count) if exemplar is None else (name, count, exemplar))
            exemplar = None
    return found


def _exemplar(given: object) -> Exemplar | None:
    if isinstance(given, list) and len(given) == 2 and (measured := number_at(given[1])) is not None:
        return Exemplar({"seed": label(given[0])}, float(measured))
    return None
