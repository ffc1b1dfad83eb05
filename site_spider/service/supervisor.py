"""Keeps crawler processes running in the foreground: for `scrapy service` and `task_shell/crawl_spider.sh`.

A program that needs nothing but Python, so that it takes little memory beside the crawlers.

Theory of operation. Slots 1 to `processes` each hold one crawler; slot 0 holds the watcher of --until-done.
A slot has a process, or a time at which its next one starts. Signals are blocked and waited for, so nothing
happens between the start of a process and the moment when it is known. Every process has its own session:
Ctrl-C on a terminal reaches the supervisor alone, which passes one SIGTERM on, because a second one stops a
crawler uncleanly. Should the supervisor be killed with -9, the kernel kills the processes as well: nothing is
lost, unfinished seeds are repeated. SIGUSR1 says that another number of processes is wanted; those that are
too many get SIGUSR2, and leave the group for good.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import hashlib
import os
import signal
import stat
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

FAILED, USAGE, UNAVAILABLE, SETUP, CONFIG, KILLED = 1, 2, 69, 71, 78, 137  # exit codes
IDLE = 79  # the same, of a crawler that ends for SITE_IDLE_CLOSE_SECONDS: no other program ends so
MOST_PROCESSES = 9_999
_PROCESS_BYTES = 100_000_000  # of memory, that a crawler takes at least

_USUAL_SPIDER = "crawl_spider"  # the commands work for it unless they are told of another
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD, signal.SIGALRM}
_LONGEST_WAIT_SECONDS = 1.0
_SHORTEST_WAIT_SECONDS = 0.001  # 0 would set no timer
_LONGEST_DOUBLINGS = 7  # of the pause before a start
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Supervision:
    """What to run, and how patiently."""

    name: str  # who says what is said
    program: Sequence[str]  # Scrapy's command
    spider: str
    crawl_options: Sequence[str]
    processes: int
    until_done: bool = False
    steady_seconds: float = 60  # after this lifetime the pauses begin again with the shortest
    longest_pause_seconds: float = 60  # between two starts; 0.5, 1, 2, 4 ... up to this
    setup_tries: int = 5  # failed starts of each process before any has taken seeds; then it ends
    stop_limit_seconds: float = 300  # then kill -9

    @property
    def crawler(self) -> list[str]:
        """The command of a crawler."""
        return [*self.program, "crawl", self.spider, *self.crawl_options]

    @property
    def watcher(self) -> list[str]:
        """The command of the watcher: it has the same settings, and no other options."""
        spider = [] if self.spider == _USUAL_SPIDER else ["--spider", self.spider]
        settings = list(_setting_options(self.crawl_options))
        return [*self.program, "progress", "--until-done", *spider, *settings]


def _setting_options(options: Sequence[str]) -> Iterator[str]:
    previous = ""
    for option in options:
        if previous in ("-s", "--set"):
            yield from ("-s", option)
        elif option.startswith("--set=") or (option.startswith("-s") and option != "-s"):
            yield option
        previous = option


@dataclass
class _Slot:
    number: int
    process: subprocess.Popen[bytes] | None = None
    begins_at: float | None = None  # the next process, after a pause
    began: float = 0.0
    failures: int = 0
    is_refused: bool = False  # its last process could not use a setting
    is_leaving: bool = False
    endings: Counter[int] = field(default_factory=Counter)  # how often one was started again, by exit code


class Supervisor:
    """Supervises one machine's processes of one group. SIGUSR1 says that `control` wants another number."""

    def __init__(self, plan: Supervision, control: ScaleControl) -> None:
        self._plan = plan
        self._control = control
        self._processes = plan.processes
        self._slots: dict[int, _Slot] = {}
        self._starts: Counter[int] = Counter()  # by number: a slot that was let go may come back
        self._is_stopping = False
        self._has_worked = False
        self._signals = 0
        self._exit_code = 0
        self._kill_at = 0.0
        self._prepare_child = _child_preparation()
        self._expected = os.memfd_create("processes")  # the number that has to run now, for the metrics of each

    def run(self) -> int:
        """Returns the exit code, when the last process has ended."""
        if trouble := self._control.claim():
            self._say(trouble)
        self._warn_of_memory()
        first = 0 if self._plan.until_done else 1
        for number in range(first, self._processes + 1):
            self._start(self._slot(number))
        while self._has_something():
            self._await()
            self._look_around()
            self._control.claim()  # another one may have ended
        return self._exit_code

    def _bury_orphans(self) -> None:
        """What crawlers that are gone have left comes to the first process of a container."""
        own = {process.pid for process in self._running()}
        with contextlib.suppress(ChildProcessError):  # there is no child
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid in own:
                    return
                os.waitpid(ended.si_pid, 0)

    def _has_something(self) -> bool:
        if self._is_stopping:
            return bool(self._running())
        return any(slot.process or slot.begins_at is not None for slot in self._slots.values())

    def _running(self) -> list[subprocess.Popen[bytes]]:
        return [slot.process for slot in self._slots.values() if slot.process is not None]

    def _await(self) -> None:
        """Until a process has ended, a signal has come, a process has to start, or a second has passed."""
        now = time.monotonic()
        begins = (slot.begins_at for slot in self._slots.values() if slot.begins_at is not None)
        seconds = min([_LONGEST_WAIT_SECONDS, *(max(0.0, at - now) for at in begins)])
        # `sigtimedwait` returns what nobody has filled in, after a standstill for longer than its timeout, as by Ctrl-Z
        signal.setitimer(signal.ITIMER_REAL, max(seconds, _SHORTEST_WAIT_SECONDS))
        heard = signal.sigwait(_SIGNALS)
        if heard in (signal.SIGCHLD, signal.SIGALRM):
            return
        if heard == signal.SIGUSR1:
            self._keep_as_many_as_wanted()
            return
        self._signals += 1
        if self._signals == 1:
            self._stop_all(0)
        else:
            self._kill_all()

    def _look_around(self) -> None:
        for slot in list(self._slots.values()):
            if slot.process is not None and (code := slot.process.poll()) is not None:
                self._ended(slot, code if code >= 0 else 128 - code)
        self._bury_orphans()
        now = time.monotonic()
        for slot in list(self._slots.values()):
            if not self._is_stopping and slot.begins_at is not None and slot.begins_at <= now:
                self._start(slot)
        staying = [slot for slot in self._slots.values() if slot.number and not slot.is_leaving]
        expected = sum(1 for slot in staying if slot.process is not None or slot.begins_at is not None)
        os.pwrite(self._expected, b"%-8d" % expected, 0)
        if self._is_stopping and now >= self._kill_at and self._running():
            limit_seconds = self._plan.stop_limit_seconds
            self._say(f"not all processes have stopped within {limit_seconds:g} s: killing them")
            self._kill_at = now + limit_seconds
            self._kill_all()

    # --- starts and stops -----------------------------------------------------------------------

    def _slot(self, number: int) -> _Slot:
        return self._slots.setdefault(number, _Slot(number))

    def _start(self, slot: _Slot) -> None:
        slot.began, slot.begins_at, slot.is_leaving = time.monotonic(), None, False
        self._starts[slot.number] += 1
        command = self._plan.crawler if slot.number else self._plan.watcher
        try:
            slot.process = subprocess.Popen(  # noqa: S603 - what it was told to run
                command,
                stdin=subprocess.DEVNULL,
                env=self._environment(slot),
                start_new_session=True,
                pass_fds=[self._expected],
                preexec_fn=self._prepare_child,  # noqa: PLW1509 - there is one thread
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._say(f"{command[0]} cannot be started: {error}")
            self._ended(slot, FAILED)

    def _environment(self, slot: _Slot) -> dict[str, str]:
        own = {
            "CRAWL_SPIDER_SLOT": str(slot.number),
            "CRAWL_SPIDER_PROCESSES": str(self._processes),
            "CRAWL_SPIDER_EXPECTED": str(self._expected),
            "CRAWL_SPIDER_STARTS": str(self._starts[slot.number]),
            "CRAWL_SPIDER_IDLE_CODE": str(IDLE),
            # for the metrics of the process: such as 137:2,70:1
            "CRAWL_SPIDER_RESTARTS": ",".join(f"{code}:{count}" for code, count in slot.endings.items()),
        }
        if slot.number == 0 and not any(word.startswith("--logfile") for word in self._plan.crawl_options):
            own["TERM"] = "dumb"  # the progress line that is redrawn would mix with log lines
        return {**os.environ, **own}

    def _stop_all(self, exit_code: int) -> None:
        """Gracefully; the first exit code counts."""
        if self._is_stopping:
            return
        self._is_stopping, self._exit_code = True, exit_code
        self._kill_at = time.monotonic() + self._plan.stop_limit_seconds
        for process in self._running():
            process.send_signal(signal.SIGTERM)

    def _kill_all(self) -> None:
        self._exit_code = KILLED
        for process in self._running():
            process.kill()

    def _keep_as_many_as_wanted(self) -> None:
        """Start what is missing, and have those leave for good that are too many."""
        wanted = self._control.wanted()
        if wanted is None or self._is_stopping:
            return
        self._say(f"from {self._processes} to {wanted} processes")
        self._processes = wanted
        self._warn_of_memory()
        if wanted == 0:
            self._is_stopping = True
            self._kill_at = time.monotonic() + self._plan.stop_limit_seconds
        for slot in list(self._slots.values()):
            if slot.number > wanted:
                self._let_go(slot)
            elif wanted == 0 and slot.process is not None:
                slot.process.send_signal(signal.SIGTERM)  # the watcher
        for number in range(1, wanted + 1):
            slot = self._slot(number)
            if slot.process is None and slot.begins_at is None:
                self._start(slot)

    def _let_go(self, slot: _Slot) -> None:
        slot.begins_at = None
        if slot.process is None:
            del self._slots[slot.number]
        elif not slot.is_leaving:
            slot.is_leaving = True
            slot.process.send_signal(signal.SIGUSR2)

    # --- ends -----------------------------------------------------------------------------------

    def _ended(self, slot: _Slot, code: int) -> None:
        slot.process = None
        if self._is_stopping:
            # found to be done while a crawler was still finding out that it cannot work
            if slot.number and self._exit_code == 0 and code in (CONFIG, USAGE):
                self._exit_code = code
        elif slot.number > self._processes:
            del self._slots[slot.number]
        elif slot.is_leaving:  # and is wanted again
            self._start(slot)
        elif slot.number == 0 and code > 128:
            self._start_again(slot, f"the watcher {_ending(code)}")
        elif slot.number == 0:
            self._stop_all(code if code in (0, CONFIG, USAGE) else FAILED)
        elif code == IDLE:
            self._has_worked = True
            self._say(f"process {slot.number} has ended: there was no seed for SITE_IDLE_CLOSE_SECONDS")
        else:
            self._crawler_ended(slot, code)

    def _crawler_ended(self, slot: _Slot, code: int) -> None:
        was_added = self._was_added(slot)
        if code not in (SETUP, UNAVAILABLE, FAILED) or time.monotonic() - slot.began >= self._plan.steady_seconds:
            self._has_worked = True
        what = f"process {slot.number} {_ending(code)}"
        slot.is_refused = code in (CONFIG, USAGE)
        if slot.is_refused and not (was_added and self._has_others()):  # else it may have a port that is taken, say
            self._stop_all(code)  # the process has said why
        elif code == UNAVAILABLE and self._starts[slot.number] == 1 and not was_added:
            self._stop_all(UNAVAILABLE)
        elif code in (SETUP, FAILED) and self._is_hopeless(slot):
            tries = self._plan.setup_tries
            self._say(f"{what}: no process could take seeds in {tries} starts; the reason is above")
            self._stop_all(SETUP)
        else:
            slot.endings[code] += 1
            self._start_again(slot, what)

    def _start_again(self, slot: _Slot, what: str) -> None:
        """After a pause that grows while lifetimes are short."""
        now = time.monotonic()
        lived_seconds = now - slot.began
        if lived_seconds >= self._plan.steady_seconds:
            slot.failures = 0
        pause_seconds = min(2 ** min(slot.failures, _LONGEST_DOUBLINGS) / 2, self._plan.longest_pause_seconds)
        slot.failures += 1
        self._say(f"{what} after {lived_seconds:.0f} s; starting again in {pause_seconds:.1f} s")
        slot.begins_at = now + pause_seconds

    def _was_added(self, ended: _Slot) -> bool:
        """Whether it was the first start of a process beside others, which ran before or have worked."""
        before = ended.began - self._plan.steady_seconds
        crawlers = (slot for slot in self._slots.values() if slot.number and slot.process is not None)
        return self._has_worked or any(slot.began <= before for slot in crawlers)

    def _has_others(self) -> bool:
        """Whether a crawler runs, or will after an end that had another reason than a setting."""
        crawlers = (slot for slot in self._slots.values() if slot.number)
        return any(slot.process or (slot.begins_at is not None and not slot.is_refused) for slot in crawlers)

    def _is_hopeless(self, ended: _Slot) -> bool:
        """Each process, this one included, has failed in its set-up often enough, and none runs."""
        crawlers = [slot for slot in self._slots.values() if slot.number]
        return not self._has_worked and all(
            slot.process is None and slot.failures + (slot is ended) >= self._plan.setup_tries for slot in crawlers
        )

    def _warn_of_memory(self) -> None:
        wanted = self._processes * _PROCESS_BYTES
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if wanted > there:
            said = f"{self._processes} processes need {wanted / 1e9:.1f} GB of memory or more"
            self._say(f"{said}, but this machine has {there / 1e9:.1f} GB: have fewer of them, or more machines")

    def _say(self, message: str) -> None:
        with contextlib.suppress(OSError):  # a full disk, or nobody who reads
            os.write(2, os.fsencode(f"{self._plan.name}: {message}\n"))


def _ending(code: int) -> str:
    if code <= 128:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(code - 128).name.removeprefix("SIG")
    except ValueError:
        name = str(code - 128)
    return f"was killed by signal {name}"


def _child_preparation() -> Callable[[], None]:
    """What a process does before it becomes the program: signals as they were, and an end with its parent."""
    parent = os.getpid()
    try:
        import ctypes  # noqa: PLC0415 - some Pythons are built without

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        prctl = None

    def prepare() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    return prepare


class ScaleControl:
    """How `--scale N` reaches the supervisor that was started for the same.

    A file in a folder that only this user may enter has the number of processes that is wanted. The supervisor
    locks it as long as it lives, and the kernel says whose lock that is.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        digest = hashlib.sha256(os.fsencode("\n".join(keys))).hexdigest()
        self._name = f"{digest[:16]}.scale"
        self._claimed: int | None = None  # the file; closing any other that is open here would release the lock

    def claim(self) -> str | None:
        """From now on --scale reaches this process; returns why not."""
        if self._claimed is not None:
            return None
        for folder in _folders():
            with contextlib.suppress(OSError):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                if _is_own(folder):
                    path = folder / self._name
                    return self._take(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        return "--scale cannot reach this: set XDG_RUNTIME_DIR to a folder of your own"

    def _take(self, path: Path, file: int) -> str | None:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return "another one runs with the same project, spider, group and topic; --scale reaches that one"
            return f"--scale cannot reach this: {path}: {error.strerror}"  # a file system without locks
        self._claimed = file
        return None

    def wanted(self) -> int | None:
        """The number that was asked for."""
        if self._claimed is None:
            return None
        with contextlib.suppress(OSError, ValueError):
            number = int(os.pread(self._claimed, 16, 0))
            return number if 0 <= number <= MOST_PROCESSES else None
        return None

    def scale(self, processes: int) -> bool:
        """Have the supervisor that runs keep so many; False where there is none."""
        for folder in _folders():
            with contextlib.suppress(OSError):
                if _is_own(folder) and _order(folder / self._name, processes):
                    return True
        return False


def _order(path: Path, processes: int) -> bool:
    with path.open("r+b", buffering=0) as file:
        how = "hhlli"  # struct flock: kind, whence, start, length, process
        asked = struct.pack(how, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_, pid = struct.unpack(how, fcntl.fcntl(file, fcntl.F_GETLK, asked))
        if kind == fcntl.F_UNLCK or pid <= 0:
            return False
        file.write(b"%-8d" % processes)  # in one piece, and as long as any before
        os.kill(pid, signal.SIGUSR1)
    return True


def _folders() -> Iterator[Path]:
    """Where the files may be, the best first."""
    home = os.path.expanduser("~")  # noqa: PTH111 - raises nothing
    runtime, state = (os.environ.get(name, "") for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"))
    if os.path.isdir(runtime):  # noqa: PTH112 - as above
        yield Path(runtime) / "site_spider-control"
    if Path(state).is_absolute() or os.path.isdir(home):  # noqa: PTH112 - as above
        yield Path(home, ".local", "state", state) / "site_spider-control"
    yield Path(os.environ.get("TMPDIR") or "/tmp") / f"site_spider-{os.getuid()}-control"  # noqa: S108 - looked at


def _is_own(folder: Path) -> bool:
    status = folder.lstat()
    may_others = stat.S_IMODE(status.st_mode) & 0o022
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not may_others


def main(arguments: Sequence[str]) -> int:
    """Supervise, or scale. Returns the exit code."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:  # a closed one would be that of the next file
        os.set_inheritable(opened, True)
    os.close(opened)
    options = _parser().parse_args(arguments)
    control = ScaleControl(options.key)
    if options.scale is not None:
        if control.scale(options.scale):
            return 0
        none = f"no {options.name} runs here with this project, spider, group and topic"
        print(f"{options.name}: {none}: name those it was started with", file=sys.stderr)
        return FAILED
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # `Supervisor` asks for the signals. One that is blocked is heard of also by who was told to ignore it, as by nohup.
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS - ignored)
    plan = Supervision(**{one.name: getattr(options, one.name) for one in fields(Supervision)})
    return Supervisor(plan, control).run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="supervisor", allow_abbrev=False)
    parser.add_argument("--name", default="supervisor")
    parser.add_argument("--program", action="append", required=True, help="a word of Scrapy's command")
    parser.add_argument("--spider", default=_USUAL_SPIDER)
    parser.add_argument("--key", action="append", default=[], help="what --scale knows this supervisor by")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--until-done", action="store_true")
    parser.add_argument("--scale", type=int)
    for name in ("steady-seconds", "longest-pause-seconds", "stop-limit-seconds"):
        usual = getattr(Supervision, name.replace("-", "_"))
        parser.add_argument(f"--{name}", type=float, default=usual)
    parser.add_argument("--setup-tries", type=int, default=Supervision.setup_tries)
    parser.add_argument("crawl_options", nargs="*")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
