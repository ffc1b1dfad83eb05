"""Processes as /proc shows them: told apart by pid and start tick, signalled only while they are the same."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from shutil import which
from typing import NamedTuple

_PROC = Path("/proc")
_STATE, _PARENT, _START = 0, 1, 19  # fields of /proc/PID/stat behind the command's name
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

# Should this process be killed with -9, the kernel tells its children to stop. It counts for the thread
# that starts them, so only the main thread does.
LEASH = ["setpriv", "--pdeathsig", "TERM"] if which("setpriv") else []


class Process(NamedTuple):
    """One process; its start tick tells it from a later one with the same number."""

    pid: int
    tick: int

    @property
    def started(self) -> float:
        """When it was started, as `time.time()` counts."""
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + self.tick / _TICKS_PER_SECOND

    def lives(self) -> bool:
        """Whether this very process is there, and no zombie."""
        status = _status(self.pid)
        return status is not None and int(status[_START]) == self.tick and status[_STATE] not in "ZX"

    def send(self, number: signal.Signals) -> bool:
        """Signal it; false when it is gone."""
        if not self.lives():
            return False
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False


def children(pid: int) -> list[Process]:
    """The living children of a process, oldest first."""
    found = []
    for folder in _PROC.glob("[0-9]*"):
        status = _status(int(folder.name))
        if status and int(status[_PARENT]) == pid and status[_STATE] not in "ZX":
            found.append(Process(int(folder.name), int(status[_START])))
    return sorted(found, key=lambda process: process.tick)


def is_crawler(process: Process) -> bool:
    """Whether it runs `scrapy crawl` (and is not a pause, nor about to become what it will be)."""
    with suppress(OSError):
        words = (_PROC / str(process.pid) / "cmdline").read_bytes().split(b"\0")
        return len(words) > 2 and words[1].endswith(b"/scrapy") and words[2] == b"crawl"
    return False


def _status(pid: int) -> list[str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # the name in parentheses may itself hold anything
