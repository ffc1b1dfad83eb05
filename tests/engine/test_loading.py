"""Parts that settings name, and what they need."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from site_spider.engine import scrapy_parts

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def test_what_a_hint_says_to_install_is_what_the_extra_has() -> None:
    """By the names of the packages: one of the name of this project on an index would not be ours."""
    extras = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["optional-dependencies"]
    hints = scrapy_parts._INSTALLS
    for name, said in {"redis": hints["redis"], "hbase": hints["happybase"]}.items():
        assert re.findall(r"'([^']+)'", said) == extras[name]
