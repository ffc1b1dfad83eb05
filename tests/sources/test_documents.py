"""The examples of docs/sources.md do what is said there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from site_spider.sources.extraction import SourcePage, extract
from site_spider.sources.library import parse_source
from site_spider.sources.model import ItemField, ItemRule, LinkRule, Match, Pagination, Requests, Source, ValueStep
from tests.commands.project import ROOT

TEXT = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    return _BLOCK.findall(TEXT)


def items(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_every_example_is_one_that_works() -> None:
    """Sources; and pages with the items found in them."""
    kinds = [kind for kind, _ in blocks()]
    assert kinds == ["yaml", "html", "json", "yaml", "json", "json", "yaml"]
    texts = [text for _, text in blocks()]
    shop, api, lists = (parse_source(texts[n].encode(), Path("shop.yaml")) for n in (0, 3, 6))
    assert extract(shop, SourcePage("https://shop.example/product/7", texts[1])).items == items(texts[2])
    found = extract(api, SourcePage("https://api.shop.example/v1/products", texts[4]))
    assert found.items == items(texts[5])
    assert [link.url for link in found.links] == ["https://api.shop.example/v1/products?page=2"]
    assert lists.follow is not None
    assert lists.follow[0].to == "details"


def test_every_key_is_named() -> None:
    models = Source, Match, Requests, LinkRule, Pagination, ItemRule, ItemField, ValueStep
    keys = {field.alias or name for one in models for name, field in one.model_fields.items()}
    prose = _BLOCK.sub("", TEXT)
    words = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`]+)`", prose))))
    assert keys - words == set()
