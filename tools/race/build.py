"""Programs that are compiled: which compiler there is, and whether the program is as new as its sources."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which


class ToolchainMissing(RuntimeError):
    """No compiler: says where it was looked for and what to install."""


@dataclass(frozen=True)
class Toolchain:
    """A compiler; `{sources}` and `{folder}` in its arguments are those of a build."""

    name: str
    program: str
    place: str  # where its installer puts it, whether PATH has it or not; may begin with ~
    arguments: tuple[str, ...]
    remedy: str
    variables: Mapping[str, str] = field(default_factory=dict)

    def find(self, purpose: str) -> Path:
        """PATH comes first. Raises ToolchainMissing."""
        if found := which(self.program) or which(os.path.expanduser(self.place)):  # noqa: PTH111 # which raises without a home
            return Path(found)
        raise ToolchainMissing(
            f"{purpose} needs {self.name}, but {self.program} is neither in PATH nor at {self.place}: "
            f"{self.remedy}"
        )


@dataclass(frozen=True)
class Build:
    """One program: the folder of its sources, and the folder that has all that is made of them."""

    toolchain: Toolchain
    sources: Path
    folder: Path
    program: Path

    def is_current(self) -> bool:
        """Whether the program is there and made of the sources as they are."""
        return self.program.exists() and self._note.exists() and self._note.read_text() == self._digest()

    def run(self, compiler: Path, say: Callable[[str], None]) -> None:
        """Raises CalledProcessError. After a failure the program does not count as current."""
        say(f"building {self.program}: this can take minutes")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._note.unlink(missing_ok=True)
        digest = self._digest()
        places = {"sources": self.sources, "folder": self.folder}
        path = f"{compiler.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        subprocess.run(
            [str(compiler), *(argument.format_map(places) for argument in self.toolchain.arguments)],
            env=os.environ | {"PATH": path} | dict(self.toolchain.variables),
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
        )
        self._note.write_text(digest)

    @property
    def _note(self) -> Path:
        """What the program was made of."""
        return self.folder / "sources.sha256"

    def _digest(self) -> str:
        digest = hashlib.sha256(repr(self.toolchain.arguments).encode())
        for file in sorted(path for path in self.sources.rglob("*") if path.is_file()):
            name = file.relative_to(self.sources)
            if name.parts[0] != "target":  # what cargo leaves there when it is run by hand
                content = file.read_bytes()
                digest.update(f"{name} {len(content)}\n".encode() + content)
        return digest.hexdigest()


def bring_up_to_date(builds: Mapping[str, Build], say: Callable[[str], None]) -> None:
    """Builds, by the names of their contestants. No build begins while the compiler of another is missing."""
    stale = {name: build for name, build in builds.items() if not build.is_current()}
    compilers = {name: build.toolchain.find(f"--peers {name}") for name, build in stale.items()}
    for name, build in stale.items():
        build.run(compilers[name], say)
