"""Write resources/kibana/site_spider.ndjson from its description: python -m tools.kibana."""

from __future__ import annotations

from pathlib import Path

from tools.kibana.description import read
from tools.kibana.objects import exported

FILE = Path("resources/kibana/site_spider.ndjson")


def main() -> None:
    """For an import."""
    FILE.write_text(exported(read()), encoding="utf-8")


if __name__ == "__main__":
    main()
