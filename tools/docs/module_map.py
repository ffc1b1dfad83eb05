"""Writes the map of modules into docs/architecture.md, from the docstrings of folders and modules.

    python -m tools.docs.module_map

Folders come in the order of import-linter's layers in pyproject.toml. The map shows the whole docstring of a
folder and the first paragraph of a module's.
"""

from __future__ import annotations

import ast
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
    """The layers, all folders and their modules, as Markdown."""
    top = _lines(PACKAGE)
    folders = sorted(_folders(), key=_place)
    layers = " > ".join(layer.replace(" | ", ", ") for layer in _layers())
    head = ["Imports run down in this order:", "", f"    {layers}", "", "At the top of `site_spider/`:", ""]
    return "\n".join([*head, *top, *(_section(folder) for folder in folders)])


def _section(folder: Path) -> str:
    name = folder.relative_to(PACKAGE).as_posix()
    said = " ".join(_docstring(folder / "__init__.py").split())
    return "\n".join([f"**`{name}/`**: {said}", *_lines(folder)])


def _lines(folder: Path) -> list[str]:
    modules = sorted(path for path in folder.glob("*.py") if path.stem != "__init__")
    said = {path.stem: _first_paragraph(path) for path in modules}
    of_scrapy = [name for name, text in said.items() if text.startswith(f"`scrapy {name}` of Scrapy:")]
    lines = [f"- `{name}`: {text}" for name, text in said.items() if name not in of_scrapy]
    if of_scrapy:
        names = ", ".join(f"`{name}`" for name in of_scrapy)
        lines.append(f"- {names}: Scrapy's own commands of these names.")
    return [*lines, ""]


def _first_paragraph(path: Path) -> str:
    return " ".join(_docstring(path).partition("\n\n")[0].split())


def _docstring(path: Path) -> str:
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not said:
        raise ValueError(f"{path} has no docstring")
    return said


def _folders() -> list[Path]:
    return [path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE]


def _place(folder: Path) -> tuple[int, str]:
    name = folder.relative_to(PACKAGE).as_posix()
    order = [part for layer in _layers() for part in layer.split(" | ")]
    first = name.partition("/")[0]
    return (order.index(first) if first in order else len(order), name)


def _layers() -> list[str]:
    """From the top; those of one layer are separated by bars."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    return next(contract["layers"] for contract in contracts["contracts"] if contract["type"] == "layers")


if __name__ == "__main__":
    DOCUMENT.write_text(updated(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
