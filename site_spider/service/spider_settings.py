"""The custom_settings of a spider, over the parts of this project.

Scrapy takes a dict of custom_settings in the place of the one that was there: a spider with a pipeline of its
own would have none that writes results, and one with a middleware of its own no retries.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scrapy.settings import BaseSettings

_NAME = "custom_settings"
MERGED = ("ITEM_PIPELINES", "DOWNLOADER_MIDDLEWARES", "SPIDER_MIDDLEWARES", "EXTENSIONS", "DOWNLOAD_HANDLERS")


def custom_settings_of_file(path: Path) -> dict[str, Any] | None:
    """The custom_settings of a spider as its file says them, without the 0.2 s of CPU that loading it takes.

    None where only Python can tell: they are no literals, or several spiders have some.
    """
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
        [value] = [
            node.value
            for node in nodes
            if isinstance(node, ast.AnnAssign | ast.Assign) and _NAME in map(_name, _targets(node))
        ]
        found = None if value is None else ast.literal_eval(value)
    except (OSError, SyntaxError, ValueError, TypeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _targets(node: ast.AnnAssign | ast.Assign) -> list[ast.expr]:
    return [node.target] if isinstance(node, ast.AnnAssign) else node.targets


def _name(target: ast.expr) -> str:
    return (
        target.id
        if isinstance(target, ast.Name)
        else target.attr
        if isinstance(target, ast.Attribute)
        else ""
    )


def apply_custom_settings(settings: BaseSettings, custom: Mapping[str, Any]) -> None:
    """Set them; dicts of components add to those that are there, and None takes one out."""
    merged = {
        name: {**settings.getdict(name), **custom[name]}
        for name in MERGED
        if isinstance(custom.get(name), Mapping)
    }
    settings.setdict({**custom, **merged}, priority="spider")
