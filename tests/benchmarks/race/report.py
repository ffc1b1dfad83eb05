"""The table, and the same as JSON."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from site_spider.core.table import Column, render
from tests.benchmarks.race.grid import BASE, CONTESTANTS
from tests.benchmarks.race.heat import Figures
from tests.benchmarks.race.workload import Workload

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


def lines(workloads: Sequence[Workload], results: Results) -> Iterator[str]:
    """The one table."""
    rows = []
    for workload in workloads:
        base = results.get((workload.name, BASE))
        for name, entry in CONTESTANTS.items():
            if found := results.get((workload.name, name)):
                rows.append([workload.name, entry.kind.name, *_cells(found, base), entry.kind.writes])
    yield from render(COLUMNS, rows)


def _cells(found: Sequence[Figures], base: Sequence[Figures] | None) -> Iterator[str]:
    def middle(value: Callable[[Figures], float]) -> float:
        return median(map(value, found))

    def spread(value: Callable[[Figures], float]) -> str:
        values = [value(one) for one in found]
        return f"{min(values):,.0f}-{max(values):,.0f}"

    cpu = middle(lambda one: one.cpu_us)
    yield f"{cpu:,.0f}"
    yield spread(lambda one: one.cpu_us)
    yield f"{median(one.cpu_us for one in base) / cpu:.2f}" if base else "-"
    yield f"{middle(lambda one: one.pages_per_second):,.0f}"
    yield spread(lambda one: one.pages_per_second)
    yield f"{middle(lambda one: one.peak_bytes) / 1e6:,.0f}"
    for place in (0, 1):
        taken = [one.latencies[place] for one in found if one.latencies]
        yield f"{median(taken) * 1000:,.0f}" if taken else "-"


def document(workloads: Sequence[Workload], results: Results, notes: Sequence[str]) -> dict[str, Any]:
    """Every figure of every run."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "notes": list(notes),
        "workloads": {workload.name: asdict(workload) for workload in workloads},
        "runs": [
            {"workload": workload, "crawler": name, **asdict(figures)}
            for (workload, name), found in results.items()
            for figures in found
        ],
    }
