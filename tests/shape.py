"""How the code is built: modules, classes, functions, attributes set from outside.

The lines of a function go from `def` to its last.

An attribute is set from outside unless its object is `self`, was made by the function that sets it, or is a
plain name while a class of the same module has such an attribute: a module may change its own records, but
not a part that another object holds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_BY_NAME = frozenset(("setattr", "delattr", "__setattr__", "__delattr__"))
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_OWN = frozenset(("self", "cls"))


class Module(NamedTuple):
    """One file of the code."""

    name: str  # below the folder, such as `ledger/ledger.py`
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return self.text.count("\n")


class Function(NamedTuple):
    module: str
    first_line: int
    name: str
    lines: int


class Setting(NamedTuple):
    """An attribute of another object that is set."""

    module: str
    line: int
    object: str  # as the code writes it, such as `self._engine.slot`
    attribute: str


def modules(folder: Path) -> list[Module]:
    files = sorted(folder.rglob("*.py"))
    texts = [(file, file.read_text(encoding="utf-8")) for file in files]
    return [Module(file.relative_to(folder).as_posix(), text, ast.parse(text)) for file, text in texts]


def classes(module: Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))


def functions(module: Module) -> Iterator[Function]:
    """Nested ones included, each with its own lines."""
    for node in ast.walk(module.tree):
        if isinstance(node, _FUNCTION):
            assert node.end_lineno is not None
            yield Function(module.name, node.lineno, node.name, node.end_lineno - node.lineno + 1)


def share(sizes: Iterable[int], part: float) -> int:
    """The size that this part of them does not exceed."""
    ordered = sorted(sizes)
    return ordered[max(0, -int(-part * len(ordered)) - 1)]


def set_from_outside(module: Module) -> Iterator[Setting]:
    """What is set on objects that are not the module's own: see the head of this file."""
    nodes = [*ast.walk(module.tree)]
    own = {*_attributes(nodes)}
    for scope in [module.tree, *(node for node in nodes if isinstance(node, _FUNCTION))]:
        below = [*_below(scope)]
        free = {"self", "cls", *_made_in(below)}
        for line, target, attribute in _set_in(below):
            if not (isinstance(target, ast.Name) and (target.id in free or attribute in own)):
                yield Setting(module.name, line, ast.unparse(target), attribute)


def _below(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope without those of the functions in it."""
    waiting = [scope]
    for node in waiting:
        found = [one for one in ast.iter_child_nodes(node) if not isinstance(one, _FUNCTION)]
        waiting += found
        yield from found


def _set_in(nodes: list[ast.AST]) -> Iterator[tuple[int, ast.expr, str]]:
    """Line, object and attribute of each assignment, whatever form it has."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.lineno, node.value, node.attr
        elif isinstance(node, ast.Call) and len(node.args) > 1:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in _BY_NAME:
                yield node.lineno, node.args[0], ast.unparse(node.args[1])


def _made_in(nodes: list[ast.AST]) -> Iterator[str]:
    """Names to which a scope assigns a new object: of a class, or what Scrapy's own from_crawler made."""
    for node in nodes:
        if isinstance(node, ast.Assign) and _is_making(node.value):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _is_making(value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return False
    name = ast.unparse(value.func)
    return name == "cls" or name.startswith("super().") or name.split(".")[-1].lstrip("_")[:1].isupper()


def _attributes(nodes: list[ast.AST]) -> Iterator[str]:
    """The fields of classes: annotated in them, or set by their methods."""
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            fields = (each.target for each in node.body if isinstance(each, ast.AnnAssign))
            yield from (field.id for field in fields if isinstance(field, ast.Name))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            yield node.attr


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"
