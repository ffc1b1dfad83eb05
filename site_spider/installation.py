"""What is installed: files that are no code, of a checkout or in the package, compiled modules, Scrapy's version."""

from __future__ import annotations

import atexit
import filecmp
import gc
import os
from collections.abc import Sequence
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

import scrapy

from site_spider.errors import ConfigError

_PACKAGE: Final = Path(__file__).resolve().parent
_TEMPORARY: Final = Path("/tmp")  # noqa: S108 - what is put there is looked at
_FOLDERS: Final = (_PACKAGE / "_resources", _PACKAGE.parent / "resources")


def resource(name: str) -> Path:
    """The folder or file of this name, as `elasticsearch`; its place in the package when there is none."""
    return next((folder / name for folder in _FOLDERS if (folder / name).exists()), _FOLDERS[0] / name)


def temporary_folder() -> Path:
    """The usual one, also while the disk is full: `tempfile` takes the first that it can write to."""
    named = Path(os.environ.get("TMPDIR") or _TEMPORARY)
    return named if os.path.isdir(named) else _TEMPORARY  # noqa: PTH112 - raises nothing


@cache
def form() -> str:
    """How the package runs: hatch_build.py compiles modules."""
    compiled = sum(1 for _ in _PACKAGE.rglob("*" + EXTENSION_SUFFIXES[0]))
    return f"compiled ({compiled} modules)" if compiled else "pure Python"


def left_out() -> str:
    """Which sources of the checkout are newer than its compiled copy, if that runs, and what to do; else empty."""
    folder = _PACKAGE.parent.parent
    checkout = folder.parent / _PACKAGE.name
    if folder.name != ".compiled" or not checkout.is_dir():
        return ""
    names = {str(path.relative_to(top)) for top in (_PACKAGE, checkout) for path in top.rglob("*.py")}
    _, changed, added = filecmp.cmpfiles(_PACKAGE, checkout, names)
    if not (found := sorted(changed + added)):
        return ""
    return (
        f"{_PACKAGE.parent} runs, which is older than {found[0]} of {checkout} (changed files: {len(found)}): run "
        "hatch_build.py, and put the folder that it prints into PYTHONPATH"
    )


# --- commands: which modules Scrapy has to load for the command line at hand -----------------------------

_COMMANDS: Final = "site_spider.commands"


def module_of(arguments: Sequence[str]) -> str:
    """Where `scrapy` or `python -m scrapy` is to look for its command: in its own module or in all."""
    name = next((word for word in arguments[1:] if not word.startswith("-")), "")
    is_ours = name.isidentifier() and (_PACKAGE / "commands" / f"{name}.py").is_file()
    is_scrapy = bool(arguments) and Path(arguments[0].removesuffix("/__main__.py")).name == "scrapy"
    if not (is_ours and is_scrapy):
        return _COMMANDS
    atexit.register(gc.freeze)  # or Python's collector goes through all that is left: 0.2 s of CPU
    return f"{_COMMANDS}.{name}"


# --- scrapy version: the one version of Scrapy that site_spider works with -------------------------------

NEEDED = "2.19.0"  # as in requirements.txt; tests/test_scrapy_version.py compares them


def check() -> None:
    """Raise ConfigError when another one is installed."""
    if scrapy.__version__ != NEEDED:
        raise ConfigError(
            f"Scrapy {scrapy.__version__} is installed, but site_spider works with Scrapy {NEEDED} only; "
            "install it with: pip install -r requirements.txt"
        )
