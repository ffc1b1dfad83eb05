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
from tools.race.workload import Workload

Found = Sequence[Figures]  # of one contestant and one workload, a run each
Results = Mapping[tuple[str, str], Found]  # by the names of workload and contestant


def _middle(name: str, unit: float = 1.0) -> Callable[[Found], str]:
    return lambda found: f"{median(getattr(one, name) for one in found) / unit:,.0f}"


def _spread(name: str) -> Callable[[Found], str]:
    def cell(found: Found) -> str:
        values = [getattr(one, name) for one in found]
        return f"{min(values):,.0f}-{max(values):,.0f}"

    return cell


_COLUMNS = {
    "CPU µs/page": _middle("cpu_us"),
    "cpu min-max": _spread("cpu_us"),
    "x stock": None,
    "pages/s": _middle("pages_per_second"),
    "min-max": _spread("pages_per_second"),
    "MB": _middle("peak_bytes", 1e6),
}


def lines(workloads: Sequence[Workload], results: Results) -> Iterator[str]:
    rows = []
    for workload in workloads:
        base = results.get((workload.key, BASE))
        for name, kind in CONTESTANTS.items():
            if found := results.get((workload.key, name)):
                ratio = f"{_cpu(base) / _cpu(found):.2f}" if base else "-"
                cells = [cell(found) if cell else ratio for cell in _COLUMNS.values()]
                rows.append([workload.name, kind.name, *cells, kind.writes])
    figures = [Column(title, right=True) for title in _COLUMNS]
    yield from render([Column("WORKLOAD"), Column("CRAWLER"), *figures, Column("WRITES")], rows)


def _cpu(found: Found) -> float:
    return median(one.cpu_us for one in found)


def notes(workloads: Sequence[Workload], results: Results, *, are_apart: bool = True) -> Iterator[str]:
    """How far site, servers and others on the machine have held the crawlers up."""
    for workload in workloads:
        by_name = {name: found for name in CONTESTANTS if (found := results.get((workload.key, name)))}
        if every := [one for found in by_name.values() for one in found]:
            least = min(one.site_cpu_us for one in every)
            most = max(one.site_cpu_us * one.pages_per_second for one in every) / 1e4
            yield (
                f"{workload.key}: the site takes {least:,.0f} µs a page, "
                f"so it can serve {1e6 / least:,.0f} a second; it was busy at most {most:.0f} % of the time"
            )
        for kind, found in ((CONTESTANTS[name], found) for name, found in by_name.items()):
            if kind.needs_kafka:
                cost = median(one.servers_cpu_us for one in found)
                yield f"{workload.key}: for {kind.name} the servers took {cost:,.0f} µs of CPU a page"
    disturbances = [one.disturbance for figures in results.values() for one in figures]
    if disturbances and are_apart:
        yield (
            f"the crawler's core worked for others {median(disturbances):.0%} of the time, "
            f"{max(disturbances):.0%} in the worst run; from some 5 % on take the table as a hint and repeat "
            "it on a quiet machine"
        )


def document(workloads: Sequence[Workload], results: Results, told: Sequence[str]) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "notes": list(told),
        "workloads": {workload.key: asdict(workload) for workload in workloads},
        "runs": [
            {"workload": workload, "crawler": name, **asdict(figures)}
            for (workload, name), found in results.items()
            for figures in found
        ],
    }
