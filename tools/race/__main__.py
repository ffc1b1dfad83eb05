"""One race: sets up what is needed, lets all run in turn, prints the table, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from types import FrameType

from tools.race import heat, report
from tools.race.contestant import Heat, HeatFailed
from tools.race.contestants import CONTESTANTS
from tools.race.heat import Figures
from tools.race.machine import Cores
from tools.race.options import Mode, Options, read_options
from tools.race.pit import equipped
from tools.race.track import Track
from tools.race.workload import Workload

EXIT_FAILED, EXIT_UNAVAILABLE, EXIT_INTERRUPTED = 1, 69, 130
_began = time.monotonic()


def say(text: str) -> None:
    """A line of progress."""
    print(f"[{time.monotonic() - _began:6.1f} s] {text}", file=sys.stderr, flush=True)


class Race:
    """All heats, and what they gave."""

    def __init__(self, options: Options, track: Track, cores: Cores) -> None:
        self._options = options
        self._track = track
        self._cores = cores
        self.results: dict[tuple[str, str], list[Figures]] = defaultdict(list)
        self.failures: list[str] = []

    def run(self) -> None:
        """In turns, so that what the machine does besides meets all alike."""
        for number in range(self._options.runs):
            for workload in self._options.workloads:
                for name in self._options.peers:
                    if CONTESTANTS[name].kind.takes_part(workload):
                        self._heat(number, workload, name)

    def _heat(self, number: int, workload: Workload, name: str) -> None:
        folder = self._options.folder / f"{number}-{workload.key}-{name}"
        folder.mkdir()
        title = f"run {number + 1} of {self._options.runs}, {workload.key}, {name}"
        try:
            figures = heat.run(CONTESTANTS[name].kind(Heat(workload, folder, self._track)), self._cores)
        except HeatFailed as error:
            self.failures.append(f"{title}: {error}")
            say(f"{title}: FAILED, {error}")
            return
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.results[workload.key, name].append(figures)
        say(f"{title}: {figures.cpu_us:,.0f} µs of CPU a page, {figures.pages_per_second:,.0f} pages/s")


def race(options: Options) -> list[str]:
    """The whole of it; what went wrong, a line each."""
    cores = Cores.all_for_all() if options.mode is Mode.CORES else Cores.of_this_machine()
    os.sched_setaffinity(0, cores.servers)  # also of all that is started, unless it is told otherwise
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # site and crawlers: connections to many hosts
    with ExitStack() as stack:
        servers = equipped(stack, options, say)
        track = stack.enter_context(Track(options.folder, cores, options.workloads))
        track.servers = servers
        say(cores.note)
        run = Race(options, track, cores)
        run.run()
    print("\n".join(report.lines(options.mode, options.workloads, run.results)))
    notes = [
        cores.note,
        *report.capacities(options.workloads, run.results),
        *report.servers(options.workloads, run.results),
        *run.failures,
    ]
    if cores.are_apart:
        notes += report.disturbances(run.results)
    print("\n".join(["", *notes]), flush=True)
    if options.json:
        found = report.document(options.workloads, run.results, notes)
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return run.failures


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the cleaning up is not to be interrupted
    raise KeyboardInterrupt


def main(arguments: Sequence[str]) -> int:
    """Run, and return the exit code."""
    options = read_options(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        return EXIT_FAILED if race(options) else 0
    except KeyboardInterrupt:
        say("interrupted, all is stopped")
        return EXIT_INTERRUPTED
    except subprocess.CalledProcessError as error:
        say(f"{error}: {error.stderr or ''}")
        return EXIT_UNAVAILABLE
    except RuntimeError as error:  # a server or the site did not start, or a compiler is missing
        say(str(error))
        return EXIT_UNAVAILABLE
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
