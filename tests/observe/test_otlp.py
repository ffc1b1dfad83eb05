"""Metrics and traces over OTLP, from a real crawl to a receiver that reads opentelemetry-proto."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from scrapy import Request
from scrapy.http import Response

from site_spider.errors import ConfigError
from site_spider.observe.metrics.catalogue import BY_NAME, PREFIX
from site_spider.observe.otlp import extra
from site_spider.observe.otlp.seed_trace import SeedTrace
from tests.in_process import engine
from tests.in_process.engine import crawl, page


class Receiver:
    """Keeps what is sent to it."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.metrics: dict[str, Any] = {}
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.take(self.path, body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_of_what: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        elif path == "/v1/metrics":
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in resource.scope_metrics:
                    self.metrics |= {metric.name: metric for metric in scope.metrics}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    engine.ANSWERS.clear()
    receiver = Receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
    yield receiver
    receiver.close()
    engine.ANSWERS.clear()


async def slow(request: Request) -> Response:
    await asyncio.sleep(0.5)
    return page(request)


def test_a_crawl_sends_a_trace_for_one_seed_in_two(receiver: Receiver, tmp_path: Path) -> None:
    engine.ANSWERS["/slow"] = slow
    seeds = [{"url": f"http://h{number}.test/slow"} for number in range(4)]
    found = crawl(tmp_path, seeds, SITE_TRACE_EVERY=2)
    assert found.lag == 0
    traces: dict[bytes, dict[str, Any]] = {}
    for span in receiver.spans:
        traces.setdefault(span.trace_id, {})[span.name] = span
    assert len(traces) == 2
    for spans in traces.values():
        assert set(spans) == {"seed", "poll", "wait", "download", "parse", "sinks", "commit"}
        root = spans["seed"]
        attributes = {each.key: each.value.string_value for each in root.attributes}
        assert attributes["outcome"] == "result"
        assert attributes["seed"].startswith("seeds/")
        assert all(span.parent_span_id == root.span_id for span in spans.values() if span is not root)
        download = spans["download"]
        assert download.end_time_unix_nano - download.start_time_unix_nano >= 0.45e9
        ends = [
            spans[name].end_time_unix_nano
            for name in ("poll", "wait", "download", "parse", "sinks", "commit")
        ]
        assert ends == sorted(ends)
        assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans.values())


def test_a_crawl_sends_its_metrics(receiver: Receiver, tmp_path: Path) -> None:
    engine.ANSWERS["/slow"] = slow
    crawl(tmp_path, [{"url": "http://h.test/slow"}])
    names = {name.removeprefix(PREFIX) for name in receiver.metrics}
    assert names <= set(BY_NAME)
    assert len(names) > 40
    consumed = receiver.metrics["site_spider_seeds_consumed"]
    assert consumed.sum.is_monotonic
    assert {each.key for each in consumed.sum.data_points[0].attributes} == {"group", "slot"}
    lag = receiver.metrics["site_spider_event_loop_lag_seconds"].histogram.data_points[0]
    assert len(lag.bucket_counts) == len(lag.explicit_bounds) + 1
    assert sum(lag.bucket_counts) == lag.count > 0


def test_a_receiver_that_is_away_costs_no_seed_and_is_said_once(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    engine.ANSWERS["/slow"] = slow
    found = crawl(tmp_path, [{"url": "http://h.test/slow"}], SITE_TRACE_EVERY=1)
    assert found.lag == 0
    assert len(found.documents) == 1
    assert caplog.text.count("Metrics cannot be sent over OTLP") <= 1


def test_without_the_extra_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match="SITE_TRACE_EVERY is 5, which needs OpenTelemetry: pip install"):
        extra.check_installed("SITE_TRACE_EVERY is 5")


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://h"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_METRICS_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_metrics_are_sent_where_a_receiver_is_named(environ: dict[str, str], wanted: bool) -> None:
    assert extra.metrics_are_wanted(environ) is wanted


def test_a_seed_that_needs_no_download_has_no_such_spans_and_a_tree_has_some_at_most() -> None:
    trace = SeedTrace(written_to_log=5, arrived=10)
    trace.complete(20, "dead_letter")
    assert [span.name for span in trace.spans(30)] == ["seed", "poll", "wait", "sinks", "commit"]
    for number in range(100):
        trace.downloaded(12 + number, 1)
    assert sum(span.name == "download" for span in trace.spans(200)) == 50
    late = SeedTrace(written_to_log=99, arrived=10)  # a clock that is ahead
    assert late.spans(30)[1][1:] == (10, 10)
