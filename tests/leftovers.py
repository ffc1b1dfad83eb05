"""What a test leaves behind fails it: a process, a listening socket, a file among the temporary ones.

What a fixture of wider scope has made may stay until that fixture ends. A process is one of this worker's
when it is a child, or when the environment of its start names the worker: so an orphan is found as well. A
test may kill a server of such a fixture and start it again, in the same folder.

A test that fails inside `with subprocess.Popen(...)` does not wait for a process that nobody ends any more.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.real_servers import SHARED_FOLDER

PATIENCE_SECONDS = 60.0  # what was told to stop may take a while on a busy machine
KEPT = ("pytest-of-", "site_spider-")  # folders of pytest, and of the product for this user
_PROC = Path("/proc")
_MEMORY, _ENOUGH_BYTES = Path("/dev/shm"), 4_000_000_000  # else a quick run waits for the disk
_SHARED = f"SITE_SERVERS_DIR={SHARED_FOLDER}"  # servers of all workers, which stop behind the last one
_VSIZE, _ENV_END = 20, 48  # of the fields of stat behind the name
_Thing = tuple[str, int | str]  # its kind, and its number or name


_exit = subprocess.Popen.__exit__


def _killed_by_failures(process: subprocess.Popen[Any], kind: type[BaseException] | None, *of_it: Any) -> None:
    if kind is not None:
        process.kill()
    _exit(process, kind, *of_it)


def starts_processes(item: pytest.Item) -> bool:
    """Whether its module, or one of the tests and tools that it or a fixture uses, can start them."""
    assert isinstance(item, pytest.Function)
    used = {found[-1].func.__module__ for found in item._fixtureinfo.name2fixturedefs.values()}
    names = {name for name in used | {item.module.__name__} if name != "tests.conftest"}
    return any(_reaches_subprocess(name) for name in names)


@cache
def _reaches_subprocess(module: str) -> bool:
    if module in {"subprocess", "multiprocessing"}:
        return True
    if not module.startswith(("tests.", "tools.")) or module.startswith("tests.in_process."):
        return False
    values = vars(sys.modules[module]).values()
    names = {
        value.__name__ if isinstance(value, ModuleType) else value.__module__
        for value in values
        if hasattr(value, "__module__") or isinstance(value, ModuleType)
    }
    return any(_reaches_subprocess(name) for name in names - {module, None})


class Leftovers:
    """Compares what is there before and after a test, in runs of all tests."""

    def __init__(self, *, compares: bool = True) -> None:
        self._compares = compares
        self._mark = f"TESTS_WORKER={os.getpid()}"
        in_memory = not compares and _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ENOUGH_BYTES
        root, kept = (_MEMORY, _MEMORY) if in_memory else (Path("/tmp"), Path(tempfile.gettempdir()))
        self._temporary = Path(tempfile.mkdtemp(prefix="site-tests-", dir=root))  # for short paths of sockets
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(kept))  # where tmp_path stays to be looked at
        os.environ["TESTS_WORKER"] = str(os.getpid())
        os.environ["TMPDIR"] = str(self._temporary)
        os.environ["XDG_STATE_HOME"] = str(self._temporary / "site_spider-state")  # not ~/.local
        tempfile.tempdir = None  # asks the environment again
        self._seen: set[int] = set()
        self._processes: set[int] = set()
        self._before: set[_Thing] = set()
        self._held: dict[_Thing, pytest.FixtureDef[Any]] = {}
        subprocess.Popen.__exit__ = _killed_by_failures  # type: ignore[method-assign]
        self._folders: dict[str, pytest.FixtureDef[Any]] = {}  # of servers that a fixture has started

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        made = yield
        if self._compares and fixturedef.scope != "function":
            for thing in self._now() - self._before:
                self._held.setdefault(thing, fixturedef)
                if folder := _servers_folder(thing):
                    self._folders[folder] = fixturedef
        return made

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if self._compares:
            self._before = self._now()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, None, None]:
        yield
        if not self._compares or not (left := self._left()):
            return
        gc.collect()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while left and time.monotonic() < deadline:
            time.sleep(0.1)
            left = self._left()
        if left:
            told = ", ".join(sorted(self._told(thing) for thing in left))
            self._remove(left)
            pytest.fail(f"this test leaves behind: {told}", pytrace=False)

    def pytest_unconfigure(self) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _now(self) -> set[_Thing]:
        things: set[_Thing] = {("process", pid) for pid in self._own_processes()}
        things.update(("socket", inode) for inode, _ in _sockets())
        with os.scandir(self._temporary) as entries:
            things.update(("file", entry.name) for entry in entries if not entry.name.startswith(KEPT))
        return things

    def _left(self) -> set[_Thing]:
        now = self._now()
        for thing in now - self._before - self._held.keys():
            if fixture := self._folders.get(_servers_folder(thing)):
                self._held[thing] = fixture
        held = {thing for thing, fixture in self._held.items() if fixture.cached_result is not None}
        left = (now - self._before - held) | (now & (self._held.keys() - held))
        if left:
            listening = _listening()
            allowed = {pid for kind, pid in held | self._before if kind == "process"}
            left = {
                thing
                for thing in left
                if (thing[0] != "socket" or thing[1] in listening)
                and (thing[0] != "process" or allowed.isdisjoint(_ancestors(int(thing[1]))))
                and _servers_folder(thing) != _SHARED
            }
        self._held = {thing: self._held[thing] for thing in self._held.keys() & now}
        return left

    def _own_processes(self) -> set[int]:
        with os.scandir(_PROC) as entries:
            there = {int(entry.name) for entry in entries if entry.name.isdigit()}
        self._processes &= there
        own = {pid for pid in there - self._seen if self._is_own(pid)}
        self._processes.update(pid for pid in own if not _is_helper(pid))
        self._seen = there
        return {pid for pid in self._processes if _state_and_parent(pid)[0] not in "ZX"}

    def _is_own(self, pid: int) -> bool:
        for _ in range(1_000):
            if not _begins_a_program(pid):
                break
            time.sleep(0.001)
        if _state_and_parent(pid)[1] == os.getpid():
            return True
        try:
            environment = (_PROC / str(pid) / "environ").read_bytes()
        except OSError:
            return False
        return self._mark.encode() in environment.split(b"\0")

    def _told(self, thing: _Thing) -> str:
        kind, name = thing
        if kind == "process":
            return f"process {name} ({_command(int(name))})"
        if kind == "socket":
            return f"listening socket {_listening().get(int(name), name)}"
        return f"file {name} in {self._temporary}"

    def _remove(self, left: set[_Thing]) -> None:
        """So that the next tests find none of it."""
        for kind, name in left:
            if kind == "process":
                with suppress(ProcessLookupError):
                    os.kill(int(name), signal.SIGKILL)
            elif kind == "file":
                path = self._temporary / str(name)
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        for one in gc.get_objects():
            if issubclass(type(one), subprocess.Popen) and ("process", one.pid) in left:
                one.wait()  # its end is a warning, and that would fail the test which runs at that moment


def _servers_folder(thing: _Thing) -> str:
    """Of a server that servers.sh has started, else empty."""
    if thing[0] == "process":
        with suppress(OSError):
            for variable in (_PROC / str(thing[1]) / "environ").read_bytes().split(b"\0"):
                if variable.startswith(b"SITE_SERVERS_DIR="):
                    return variable.decode()
    return ""


def _is_helper(pid: int) -> bool:
    """Python starts one for all of a process, and ends it with that."""
    return "multiprocessing.resource_tracker" in _command(pid)


def _sockets() -> Iterator[tuple[int, int]]:
    """The inodes of all sockets of this process, with their descriptors."""
    with os.scandir("/proc/self/fd") as entries:
        for entry in entries:
            with suppress(OSError):
                target = os.readlink(entry.path)  # noqa: PTH115  # a Path for each would take too long
                if target.startswith("socket:["):
                    yield int(target[8:-1]), int(entry.name)


def _listening() -> dict[int, str]:
    """Inodes of the sockets of this process that listen, with their addresses.

    Asked of each socket: to read /proc/net/tcp takes 8 ms of CPU on a machine with much memory.
    """
    found = {}
    for inode, descriptor in _sockets():
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as asked:
            if asked.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found[inode] = str(asked.getsockname())
    return found


def _begins_a_program(pid: int) -> bool:
    """Whether it has memory, but no environment yet (proc_pid_stat(5)), as for a moment in an exec.

    Of another user's process the place of the environment is not told.
    """
    fields = _stat(pid)
    if len(fields) <= _ENV_END or fields[_VSIZE] == "0" or fields[_ENV_END] != "0":
        return False
    with suppress(OSError):
        return (_PROC / str(pid)).stat().st_uid == os.geteuid()
    return False


def _state_and_parent(pid: int) -> tuple[str, int]:
    """X, which is dead, when there is none."""
    state, parent = (_stat(pid) or ["X", "0"])[:2]
    return state, int(parent)


def _stat(pid: int) -> list[str]:
    """What follows the name of the program in its `stat`; empty when there is none."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        yield pid
        pid = _state_and_parent(pid)[1]


def _command(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    except OSError:
        return "gone"
