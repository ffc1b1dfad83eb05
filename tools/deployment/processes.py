"""Processes as the kernel shows them: those below another one, their CPU and memory, signals to them.

A process is told apart by pid and start tick, and signalled only while it is the same.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import which
from typing import NamedTuple

_PROC = Path("/proc")
_STATE, _PARENT, _START, _PAGES = 0, 1, 19, 21  # fields of /proc/PID/stat behind the command's name
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SCHEDULED = 2  # CPUCLOCK_SCHED: nanoseconds on a CPU, user and system, all threads, the ended ones too

# In front of a command. Should this process be killed with -9, the kernel tells its children to stop. It
# counts for the thread that starts them, so only the main thread does.
LEASH = ["setpriv", "--pdeathsig", "TERM"] if which("setpriv") else []


def logged(
    command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """Begin it out of reach of Ctrl-C, with all that it says behind what the log has."""
    with log.open("ab") as stream:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )


class Process(NamedTuple):
    """One process; its start tick tells it from a later one with the same number."""

    pid: int
    tick: int

    def lives(self) -> bool:
        """Whether this very process is there, and no zombie."""
        status = _status(self.pid)
        return status is not None and int(status[_START]) == self.tick and status[_STATE] not in "ZX"

    def resident_bytes(self) -> int:
        """Its memory; 0 when it is gone."""
        status = _status(self.pid)
        return int(status[_PAGES]) * _PAGE_BYTES if status else 0

    def send(self, number: signal.Signals) -> bool:
        """Signal it; false when it is gone."""
        with suppress(ProcessLookupError):
            if self.lives():
                os.kill(self.pid, number)
                return True
        return False

    def is_crawler(self) -> bool:
        """Whether it runs `scrapy crawl` (and is not a pause, nor about to become what it will be)."""
        with suppress(OSError):
            words = (_PROC / str(self.pid) / "cmdline").read_bytes().split(b"\0")
            return len(words) > 2 and words[1].endswith(b"/scrapy") and words[2] == b"crawl"
        return False


def children(pid: int) -> list[Process]:
    """The living children of a process, oldest first."""
    found = []
    for folder in _PROC.glob("[0-9]*"):
        status = _status(int(folder.name))
        if status and int(status[_PARENT]) == pid and status[_STATE] not in "ZX":
            found.append(Process(int(folder.name), int(status[_START])))
    return sorted(found, key=lambda process: process.tick)


def cpu_seconds(pid: int) -> float:
    """Of one process since its start. Raises OSError when it is gone."""
    return time.clock_gettime((~pid << 3) | _SCHEDULED)


def peak_bytes(pid: int) -> int:
    """The most memory that it ever had. Raises OSError when it is gone."""
    lines = (_PROC / str(pid) / "status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _status(pid: int) -> list[str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # the name in parentheses may itself hold anything
