"""Sends all metrics over OTLP, in a thread, every OTEL_METRIC_EXPORT_INTERVAL milliseconds (60,000)."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, Final

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

from site_spider.observe.metrics.exposition import families
from site_spider.observe.otlp.extra import check_installed
from site_spider.observe.snapshot import Snapshot
from site_spider.outage import Outage

logger = logging.getLogger(__name__)

_INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
_USUAL_MILLISECONDS: Final = 60_000.0
_SHORTEST_SECONDS: Final = 0.1
_SNAPSHOT_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 5.0


class OtlpMetrics:
    """Of one process. A receiver that is away is said once, and tried again at the next interval."""

    def __init__(self, measured: Callable[[], Awaitable[Snapshot]], attributes: Mapping[str, str]) -> None:
        """Raises ConfigError without the extra `otel`."""
        check_installed("OTEL_EXPORTER_OTLP_ENDPOINT is set")
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415

        self._measured = measured
        self._attributes = dict(attributes)
        self._exporter = OTLPMetricExporter()
        self._loop = asyncio.get_running_loop()
        self._began = time.time_ns()
        self._over = threading.Event()
        self._away = Outage(logger, "Metrics cannot be sent over OTLP", "Metrics are sent over OTLP again")
        self._thread = threading.Thread(target=self._run, name="site-otlp", daemon=True)

    def start(self) -> None:
        """Send from now on."""
        self._thread.start()

    async def close(self) -> None:
        """Send no more."""
        self._over.set()
        await asyncio.to_thread(self._thread.join, _CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._over.wait(_interval_seconds()):
            try:
                self._push()
            except Exception as error:  # noqa: BLE001 - metrics never end a crawl
                self._away.goes_on(repr(error))
        self._exporter.shutdown()

    def _push(self) -> None:
        from opentelemetry.sdk.metrics.export import MetricExportResult  # noqa: PLC0415 - an extra

        async def ask() -> Snapshot:
            return await self._measured()

        try:
            document = asyncio.run_coroutine_threadsafe(ask(), self._loop).result(_SNAPSHOT_SECONDS)
        except (TimeoutError, CancelledError):
            return  # the event loop is blocked, or ends
        data = metrics_data(families([document]), self._attributes, self._began, time.time_ns())
        if self._exporter.export(data) is MetricExportResult.SUCCESS:
            self._away.is_over()
        else:
            self._away.goes_on("the receiver does not take them")


def _interval_seconds() -> float:
    try:
        milliseconds = float(os.environ.get(_INTERVAL, ""))
    except ValueError:
        milliseconds = _USUAL_MILLISECONDS
    return max(_SHORTEST_SECONDS, milliseconds / 1000)


def metrics_data(found: Iterator[Family], attributes: Mapping[str, str], began: int, now: int) -> Any:
    """All families in OpenTelemetry's own classes; times are Unix times in nanoseconds."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

    metrics = [_metric(family, began, now) for family in found]
    scope = ScopeMetrics(InstrumentationScope("site_spider"), metrics, schema_url="")
    resource = Resource.create(dict(attributes))
    return MetricsData([ResourceMetrics(resource, [scope], schema_url="")])


def _metric(family: Family, began: int, now: int) -> Any:
    from opentelemetry.sdk.metrics import export  # noqa: PLC0415 - an extra

    cumulative = export.AggregationTemporality.CUMULATIVE
    data: Any
    if family.type == "histogram":
        data = export.Histogram(list(_histogram_points(family.samples, began, now)), cumulative)
    else:
        points = [
            export.NumberDataPoint(sample.labels, began, now, sample.value) for sample in family.samples
        ]
        is_counter = family.type == "counter"
        data = export.Sum(points, cumulative, is_monotonic=True) if is_counter else export.Gauge(points)
    return export.Metric(family.name, family.documentation, "", data)


def _histogram_points(samples: Sequence[Sample], began: int, now: int) -> Iterator[Any]:
    """One for each set of labels: their buckets come in order, then count and sum."""
    from opentelemetry.sdk.metrics.export import HistogramDataPoint  # noqa: PLC0415 - an extra

    bounds: list[float] = []
    counts: list[int] = []
    for sample in samples:
        if sample.name.endswith("_bucket"):
            counts.append(int(sample.value) - sum(counts))
            if sample.labels["le"] != "+Inf":
                bounds.append(float(sample.labels["le"]))
        elif sample.name.endswith("_sum"):
            extremes = float("nan")  # are not known of a histogram with fixed buckets
            yield HistogramDataPoint(
                sample.labels, began, now, sum(counts), sample.value, counts, bounds, extremes, extremes
            )
            bounds, counts = [], []
