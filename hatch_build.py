"""Compiles the hot modules to C with mypyc: into a wheel, as hatchling's build hook, or into a folder.

    HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 pip wheel --no-deps .   # without the variable, a pure wheel
    .venv/bin/python hatch_build.py                          # into .compiled/<hash>; prints the folder

pyproject.toml lists the modules; decision 0026 says why these. Nothing is written beside the sources, where a
compiled module would go on hiding its source after an edit. docs/performance.md has the rest.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor  # noqa: TID251  # no part of a crawl
from pathlib import Path
from typing import Any

PACKAGE = "site_spider"
ROOT = Path(__file__).resolve().parent
FOLDER = ".compiled"
_KEPT = 3  # folders of older sources: a process may still run from one
_MYPY = ("--config-file=", "--no-site-packages", "--ignore-missing-imports", "--follow-imports=silent")
_REMEDY = "on Debian: apt-get install build-essential python3-dev"

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # only a wheel needs it
    BuildHookInterface = object


class CannotCompile(Exception):
    """Says what is missing, and what to do."""


class CompiledModules(BuildHookInterface):  # type: ignore[misc]
    """Adds extension modules to a wheel, beside their sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """As hatchling asks."""
        self._folder = tempfile.mkdtemp(prefix="site_spider-build-")
        folder = Path(self._folder)
        compile_into(folder, Path(self.root))
        for path in _extensions(folder):
            build_data["force_include"][str(path)] = str(path.relative_to(folder))
        build_data.update(pure_python=False, infer_tag=True)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """As hatchling asks."""
        shutil.rmtree(self._folder)


def modules(root: Path = ROOT) -> list[str]:
    """Paths of those that are compiled, from pyproject.toml."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[str] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["modules"]
    return [f"{PACKAGE}/{name}.py" for name in found]


def compile_into(folder: Path, root: Path = ROOT) -> None:
    """Copy the package into an empty folder, with compiled modules beside sources. Raises CannotCompile."""
    _check_compiler()
    try:
        from mypyc.build import mypycify  # noqa: PLC0415  # only here, where it is needed
    except ImportError as error:
        raise CannotCompile(f"{error}; pip install -r requirements-build.txt") from None

    shutil.copytree(root / PACKAGE, folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    with contextlib.chdir(folder), contextlib.redirect_stdout(sys.stderr):
        found: list[Any] = mypycify(
            [*_MYPY, *modules(root)],
            opt_level=_optimization(),
            debug_level="0",
            multi_file=True,  # so that all cores take part
            group_name=PACKAGE,
            target_dir="build",
        )
        _build(found)
        shutil.rmtree("build")


def _optimization() -> str:
    return os.environ.get("COMPILE_LEVEL", "2")  # 0 takes a third of the time; for tests


def _check_compiler() -> None:
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC"))[0]
    if shutil.which(compiler) is None:
        raise CannotCompile(f"there is no C compiler: '{compiler}' is not on the PATH; {_REMEDY}")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        raise CannotCompile(f"Python's headers are missing: there is no {header}; {_REMEDY}")


def _build(extensions: list[Any]) -> None:
    from setuptools import Distribution  # noqa: PLC0415
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    class OnAllCores(build_ext):
        def build_extension(self, ext: Any) -> None:
            def compiled(source: str) -> list[str]:
                return self.compiler.compile(
                    [source],
                    output_dir=self.build_temp,
                    include_dirs=ext.include_dirs,
                    extra_postargs=[*ext.extra_compile_args, "-Wno-error"],  # of compilers to come
                    depends=ext.depends,
                )

            with ThreadPoolExecutor(os.cpu_count()) as threads:
                for objects in threads.map(compiled, ext.sources):
                    ext.extra_objects.extend(objects)
            ext.sources = []
            super().build_extension(ext)

    command = OnAllCores(Distribution({"name": PACKAGE, "ext_modules": extensions}))
    command.build_lib, command.build_temp = ".", "build"
    command.ensure_finalized()
    command.run()


def _extensions(folder: Path) -> Iterator[Path]:
    return folder.rglob("*" + sysconfig.get_config_var("EXT_SUFFIX"))


def sources_hash(root: Path = ROOT) -> str:
    """Changes with every source, with how it is compiled, and with the Python that it is compiled for."""
    digest = hashlib.sha256(f"{sys.version} {sysconfig.get_platform()} {_optimization()}".encode())
    files = ("pyproject.toml", "hatch_build.py", "requirements-build.txt")
    for path in (*(root / name for name in files), *sorted((root / PACKAGE).rglob("*.py"))):
        digest.update(f"\n{path.relative_to(root)} ".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def compiled_folder(root: Path = ROOT) -> Path:
    """To be put first on Python's path. Compiles what has changed since; others who ask meanwhile wait."""
    parent = root / FOLDER
    folder = parent / sources_hash(root)
    if folder.exists():
        return folder
    parent.mkdir(exist_ok=True)
    with (parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel lets it go when its holder dies
        if not folder.exists():
            _take_place(folder, root)
    return folder


def _take_place(folder: Path, root: Path) -> None:
    """All at once, when it is whole."""
    for left in folder.parent.glob("*.new"):  # of a process that died
        shutil.rmtree(left)
    unfinished = folder.with_suffix(".new")
    unfinished.mkdir()
    try:
        compile_into(unfinished, root)
        (unfinished / "resources").symlink_to(root / "resources")
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished)
        raise
    known = sorted(folder.parent.glob("*/"), key=lambda path: path.stat().st_mtime)
    for old in known[: -_KEPT - 1]:
        shutil.rmtree(old)


def main() -> int:
    """Compile, and return the exit code."""
    try:
        print(compiled_folder())
    except CannotCompile as error:
        print(f"hatch_build.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
