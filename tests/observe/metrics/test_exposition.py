"""Metrics as text: valid in both formats, bounded, complete, and never spoiled by one document."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as families

from site_spider.observe.metrics.catalogue import METRICS, OPENMETRICS, PLAIN, exposition, form_for
from tests.debian import program
from tests.observe.metrics.full_snapshot import exported_names, full_snapshot
from tools import docs

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
    text = exposition([full_snapshot()], of_host=True)
    assert {name for name, _ in samples(text)} == exported_names()
    labels = {metric.family: {*metric.common, *metric.labels} for metric in METRICS}
    for family in families(text.decode()):
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == labels[family.name], sample


def test_a_process_has_at_most_500_series() -> None:
    """Whatever sites, sinks, loggers and tasks there are."""
    assert len(samples(exposition([full_snapshot()]))) <= MOST_SERIES


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
    assert value(text, "site_spider_seeds_consumed_total") == 100
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
    sums = {("reason", "waiting"), ("queue", "bytes")}  # over hosts and queues: none of them
    assert [labels for _, labels in samples(text) if labels & sums] == []


def test_rare_statuses_count_as_their_class() -> None:
    text = exposition([full_snapshot()])
    pages = {
        dict(labels)["status"]: count
        for (name, labels), count in samples(text).items()
        if name == "site_spider_downloads_total" and dict(labels)["kind"] == "page"
    }
    assert sum(pages.values()) == 900
    assert {"200", "403", "429", "503"} <= set(pages)


def test_all_processes_of_a_host_are_told_apart_and_missing_ones_show() -> None:
    text = exposition([full_snapshot("1"), full_snapshot("3")], of_host=True)
    found = samples(text)
    group = frozenset({("group", "g")})
    assert found["site_spider_processes_expected", group] == 4
    assert found["site_spider_processes_answering", group] == 2
    assert {dict(labels)["slot"] for name, labels in found if name == "site_spider_kafka_up"} == {"1", "3"}


def test_two_processes_with_one_slot_do_not_spoil_the_text() -> None:
    """As with two scripts of one group on a host."""
    found = samples(exposition([full_snapshot("1"), full_snapshot("1"), full_snapshot("1", group="h")]))
    slots = {(dict(labels)["group"], dict(labels)["slot"]) for name, labels in found if "kafka_up" in name}
    assert slots == {("g", "1"), ("g", "1+1"), ("h", "1")}


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
    ],
)
def test_a_document_of_any_kind_spoils_nothing(document: Any) -> None:
    for form, parse in ((PLAIN, families), (OPENMETRICS, open_families)):
        text = exposition([document, full_snapshot()], form, of_host=True).decode()
        list(parse(text))
        assert 'site_spider_seeds_consumed_total{group="g",slot="1"} 100.0' in text
        assert max(map(len, text.splitlines())) < 1000


# --- The table of metrics in the documents is that of the catalogue


def test_the_document_lists_every_metric_as_it_is_exported() -> None:
    document, _ = docs.PARTS["metrics"]
    assert docs.updated("metrics") == document.read_text(encoding="utf-8"), "run python -m tools.docs"
