"""What the contestants need: programs, environments of their own, and servers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tools.chaos.servers import Server, start_all
from tools.race.contestants import CONTESTANTS, Compiled, bring_up_to_date, environment
from tools.race.options import Options


def equipped(stack: ExitStack, options: Options, say: Callable[[str], None]) -> list[int]:
    """Build, install and start what is needed; the servers' processes, which end with the stack."""
    kinds = {name: CONTESTANTS[name].kind for name in options.peers}
    bring_up_to_date({name: kind.build for name, kind in kinds.items() if issubclass(kind, Compiled)}, say)
    entries = [CONTESTANTS[name] for name in options.peers]
    for entry in entries:
        if entry.kind.requirements:
            prepare_environment(entry.kind.requirements, say)
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
    files = [
        options.folder / f"servers-{server.name}" / server.name / f"{server.name}.pid" for server in servers
    ]
    return [int(file.read_text().split()[0]) for file in files]


def prepare_environment(requirements: str, say: Callable[[str], None]) -> None:
    """Made when it is missing or the file has changed."""
    source = Path(__file__).parent / "requirements" / requirements
    programs = environment(requirements)
    installed = programs.parent / "installed.txt"
    if not installed.exists() or installed.read_text() != source.read_text():
        say(f"making {programs.parent}")
        _run(sys.executable, "-m", "venv", "--clear", str(programs.parent))
        install = ("-m", "pip", "install", "-q", "--no-deps", "--no-input", "--disable-pip-version-check")
        _run(str(programs / "python"), *install, "-r", str(source))
        installed.write_text(source.read_text())


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
