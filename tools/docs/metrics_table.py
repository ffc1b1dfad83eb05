"""Writes the table of metrics into docs/observability.md, from the catalogue.

python -m tools.docs.metrics_table
"""

from __future__ import annotations

from pathlib import Path

from site_spider.observe.metrics.catalogue import METRICS, Metric

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "observability.md"
BEGIN = "<!-- metrics: written by `python -m tools.docs.metrics_table` -->"
END = "<!-- end of metrics -->"


def updated(text: str) -> str:
    """The document with the table between its markers. Raises ValueError when a marker is missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{DOCUMENT} needs the markers {BEGIN!r} and {END!r}")
    return f"{before}{begin}\n\n{table()}\n\n{end}{after}"


def table() -> str:
    """A row for each metric, as Markdown: its samples tell counters, and its meaning histograms."""
    rows = [f"| `{_shown(metric)}` | {metric.meaning}{_kind(metric)} |" for metric in METRICS]
    return "\n".join(["| metric | meaning |", "|---|---|", *rows])


def _shown(metric: Metric) -> str:
    total = "_total" if metric.kind == "counter" else ""
    labels = f"{{{', '.join(metric.labels)}}}" if metric.labels else ""
    return f"{metric.family}{total}{labels}"


def _kind(metric: Metric) -> str:
    return " (histogram)" if metric.kind == "histogram" else ""


if __name__ == "__main__":
    DOCUMENT.write_text(updated(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
