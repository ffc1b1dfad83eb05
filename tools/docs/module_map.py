"""Writes the map of folders into docs/architecture.md.

    python -m tools.docs.module_map

Folders come in the order of import-linter's layers in pyproject.toml. The map shows the first sentence of a
folder's docstring; the docstring of a module stands in the module alone.
"""

from __future__ import annotations

import ast
import textwrap
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "site_spider"
DOCUMENT = ROOT / "docs" / "architecture.md"
BEGIN = "<!-- modules: written by `python -m tools.docs.module_map` -->"
END = "<!-- end of modules -->"


def updated(text: str) -> str:
    """The document with the map between its markers. Raises ValueError when a marker is missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{DOCUMENT} needs the markers {BEGIN!r} and {END!r}")
    return f"{before}{begin}\n\n{module_map()}\n{end}{after}"


def module_map() -> str:
    """The layers and all folders, as Markdown."""
    layers = " > ".join(layer.replace(" | ", ", ") for layer in _layers())
    folders = sorted((path.parent for path in PACKAGE.glob("*/__init__.py")), key=_place)
    head = ["Imports run down in this order:", "", *_wrapped(layers, "    "), ""]
    rows = [_wrapped(f"- **`{each.name}/`** {_first_sentence(each)}", "  ") for each in folders]
    return "\n".join([*head, *(line for row in rows for line in row), ""])


def _wrapped(text: str, indent: str) -> list[str]:
    first = "" if text.startswith("- ") else indent
    return textwrap.wrap(text, 120, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)


def _first_sentence(folder: Path) -> str:
    said = " ".join(_docstring(folder / "__init__.py").split())
    return said.partition(". ")[0].rstrip(".") + "."


def _docstring(path: Path) -> str:
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not said:
        raise ValueError(f"{path} has no docstring")
    return said


def _place(folder: Path) -> int:
    order = [part for layer in _layers() for part in layer.split(" | ")]
    return order.index(folder.name) if folder.name in order else len(order)


def _layers() -> list[str]:
    """From the top; those of one layer are separated by bars."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    return next(contract["layers"] for contract in contracts["contracts"] if contract["type"] == "layers")


if __name__ == "__main__":
    DOCUMENT.write_text(updated(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
