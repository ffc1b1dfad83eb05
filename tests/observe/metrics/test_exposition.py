"""Metrics as text: valid in both formats, bounded, complete, and never spoiled by one document."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as families

from site_spider.bounded import Histogram
from site_spider.contracts.seed_log import Partition
from site_spider.ledger.ledger import Ledger
from site_spider.observe.counters import BYTES, CAUSES, LAG_SECONDS, MOST_LOGGERS
from site_spider.observe.metrics.catalogue import METRICS, OPENMETRICS, PLAIN, Metric, exposition, form_for
from site_spider.observe.metrics.readings import expected_processes, histogram_document, restarts_by_code
from site_spider.observe.snapshot import seed_counts
from site_spider.results.failures import REASONS
from tests.debian import program
from tools import docs

SINKS = ("local", "elasticsearch", "hbase", "kafka", "one.too.many")
LONG = {f"name-{number}": number for number in range(200)}


def full_snapshot(slot: str = "1", group: str = "g") -> dict[str, Any]:
    seconds = histogram_document(_filled(Histogram()))
    return {
        "group": group,
        "spider": "news",
        "items": 12,
        "tasks": {
            "largest": [
                {"task_id": f"task-{n}", "pages": 9, "outcomes": {"result": 7}, "reasons": {"dns": 2}}
                for n in range(200)
            ],
            "others": {"tasks": 3},
        },
        "at": "2026-11-22T09:00:00.000+00:00",
        "started_at": "2026-11-22T08:00:00.000+00:00",
        "seconds_since_completion": 2.5,
        "seeds": {
            "consumed": 100, "completed_with_result": 40, "completed_with_failure": 30, "filtered": 10,
            "dead_lettered": 5, "spilled": 5, "cancelled": 0, "in_flight": 10, "handed_back": 3,
            "deleted_unread": 2,
        },
        "oldest_in_flight_seconds": {f"seeds/{number}": number for number in range(500)},
        "downloads": {
            kind: {
                "attempts": 9, "answers": 8, "response_bytes": 7, "request_bytes": 6,
                "statuses": {str(status): 1 for status in range(100, 1000)},
            }
            for kind in ("page", "robots")
        },
        "reasons": dict.fromkeys(REASONS, 1),
        "retries": {"by_reason": dict.fromkeys(REASONS, 1)},
        "links": dict.fromkeys(("accepted", "filtered", "spilled", "offsite", "failed"), 1),
        "queues": dict.fromkeys(("redirects", "links", "seeds", "retries", "proxy", "spilling", "bytes"), 1),
        "hosts": {"waiting": 9, **{f"reason {number}": 1 for number in range(8)}},
        "requests_out": 5,
        "pause": {"cause": "sink", "said": "the sink is away"},
        "paused_seconds": dict.fromkeys(CAUSES, 1.5),
        "log_is_away": False,
        "sinks": [
            {
                "name": name, "available": True, "backlog": 1, "backlog_bytes": 2, "backlog_limit_bytes": 3,
                "last_accept_at": "2026-11-22T08:59:00.000+00:00",
            }
            for name in SINKS
        ],
        "proxies": {"all": 3, "resting": 1},
        "frontier": {"requests": 1, "max_requests": 2, "bytes": 3, "max_bytes": 4},
        "memory": {"rss_bytes": 1, "max_rss_bytes": 2, "limit_bytes": None},
        "measurements": {
            "slot": slot,
            "processes": 4,
            "versions": {"version": "0.1.0", "scrapy": "2.19.0", "python": "3.11.2"},
            "histograms": {
                "seed_duration_seconds": seconds,
                "download_duration_seconds": {"page": seconds},
                "schedule_delay_seconds": seconds,
                "dns_duration_seconds": seconds,
                "response_size_bytes": histogram_document(_filled(Histogram(BYTES))),
                "event_loop_lag_seconds": histogram_document(_filled(Histogram(LAG_SECONDS))),
                "sink_batch_duration_seconds": dict.fromkeys(SINKS, seconds),
            },
            "sinks": {
                name: {"batches": 4, "acknowledged": 3, "retried": 2, "rejected": 1} for name in SINKS
            },
            "commits": {"succeeded": 1, "failed": 0},
            "last_commit_at": 1e9,
            "rebalances": {"assigned": 1, "revoked": 0, "lost": 0},
            "partitions": 500,
            "suspected_seeds": 0,
            "seen_pages": 3,
            "service": "seeds",
            "seen_bytes": 1,
            "concurrency_limit": 64,
            "soft_limit_bytes": 0,
            "log_messages": [
                {"level": level, "logger": f"logger {number}", "count": 1}
                for level in ("warning", "error")
                for number in range(MOST_LOGGERS + 1)
            ],
            "restarts": restarts_by_code("137:2,42:1"),
            "process": {"cpu_seconds": 1.0, "open_fds": 2, "max_fds": 3},
            "proxy_requests": {"answered": 1, "failed": 0, "silent": 0},
            "dns_lookups": {"cached": 1, "resolved": 1, "failed": 0, "refused": 0},
            "backoffs": {"429": 1, "503": 0},
            "redirects": {"followed": 1, "too_many": 0, "invalid": 0},
            "robots_fetches": {"answered": 1, "unanswered": 0},
            "loop_silent_seconds": 0.0,
            "group": {
                "lag_seeds": {"seeds": 5},
                "lag_age_seconds": {"seeds": 1.5},
                "dead_letters": {"seeds.dead-letters": 1},
                "retention_seconds": {"seeds": 604800.0},
                "members": 4,
                "partitions_unowned": {"seeds": 0},
            },
        },
    }  # fmt: skip


def _filled(histogram: Histogram) -> Histogram:
    for bound in (*histogram.bounds, 2 * histogram.bounds[-1]):
        histogram.observe(bound)
    return histogram


_ENDINGS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}


def sample_names(*metrics: Metric) -> set[str]:
    return {metric.family + ending for metric in metrics for ending in _ENDINGS[metric.kind]}


MOST_SERIES = 500  # of a process: three for each of 50 tasks, and 350


def samples(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = {}
    for family in families(text.decode()):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, f"{key} comes twice"
            found[key] = sample.value
    return found


def value(text: bytes, name: str, **labels: str) -> float:
    return samples(text)[name, frozenset({"group": "g", "slot": "1", **labels}.items())]


def test_a_full_snapshot_exports_every_metric_with_its_labels() -> None:
    """A process has at most 500 series, whatever sites, sinks, loggers and tasks there are."""
    assert len(samples(exposition([full_snapshot()]))) <= MOST_SERIES
    text = exposition([full_snapshot()], of_host=True)
    assert {name for name, _ in samples(text)} == sample_names(*METRICS)
    labels = {metric.family: {*metric.common, *metric.labels} for metric in METRICS}
    for family in families(text.decode()):
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == labels[family.name], sample


def test_items_are_counted_by_spider_and_pages_by_the_50_largest_tasks() -> None:
    """Ids that have become one label are summed up: no series comes twice."""
    snapshot = full_snapshot()
    snapshot["tasks"]["largest"][1:3] = [
        {"task_id": "x" * 200 + end, "pages": 4, "outcomes": {"result": 1}, "reasons": {}} for end in "ab"
    ]
    snapshot["tasks"]["largest"][3]["task_id"] = None
    text = exposition([snapshot])
    assert value(text, "site_spider_items_total", spider="news") == 12
    assert value(text, "site_spider_task_pages_total", task="task-0") == 9
    assert value(text, "site_spider_task_pages_total", task="x" * 100) == 8
    assert value(text, "site_spider_task_failures_total", task="(no task)") == 2
    named = {labels for name, labels in samples(text) if name == "site_spider_task_seeds_completed_total"}
    assert len(named) == 49


def test_promtool_finds_no_fault_with_names_and_text() -> None:
    said = subprocess.run(
        [program("promtool", "prometheus"), "check", "metrics"],
        input=exposition([full_snapshot()], of_host=True),
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert (said.returncode, said.stderr.decode()) == (0, "")


def test_openmetrics_is_valid_and_has_exemplars_that_name_seeds_only() -> None:
    snapshot = json.loads(json.dumps(full_snapshot()))  # nothing shared
    measured = snapshot["measurements"]["histograms"]["seed_duration_seconds"]
    measured["exemplars"][3] = ["seeds/4@17", 0.05]
    text = exposition([snapshot], OPENMETRICS).decode()
    exemplars = [
        (sample.labels["le"], sample.exemplar.labels, sample.exemplar.value)
        for family in open_families(text)
        for sample in family.samples
        if sample.exemplar is not None
    ]
    assert exemplars == [("0.1", {"seed": "seeds/4@17"}, 0.05)]  # the next exported bound


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", PLAIN),
        ("*/*", PLAIN),
        ("text/plain;version=0.0.4", PLAIN),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", OPENMETRICS),
        ("text/plain;q=0.5, Application/OpenMetrics-Text", OPENMETRICS),
    ],
)
def test_the_format_is_the_one_that_is_asked_for(accept: str, form: object) -> None:
    assert form_for(accept) is form


def test_values_are_those_of_the_snapshot() -> None:
    text = exposition([full_snapshot()])
    assert value(text, "site_spider_seeds_consumed_total") == 103
    assert value(text, "site_spider_seeds_completed_total", outcome="dead_letter") == 5
    assert value(text, "site_spider_intake_paused", cause="sink") == 1
    assert value(text, "site_spider_intake_paused", cause="kafka") == 0
    assert value(text, "site_spider_proxies", state="ready") == 2
    assert value(text, "site_spider_kafka_up") == 1
    assert value(text, "site_spider_process_restarts_total", exit_code="137") == 2
    assert value(text, "site_spider_process_restarts_total", exit_code="other") == 1
    assert value(text, "site_spider_oldest_in_flight_seconds", topic="seeds", partition="499") == 499
    assert value(text, "site_spider_seed_duration_seconds_count") == 17
    assert value(text, "site_spider_seed_duration_seconds_bucket", le="0.1") == 5
    assert value(text, "site_spider_sink_batches_total", sink="local") == 4
    assert value(text, "site_spider_last_completion_timestamp_seconds") == 1_795_337_997.5
    pages = {  # of 900 statuses those that are rare count as their class
        dict(labels)["status"]: count
        for (name, labels), count in samples(text).items()
        if name == "site_spider_downloads_total" and dict(labels)["kind"] == "page"
    }
    assert (sum(pages.values()), len(pages)) == (900, 30)
    assert {"200", "403", "429", "503", "4xx", "other"} <= set(pages)
    sums = {("reason", "waiting"), ("queue", "bytes")}  # over hosts and queues: none of them
    assert [labels for _, labels in samples(text) if labels & sums] == []


def test_seeds_that_are_handed_back_stay_polled() -> None:
    """Prometheus takes a fall for a restart: a rate over a rebalance showed all that was ever polled once more."""
    ledger, partition = Ledger(), Partition("seeds", 0)
    ledger.assign(partition, None)
    for offset in range(3):
        ledger.take(partition, offset)
    polled = "site_spider_seeds_consumed_total"
    assert value(exposition([{"group": "g", "seeds": seed_counts(ledger)}]), polled) == 3
    ledger.revoke(partition)
    assert value(exposition([{"group": "g", "seeds": seed_counts(ledger)}]), polled) == 3


def test_as_many_processes_are_expected_as_have_to_run_now() -> None:
    """Not as many as there were at the start of one of them."""
    file = os.memfd_create("processes")
    said = {"CRAWL_SPIDER_PROCESSES": "4", "CRAWL_SPIDER_EXPECTED": str(file)}
    assert (expected_processes({}), expected_processes(said)) == (1, 4)
    os.pwrite(file, b"%-8d" % 2, 0)
    assert expected_processes(said) == 2
    os.close(file)
    assert expected_processes(said) == 4


def test_all_processes_of_a_host_are_told_apart_and_missing_ones_show() -> None:
    """Also those of one slot, as with two scripts of one group on a host: no series comes twice."""
    snapshots = [full_snapshot("1"), full_snapshot("1"), full_snapshot("3"), full_snapshot("1", group="h")]
    found = samples(exposition(snapshots, of_host=True))
    group = frozenset({("group", "g")})
    assert found["site_spider_processes_expected", group] == 4
    assert found["site_spider_processes_answering", group] == 3
    slots = {(dict(labels)["group"], dict(labels)["slot"]) for name, labels in found if "kafka_up" in name}
    assert slots == {("g", "1"), ("g", "1+1"), ("g", "3"), ("h", "1")}


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        None,
        "text",
        {"group": None, "measurements": []},
        {"group": 'a"b\\c\n', "seeds": {"consumed": "many"}, "sinks": [3, {"name": {}}], "pause": 1},
        {"seeds": {"consumed": float("nan")}, "hosts": {"a": float("inf"), "\ud800": 1}},
        {"measurements": {"histograms": {"seed_duration_seconds": {"bounds": [1], "counts": [1], "sum": 1}}}},
        {"measurements": {"histograms": {"sink_batch_duration_seconds": {"s": 7}}, "log_messages": {"a": 1}}},
        {"oldest_in_flight_seconds": {"x" * 100_000: 1}, "at": "yesterday", "started_at": 7},
        {"seeds": {"consumed": 10**400}, "reasons": {"dns": 10**400}},
        {"measurements": {"histograms": {"dns_duration_seconds": {"bounds": [1], "counts": [1, 10**400], "sum": 1}}}},
    ],
)
def test_a_document_of_any_kind_spoils_nothing(document: Any) -> None:
    for form, parse in ((PLAIN, families), (OPENMETRICS, open_families)):
        text = exposition([document, full_snapshot()], form, of_host=True).decode()
        list(parse(text))
        assert 'site_spider_seeds_consumed_total{group="g",slot="1"} 103.0' in text
        assert max(map(len, text.splitlines())) < 1000


# --- The table of metrics in the documents is that of the catalogue


def test_the_document_lists_every_metric_as_it_is_exported() -> None:
    document, _ = docs.PARTS["metrics"]
    assert docs.updated("metrics") == document.read_text(encoding="utf-8"), "run python -m tools.docs"
