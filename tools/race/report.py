"""The table, and the same as JSON."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from site_spider.commands.output import Column, render
from tools.race.contestants import BASE, CONTESTANTS
from tools.race.heat import Figures
from tools.race.options import Mode
from tools.race.workload import Workload

Results = Mapping[tuple[str, str], Sequence[Figures]]  # by the names of workload and contestant

COLUMNS = (
    Column("WORKLOAD"),
    Column("CRAWLER"),
    Column("CPU µs/page", right=True),
    Column("min-max", right=True),
    Column("x stock", right=True),
    Column("pages/s", right=True),
    Column("min-max", right=True),
    Column("MB", right=True),
    Column("ack p50 ms", right=True),
    Column("p99 ms", right=True),
    Column("WRITES"),
)


FLAT_COLUMNS = (
    Column("PAGES", right=True),
    Column("HOSTS", right=True),
    Column("CRAWLER"),
    Column("CPU µs/page", right=True),
    Column("first 10%", right=True),
    Column("last 10%", right=True),
    Column("pages/s", right=True),
    Column("connections", right=True),
    Column("MB after 10%", right=True),
    Column("in the end", right=True),
    Column("peak", right=True),
)
MEGABYTE = 1e6


def lines(mode: Mode, workloads: Sequence[Workload], results: Results) -> Iterator[str]:
    """The one table."""
    rows = []
    for workload in workloads:
        base = results.get((workload.key, BASE))
        for name, entry in CONTESTANTS.items():
            if not (found := results.get((workload.key, name))):
                continue
            if mode is Mode.FLAT:
                rows.append([f"{workload.total:,}", f"{workload.hosts:,}", entry.kind.name, *_growth(found)])
            else:
                rows.append([workload.name, entry.kind.name, *_cells(found, base), entry.kind.writes])
    yield from render(FLAT_COLUMNS if mode is Mode.FLAT else COLUMNS, rows)


def _middle(found: Sequence[Figures], value: Callable[[Figures], float], unit: float = 1.0) -> str:
    return f"{median(map(value, found)) / unit:,.0f}"


def _spread(found: Sequence[Figures], value: Callable[[Figures], float]) -> str:
    values = [value(one) for one in found]
    return f"{min(values):,.0f}-{max(values):,.0f}"


def _cells(found: Sequence[Figures], base: Sequence[Figures] | None) -> Iterator[str]:
    yield _middle(found, lambda one: one.cpu_us)
    yield _spread(found, lambda one: one.cpu_us)
    yield f"{_cpu(base) / _cpu(found):.2f}" if base else "-"
    yield _middle(found, lambda one: one.pages_per_second)
    yield _spread(found, lambda one: one.pages_per_second)
    yield _middle(found, lambda one: one.peak_bytes, MEGABYTE)
    for place in (0, 1):
        taken = [one.latencies[place] for one in found if one.latencies]
        yield f"{median(taken) * 1000:,.0f}" if taken else "-"


def _cpu(found: Sequence[Figures]) -> float:
    return median(one.cpu_us for one in found)


def _growth(found: Sequence[Figures]) -> Iterator[str]:
    yield _middle(found, lambda one: one.cpu_us)
    yield _middle(found, lambda one: one.early_cpu_us)
    yield _middle(found, lambda one: one.late_cpu_us)
    yield _middle(found, lambda one: one.pages_per_second)
    yield _middle(found, lambda one: one.connections)
    yield _middle(found, lambda one: one.early_bytes, MEGABYTE)
    yield _middle(found, lambda one: one.late_bytes, MEGABYTE)
    yield _middle(found, lambda one: one.peak_bytes, MEGABYTE)


def capacities(workloads: Sequence[Workload], results: Results) -> Iterator[str]:
    """How far the site was from being what holds up the crawlers, a line a workload."""
    for workload in workloads:
        found = [one for name in CONTESTANTS for one in results.get((workload.key, name), ())]
        if found:
            least = min(one.site_cpu_us for one in found)
            most = max(one.site_cpu_us * one.pages_per_second for one in found) / 1e4
            yield (
                f"{workload.key}: the site takes {least:,.0f} µs a page, "
                f"so it can serve {1e6 / least:,.0f} a second; it was busy at most {most:.0f} % of the time"
            )


def servers(workloads: Sequence[Workload], results: Results) -> Iterator[str]:
    """What a page costs Kafka and the others, beside those who use them."""
    for workload in workloads:
        for name, entry in CONTESTANTS.items():
            if entry.servers and (found := results.get((workload.key, name))):
                cost = median(one.servers_cpu_us for one in found)
                yield f"{workload.key}: for {entry.kind.name} the servers took {cost:,.0f} µs of CPU a page"


def disturbances(results: Results) -> Iterator[str]:
    """Whether the figures can be relied on."""
    found = [one.disturbance for figures in results.values() for one in figures]
    if found:
        yield (
            f"the crawler's core worked for others {median(found):.0%} of the time, {max(found):.0%} in the "
            "worst run; from some 5 % on take the table as a hint and repeat it on a quiet machine"
        )


def document(workloads: Sequence[Workload], results: Results, notes: Sequence[str]) -> dict[str, Any]:
    """Every figure of every run."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "notes": list(notes),
        "workloads": {workload.key: asdict(workload) for workload in workloads},
        "runs": [
            {"workload": workload, "crawler": name, **asdict(figures)}
            for (workload, name), found in results.items()
            for figures in found
        ],
    }
