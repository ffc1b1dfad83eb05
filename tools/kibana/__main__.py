"""Write resources/kibana/site_spider.ndjson and the table of panels: python -m tools.kibana."""

from __future__ import annotations

from pathlib import Path

from tools.kibana.description import read
from tools.kibana.objects import exported
from tools.kibana.table import PAGE, with_table

FILE = Path("resources/kibana/site_spider.ndjson")


def main() -> None:
    """Both, from the description."""
    description = read()
    FILE.write_text(exported(description), encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), description), encoding="utf-8")


if __name__ == "__main__":
    main()
