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
Cell = Callable[[Found], str]


def _middle(name: str, unit: float = 1.0) -> Cell:
    return lambda found: f"{median(getattr(one, name) for one in found) / unit:,.0f}"


def _spread(name: str) -> Cell:
    def cell(found: Found) -> str:
        values = [getattr(one, name) for one in found]
        return f"{min(values):,.0f}-{max(values):,.0f}"

    return cell


def _latency(place: int) -> Cell:
    def cell(found: Found) -> str:
        taken = [one.latencies[place] for one in found if one.latencies]
        return f"{median(taken) * 1000:,.0f}" if taken else "-"

    return cell


_MEGABYTE = 1e6
_RATIO = "x stock"
_RACE: Mapping[str, Cell | None] = {
    "CPU µs/page": _middle("cpu_us"),
    "cpu min-max": _spread("cpu_us"),
    _RATIO: None,
    "pages/s": _middle("pages_per_second"),
    "min-max": _spread("pages_per_second"),
    "MB": _middle("peak_bytes", _MEGABYTE),
    "ack p50 ms": _latency(0),
    "p99 ms": _latency(1),
}
_FLAT: Mapping[str, Cell | None] = {
    "CPU µs/page": _middle("cpu_us"),
    "first 10%": _middle("early_cpu_us"),
    "last 10%": _middle("late_cpu_us"),
    "pages/s": _middle("pages_per_second"),
    "connections": _middle("connections"),
    "MB after 10%": _middle("early_bytes", _MEGABYTE),
    "in the end": _middle("late_bytes", _MEGABYTE),
    "peak": _middle("peak_bytes", _MEGABYTE),
}


def lines(workloads: Sequence[Workload], results: Results, *, is_flat: bool = False) -> Iterator[str]:
    """The one table."""
    columns = _FLAT if is_flat else _RACE
    head = ["PAGES", "HOSTS", "CRAWLER"] if is_flat else ["WORKLOAD", "CRAWLER"]
    rows = []
    for workload in workloads:
        base = results.get((workload.key, BASE))
        for name, kind in CONTESTANTS.items():
            if not (found := results.get((workload.key, name))):
                continue
            ratio = f"{_cpu(base) / _cpu(found):.2f}" if base else "-"
            first = [f"{workload.total:,}", f"{workload.hosts:,}"] if is_flat else [workload.name]
            cells = [cell(found) if cell else ratio for cell in columns.values()]
            rows.append([*first, kind.name, *cells, *([] if is_flat else [kind.writes])])
    told = [*map(Column, head), *(Column(title, right=True) for title in columns)]
    yield from render([*told, *([] if is_flat else [Column("WRITES")])], rows)


def _cpu(found: Found) -> float:
    return median(one.cpu_us for one in found)


def notes(workloads: Sequence[Workload], results: Results, *, are_apart: bool = True) -> Iterator[str]:
    """How far site, servers and others on the machine have held the crawlers up."""
    for workload in workloads:
        by_name = {name: found for name in CONTESTANTS if (found := results.get((workload.key, name)))}
        every = [one for found in by_name.values() for one in found]
        if every:
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
    """Every figure of every run."""
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
