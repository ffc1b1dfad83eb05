"""The table of panels in docs/observability.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tools.kibana.description import Description, Panel

PAGE = Path("docs/observability.md")
BEGIN, END = "<!-- panels: written by python -m tools.kibana -->", "<!-- end of panels -->"


def with_table(page: str, description: Description) -> str:
    """The page with the table as it should be."""
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{table(description)}{END}{after}"


def table(description: Description) -> str:
    """A row for each panel."""
    rows = ["| dashboard | panel | meaning | unit | from |", "|---|---|---|---|---|"]
    for dashboard in description.dashboards.values():
        name = dashboard.title.rpartition(" ")[2]
        rows += [
            f"| {name} | {panel.title} | {panel.about} | {panel.unit} | {', '.join(_fields(panel))} |"
            for panel in dashboard.panels
        ]
    return "".join(f"{row}\n" for row in rows)


def _fields(panel: Panel) -> Iterator[str]:
    fields = [value.field for value in panel.values] + [group.field for group in panel.by]
    named = dict.fromkeys([*(field for field in fields if field), *panel.columns])
    yield from (f"`{field}`" for field in named)
    if not named:
        yield f"{panel.of}, counted"
