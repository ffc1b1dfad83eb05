"""What SITE_TRACE_EVERY and OpenTelemetry's variables ask for."""

from __future__ import annotations

from collections.abc import Sequence

from site_spider import options
from site_spider.frontier.waiting_room import Times
from site_spider.observe.histograms import Histograms
from site_spider.observe.metrics.measurements import Measurements
from site_spider.observe.otlp.extra import metrics_are_wanted
from site_spider.observe.otlp.metrics import OtlpMetrics
from site_spider.observe.otlp.traces import NAME, SeedTraces
from site_spider.options import SettingsView
from site_spider.results.commits import Member


def seed_traces(settings: SettingsView, member: Member) -> Sequence[SeedTraces]:
    """The listener that traces seeds; none where it is turned off. Raises ConfigError."""
    every = options.integer(settings, NAME)
    return [SeedTraces(every, _attributes(member.group))] if every else []


def times_of(histograms: Histograms, traces: Sequence[SeedTraces]) -> Times:
    """Who hears how long requests were out and kept waiting."""
    out, kept = histograms.download_seconds.observe, histograms.kept_waiting_seconds.observe
    if not traces:
        return Times(out, kept)

    def both(seconds: float, entry: object) -> None:
        out(seconds, entry)
        for trace in traces:
            trace.downloaded(seconds, entry)

    return Times(both, kept)


def otlp_metrics(measurements: Measurements, group: str) -> OtlpMetrics | None:
    """What sends metrics, where a receiver is named. Raises ConfigError."""
    return OtlpMetrics(measurements.measured, _attributes(group)) if metrics_are_wanted() else None


def _attributes(group: str) -> dict[str, str]:
    return {"service.name": "site_spider", "service.namespace": group}
