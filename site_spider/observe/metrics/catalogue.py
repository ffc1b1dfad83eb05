"""Every metric: its name, kind, labels, unit and meaning.

All of them have the labels `group` and `slot` as well, except those of a host, which have `group`. A value of
a label is one of a short list, or the name of a sink, topic, partition, logger, spider or task, each
bounded in number: never a URL, host, seed, pid or text of an exception.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

PREFIX: Final = "site_spider_"
EVERY: Final = ("group", "slot")
OF_A_HOST: Final = ("group",)

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """`name` has neither prefix nor `_total`."""

    kind: Kind
    name: str
    labels: tuple[str, ...]  # besides those of all
    unit: str
    meaning: str
    common: tuple[str, ...] = EVERY

    @property
    def family(self) -> str:
        """Its name with the prefix, as Prometheus has it in TYPE of OpenMetrics."""
        return PREFIX + self.name

    @property
    def samples(self) -> tuple[str, ...]:
        """The names of its samples."""
        if self.kind == "counter":
            return (f"{self.family}_total",)
        if self.kind == "histogram":
            return tuple(f"{self.family}_{part}" for part in ("bucket", "count", "sum"))
        return (self.family,)


def _counter(name: str, unit: str, meaning: str, *labels: str) -> Metric:
    return Metric("counter", name, labels, unit, meaning)


def _gauge(name: str, unit: str, meaning: str, *labels: str) -> Metric:
    return Metric("gauge", name, labels, unit, meaning)


def _histogram(name: str, unit: str, meaning: str, *labels: str) -> Metric:
    return Metric("histogram", name, labels, unit, meaning)


METRICS: Final = (
    # seeds
    _counter("seeds_consumed", "seeds", "Seeds polled, less those handed back"),
    _counter("seeds_completed", "seeds", "Completed seeds by how they ended", "outcome"),
    _counter(
        "seeds_handed_back", "seeds",
        "Seeds that another process repeats, because their partition left",
    ),
    _counter(
        "seeds_deleted_unread", "seeds",
        "Seeds that the seed log deleted before the group had read them",
    ),
    _gauge("seeds_in_flight", "seeds", "Seeds polled and not complete"),
    _gauge("suspected_seeds", "seeds", "Seeds suspected of having killed a process"),
    _gauge(
        "oldest_in_flight_seconds", "seconds",
        "How long the oldest seed of a partition is in flight; of the 10 oldest",
        "topic", "partition",
    ),
    _gauge("partitions_assigned", "partitions", "Partitions assigned to the process"),
    _gauge("last_completion_timestamp_seconds", "Unix time", "When a seed was completed last"),
    _histogram("seed_duration_seconds", "seconds", "From the poll of a seed to its completion"),
    # downloads
    _counter("download_attempts", "requests", "Downloads begun, by kind: page or robots", "kind"),
    _counter(
        "downloads", "responses",
        "Downloads answered, by kind and status; rare statuses count as their class, such as 4xx",
        "kind", "status",
    ),
    _counter("received_bytes", "bytes", "Responses with their headers", "kind"),
    _counter("sent_bytes", "bytes", "Requests with their headers", "kind"),
    _counter("failures", "pages", "Failure results by reason", "reason"),
    _counter("retries", "requests", "Retries by reason", "reason"),
    _counter("links", "links", "Links by what became of them", "fate"),
    _counter("redirects", "redirects", "Redirects by what became of them", "fate"),
    _counter("robots_fetches", "fetches", "Fetches of robots.txt by outcome", "outcome"),
    _counter("backoffs", "steps", "Steps of back-off of hosts by cause", "cause"),
    _counter("proxy_requests", "requests", "Requests through proxies by outcome", "outcome"),
    _counter("dns_lookups", "lookups", "Lookups of host names by outcome", "outcome"),
    _histogram(
        "download_duration_seconds", "seconds",
        "From the start of a download to its end, answered or not",
        "kind",
    ),
    _histogram("dns_duration_seconds", "seconds", "Lookups of host names that were not cached"),
    _histogram("response_size_bytes", "bytes", "Bodies of pages"),
    _histogram(
        "schedule_delay_seconds", "seconds",
        "How long a request waits beyond the moment at which its host is free",
    ),
    _gauge("requests_out", "requests", "Requests under way"),
    _gauge("concurrency_limit", "requests", "CONCURRENT_REQUESTS"),
    _gauge("proxies", "proxies", "Proxies by state: ready or resting", "state"),
    # items and tasks
    _counter("items", "items", "Items handed to the sinks, by spider", "spider"),
    _counter("task_pages", "pages", "Results of a task, failures included; of the 50 largest", "task"),
    _counter("task_seeds_completed", "seeds", "Completed seeds of a task; of the 50 largest", "task"),
    _counter("task_failures", "pages", "Failure results of a task; of the 50 largest", "task"),
    # the frontier
    _gauge("requests_waiting", "requests", "Requests and seeds that wait, by queue", "queue"),
    _gauge(
        "hosts", "hosts",
        "Hosts of which something waits, by the reason why nothing of them starts",
        "reason",
    ),
    _gauge("frontier_bytes", "bytes", "Memory of requests, seeds in flight and spills, as estimated"),
    _gauge("frontier_limit_bytes", "bytes", "SITE_FRONTIER_MAX_BYTES"),
    _gauge("seen_pages", "pages", "Pages that the dupefilter knows, where its kind can count them"),
    _gauge("seen_bytes", "bytes", "Memory of the dupefilter, as estimated"),
    _counter("paused_seconds", "seconds", "Time in which nothing is polled, by cause", "cause"),
    _gauge("intake_paused", "0 or 1", "Whether nothing is polled now, by cause", "cause"),
    # sinks
    _counter("sink_records", "records", "Answers of sinks to records", "sink", "outcome"),
    _counter("sink_batches", "batches", "Batches written, answered or not", "sink"),
    _histogram("sink_batch_duration_seconds", "seconds", "How long a sink takes for a batch", "sink"),
    _gauge("sink_up", "0 or 1", "Whether the sink is there", "sink"),
    _gauge("sink_backlog_records", "records", "Records without a final answer", "sink"),
    _gauge("sink_backlog_bytes", "bytes", "The same in bytes", "sink"),
    _gauge("sink_backlog_limit_bytes", "bytes", "SITE_SINK_BACKLOG_BYTES", "sink"),
    _gauge(
        "sink_last_accept_timestamp_seconds", "Unix time",
        "When the sink acknowledged a record last",
        "sink",
    ),
    # Kafka
    _counter("kafka_commits", "commits", "Commits of offsets by outcome", "outcome"),
    _counter(
        "kafka_rebalances", "changes",
        "Changes of the assignment by kind: assigned, revoked or lost",
        "kind",
    ),
    _gauge("kafka_up", "0 or 1", "Whether the seed log answers"),
    _gauge("last_commit_timestamp_seconds", "Unix time", "When offsets were committed last"),
    # the process
    _gauge(
        "build_info", "1",
        "The process: its versions, spider, and service (OTEL_SERVICE_NAME, else its seed topic)",
        "version", "scrapy", "python", "spider", "service",
    ),
    _counter(
        "log_messages", "messages",
        "Warnings and errors by level and logger; the first 10 loggers by name, the others as other",
        "level", "logger",
    ),
    _counter(
        "process_restarts", "restarts",
        "Restarts of this slot by crawl_spider.sh, by exit code of the process before",
        "exit_code",
    ),
    _counter("process_cpu_seconds", "seconds", "CPU time, user and system"),
    _gauge("process_start_time_seconds", "Unix time", "Start of the process"),
    _gauge("process_resident_memory_bytes", "bytes", "Resident memory"),
    _gauge("process_open_fds", "descriptors", "Open file descriptors"),
    _gauge("process_max_fds", "descriptors", "Limit of open file descriptors"),
    _gauge("memory_soft_limit_bytes", "bytes", "SITE_MEMORY_SOFT_BYTES; 0: none"),
    _gauge("memory_limit_bytes", "bytes", "MEMUSAGE_LIMIT_MB; 0: none"),
    _histogram(
        "event_loop_lag_seconds", "seconds",
        "How late the event loop is, measured ten times a second",
    ),
    _gauge("event_loop_silent_seconds", "seconds", "Time since the event loop was seen to turn"),
    # the group
    _gauge("group_lag_seeds", "seeds", "Seeds of the topic that are not complete", "topic"),
    _gauge(
        "group_lag_age_seconds", "seconds",
        "Age of the oldest seed of the topic that is not complete",
        "topic",
    ),
    _gauge("group_members", "members", "Members of the consumer group"),
    _gauge("group_partitions_unowned", "partitions", "Partitions of the topic that no member has", "topic"),
    _gauge("topic_retention_seconds", "seconds", "Age at which Kafka deletes messages of the topic", "topic"),
    _gauge("dead_letters", "messages", "Messages in the dead-letter topic", "topic"),
    # the host
    Metric(
        "gauge", "processes_expected", (), "processes",
        "Processes that crawl_spider.sh was told to run on this host",
        OF_A_HOST,
    ),
    Metric(
        "gauge", "processes_answering", (), "processes",
        "Processes of this host that answered",
        OF_A_HOST,
    ),
)  # fmt: skip

BY_NAME: Final = {metric.name: metric for metric in METRICS}


def exported_names() -> set[str]:
    """The names of all samples."""
    return {name for metric in METRICS for name in metric.samples}
