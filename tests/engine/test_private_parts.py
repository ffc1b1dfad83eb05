"""Private parts of Scrapy and Twisted are used in engine/ only, and each use there is documented.

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
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from scrapy.exceptions import NotConfigured
from scrapy.extensions.remote_control import RemoteControl
from scrapy.utils.test import get_crawler

import site_spider
from site_spider.engine import scrapy_parts
from site_spider.engine.scrapy_parts import LateRemoteControl

ROOT = Path(__file__).resolve().parents[2]
THEIRS = ("scrapy", "twisted")
EXEMPT = "site_spider.adapters"  # import neither, as import-linter holds
STANDARD = {"_replace", "_asdict", "_exit", "_current_frames"}  # of Python's own library


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(site_spider.__path__, "site_spider."):
        if not found.name.startswith(EXEMPT):
            yield importlib.import_module(found.name)


def private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name != "_"


def is_theirs(name: str | None) -> bool:
    return (name or "").partition(".")[0] in THEIRS


def uses(module: ModuleType) -> set[str]:
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


MODULES = {module.__name__: module for module in modules()}
ENGINE = {name: module for name, module in MODULES.items() if name.startswith("site_spider.engine")}


@pytest.mark.parametrize("name", sorted(MODULES.keys() - ENGINE.keys()))
def test_no_private_part_is_used_outside_the_engine_folder(name: str) -> None:
    assert uses(MODULES[name]) == set()


@pytest.mark.parametrize(
    "source",
    [
        "from twisted.internet._resolver import GAIResolver",
        "from scrapy.exceptions import _InvalidOutput",
        "def f(crawler):\n    return crawler._engine",
        "def f(engine):\n    return getattr(engine, '_slot')",
        "from scrapy.dupefilters import RFPDupeFilter\nclass A(RFPDupeFilter):\n"
        "    def f(self):\n        return self._fingerprints",
        "from scrapy.downloadermiddlewares.retry import RetryMiddleware\nclass A(RetryMiddleware):\n"
        "    def _retry(self, request, reason):\n        return None",
    ],
)
def test_the_search_finds(source: str, tmp_path: Path) -> None:
    file = tmp_path / "module_with_a_use.py"
    file.write_text(source, encoding="utf-8")
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    exec(compile(source, str(file), "exec"), vars(module))
    assert uses(module) != set()


def test_every_use_is_documented() -> None:
    text = (ROOT / "docs" / "scrapy-internals.md").read_text(encoding="utf-8")
    described = {
        name.rpartition(".")[2]
        for row in re.findall(r"^- (.*?):\s+`tests/", text, re.MULTILINE | re.DOTALL)
        for name in re.findall(r"`([\w.]+)`", row)
    }
    used = set().union(*map(uses, ENGINE.values()))
    assert used - described == set()
    assert {name for name in described if name.startswith("_")} - used == set()


# --- loading ---------------------------------------------------------------------------------------------


def test_what_a_hint_says_to_install_is_what_the_extra_has() -> None:
    """By the names of the packages: one of the name of this project on an index would not be ours."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    hints = scrapy_parts._INSTALLS
    for name, said in {"redis": hints["redis"], "hbase": hints["happybase"]}.items():
        assert re.findall(r"'([^']+)'", said) == extras[name]


# --- Scrapy's RemoteControl costs a start nothing where it is off ----------------------------------------

LOAD_ALL = """
import sys
from scrapy.utils.misc import load_object
from scrapy.utils.conf import build_component_list
from scrapy.settings import Settings
settings = Settings()
settings.setmodule("site_spider.settings")
names = build_component_list(settings.getwithbase("EXTENSIONS"))
loaded = [load_object(name).__name__ for name in names]
print(loaded.count("LateRemoteControl"), "aiohttp.web" in sys.modules)
"""


def test_what_it_needs_is_not_imported_where_it_is_off() -> None:
    run = subprocess.run([sys.executable, "-c", LOAD_ALL], capture_output=True, text=True, check=True)
    assert run.stdout == "1 False\n"


def test_the_setting_switches_it_on() -> None:
    settings = {"TWISTED_REACTOR_ENABLED": False}
    on = get_crawler(settings_dict=settings | {"REMOTE_CONTROL_ENABLED": True})
    assert isinstance(LateRemoteControl.from_crawler(on), RemoteControl)
    with pytest.raises(NotConfigured):
        LateRemoteControl.from_crawler(get_crawler(settings_dict=settings | {"REMOTE_CONTROL_ENABLED": False}))
