"""Finds, in the source, where private parts of Scrapy and Twisted are used.

Three things are searched for in each module:

- a private name that is imported from Scrapy or Twisted;
- in a class that derives from one of theirs: a private attribute of `self`, `cls` or `super()`, or a
  private method, that a base class has as well;
- a private attribute of any other object, also by `getattr` and `setattr`, that no class of the module has.

Two things are not seen: a computed name (`getattr(x, name)`), and a private attribute of another object that
a class of the same module happens to have, too.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Iterator
from functools import cache
from types import ModuleType

import site_spider

THEIRS = ("scrapy", "twisted")
EXEMPT = "site_spider.adapters"  # import neither, as import-linter holds
STANDARD = {"_replace", "_asdict", "_exit", "_current_frames"}  # of Python's own library


def modules() -> Iterator[ModuleType]:
    """The modules that are searched, imported."""
    for found in pkgutil.walk_packages(site_spider.__path__, "site_spider."):
        if not found.name.startswith(EXEMPT):
            yield importlib.import_module(found.name)


def private(name: str) -> bool:
    """Whether a name is private, and not one of Python's own special names."""
    return name.startswith("_") and not name.endswith("__") and name != "_"


def is_theirs(name: str | None) -> bool:
    """Whether a module belongs to Scrapy or Twisted."""
    return (name or "").partition(".")[0] in THEIRS


def uses(module: ModuleType) -> set[str]:
    """What a module uses of their private parts, by name."""
    tree = ast.parse(inspect.getsource(module))
    inherited = _inherited(module, tree)
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    ours = set().union(*map(_private_names, classes)) - inherited
    return _imported(tree) | inherited | (_of_others(tree) - ours)


def _imported(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and is_theirs(node.module):
            found |= {name for name in (node.module or "").split(".") if private(name)}
            found |= {alias.name for alias in node.names if private(alias.name)}
        elif isinstance(node, ast.Import):
            names = [name for alias in node.names if is_theirs(alias.name) for name in alias.name.split(".")]
            found |= {name for name in names if private(name)}
    return found


def _inherited(module: ModuleType, tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in tree.body:
        kind = getattr(module, node.name, None) if isinstance(node, ast.ClassDef) else None
        bases = [base for base in getattr(kind, "__mro__", ()) if is_theirs(base.__module__)]
        found |= _private_names(node) & set().union(*map(_their_names, bases))
    return found


@cache
def _their_names(kind: type) -> frozenset[str]:
    return _private_names(ast.parse(textwrap.dedent(inspect.getsource(kind))))


def _private_names(tree: ast.AST) -> frozenset[str]:
    """What a class defines, or touches of itself, under private names."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_itself(node.value):
            names.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            targets = [each for line in node.body if isinstance(line, ast.Assign) for each in line.targets]
            names |= {each.id for each in targets if isinstance(each, ast.Name)}
    return frozenset(filter(private, names))


def _is_itself(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _of_others(tree: ast.Module) -> set[str]:
    touched = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and private(node.attr) and not _is_itself(node.value)
    }
    named = {
        argument.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id in ("getattr", "setattr", "hasattr", "delattr")
        for argument in node.args[1:2]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str) and private(argument.value)
    }
    return (touched | named) - STANDARD
