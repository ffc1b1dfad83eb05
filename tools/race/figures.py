"""What one heat gave, reckoned from what was read while it ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tools.race.meter import Reading
from tools.race.series import Stretch, stretches

WARM_PART = 0.05  # of the pages, before which nothing is measured: imports, connections, the start


@dataclass(frozen=True)
class Figures:
    """Of one contestant, one workload, one run."""

    cpu_us: float  # a page, from the warm moment to the last record
    early_cpu_us: float  # in the tenth of the pages that follows the warm moment
    late_cpu_us: float  # in the last tenth
    pages_per_second: float
    early_bytes: int  # resident after a tenth of the pages
    late_bytes: int  # and in the end
    peak_bytes: int  # from the start on
    site_cpu_us: float  # a page: what the site took for it
    servers_cpu_us: float  # a page: likewise Kafka and Redis, as far as they run, for everything they do
    disturbance: float  # the part of the time in which the crawler's cores worked for others
    connections: int
    latencies: tuple[float, float] | None  # p50 and p99 of seconds from page served to record acknowledged
    series: tuple[Stretch, ...] = ()  # of a heat that has its minutes


def reckoned(
    readings: Sequence[Reading],
    total: int,
    last_served: float,
    connections: int,
    latencies: tuple[float, float] | None,
) -> Figures:
    """Raises ValueError when the pages were over too soon."""

    def at(part: float) -> Reading:
        return next(reading for reading in readings if reading.served >= max(1, total * part))

    warm, end = at(WARM_PART), readings[-1]
    if warm.served == total:
        raise ValueError(f"{total} pages are over before they can be measured; take more of them (--pages)")
    pages = total - warm.served
    return Figures(
        cpu_us=_cpu_us(warm, end),
        early_cpu_us=_cpu_us(warm, at(WARM_PART + 0.1)),
        late_cpu_us=_cpu_us(at(0.9), end),
        pages_per_second=pages / max(last_served - warm.at, 1e-6),
        early_bytes=at(0.1).resident_bytes,
        late_bytes=next((one.resident_bytes for one in reversed(readings) if one.resident_bytes), 0),
        peak_bytes=max(reading.peak_bytes for reading in readings),
        site_cpu_us=(end.site_cpu_seconds - warm.site_cpu_seconds) / pages * 1e6,
        servers_cpu_us=(end.servers_cpu_seconds - warm.servers_cpu_seconds) / pages * 1e6,
        disturbance=max(0.0, _others(warm, end)) / max(end.at - warm.at, 1e-6),
        connections=connections,
        latencies=latencies,
        series=tuple(stretches(readings)),
    )


def _cpu_us(first: Reading, last: Reading) -> float:
    pages = last.served - first.served
    return (last.cpu_seconds - first.cpu_seconds) / pages * 1e6 if pages else 0.0


def _others(first: Reading, last: Reading) -> float:
    return (last.core_seconds - first.core_seconds) - (last.cpu_seconds - first.cpu_seconds)
