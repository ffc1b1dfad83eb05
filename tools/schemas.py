"""Writes resources/schemas/source.schema.json anew: python -m tools.schemas."""

from __future__ import annotations

import json
from pathlib import Path

from site_spider.sources.model import schema

FILE = Path(__file__).resolve().parents[1] / "resources" / "schemas" / "source.schema.json"


def text() -> str:
    """What the file holds."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
