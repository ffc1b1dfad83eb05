"""Tells whether a process of this machine still runs, even if its number belongs to a new one."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_PROC = Path("/proc")
_STATE, _START = 0, 19  # fields of /proc/PID/stat behind the command's name
_ENDED = {"Z", "X"}  # a zombie ended, even when its parent has not noticed


def own_identity() -> str:
    """What `has_ended` needs to recognise this process: boot, PID namespace, PID and start tick."""
    pid = os.getpid()
    status = _status(pid)
    return " ".join([_boot(), _namespace(), str(pid), status[_START] if status else "-"])


def has_ended(identity: str) -> bool | None:
    """Whether that process has ended; None when it cannot be known from here.

    It cannot where there is no /proc, nor about a process of another container.
    """
    boot, namespace, pid, start = identity.split(" ")
    if "-" in (boot, namespace, start):
        return None
    if boot != _boot():
        return True
    if namespace != _namespace():
        return None
    status = _status(int(pid))
    if status is not None:
        return status[_START] != start or status[_STATE] in _ENDED
    try:
        os.kill(int(pid), 0)  # sends nothing, asks only
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return None


@cache
def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "-"


def _namespace() -> str:
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return "-"


def _status(pid: int) -> list[str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # the name in parentheses may itself hold anything
