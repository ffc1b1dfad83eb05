"""Writes the files of resources/schemas anew: python -m tools.schemas."""

from __future__ import annotations

import json
from pathlib import Path

from site_spider.sources.model import schema as source_schema
from site_spider.tasks.record import schema as task_schema
from tools.seed_schema import schema as seed_schema

FOLDER = Path(__file__).resolve().parents[1] / "resources" / "schemas"
FILES = {
    FOLDER / "seed.schema.json": seed_schema,
    FOLDER / "source.schema.json": source_schema,
    FOLDER / "task.schema.json": task_schema,
}


def text(file: Path) -> str:
    return json.dumps(FILES[file](), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for each in FILES:
        each.write_text(text(each), encoding="utf-8")
