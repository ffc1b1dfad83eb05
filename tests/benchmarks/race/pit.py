"""What the contestants need: servers, and environments of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.benchmarks.race.grid import CONTESTANTS
from tests.benchmarks.race.options import Options
from tests.benchmarks.race.track import ROOT
from tests.chaos.servers import Server, start_all

ENVIRONMENTS = ROOT / ".servers" / "bench"


def equipped(stack: ExitStack, options: Options, say: Callable[[str], None]) -> None:
    """Start and install what the chosen ones need. The servers end with the stack."""
    entries = [CONTESTANTS[name] for name in options.peers]
    for entry in entries:
        if entry.requirements:
            environment(entry.requirements, say)
    servers = [
        Server(name, options.folder / f"servers-{name}")
        for name in sorted({name for entry in entries for name in entry.servers})
    ]
    if servers:
        say(f"starting {' and '.join(server.name for server in servers)}")
    for server in servers:
        stack.callback(server.end)
    start_all(servers)
    variables = {name: value for server in servers for name, value in server.variables().items()}
    for entry in entries:
        entry.kind.variables = variables


def environment(requirements: str, say: Callable[[str], None]) -> Path:
    """The Python of an environment with exactly this; made when it is missing or the file has changed."""
    wanted = (Path(__file__).parent / requirements).read_text()
    folder = ENVIRONMENTS / requirements.removesuffix(".txt")
    installed = folder / "installed.txt"
    python = folder / "bin" / "python"
    if not installed.exists() or installed.read_text() != wanted:
        say(f"making {folder}")
        _run(sys.executable, "-m", "venv", "--clear", str(folder))
        source = str(Path(__file__).parent / requirements)
        _run(str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-input", "-r", source)
        installed.write_text(wanted)
    return python


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
