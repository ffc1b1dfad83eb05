"""One heat: a contestant crawls a workload, and is measured meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

from tools.chaos.crew import LEASH, Process
from tools.race import machine, report
from tools.race.contestant import Contestant, HeatFailed
from tools.race.figures import WARM_PART, Figures, reckoned
from tools.race.machine import Cores
from tools.race.meter import Meter, Reading, descendants
from tools.race.series import stretches
from tools.race.track import State, Track, awaited_state
from tools.race.workload import Workload

EAGER_SECONDS = 0.004  # until the warm moment: few pages may be over soon after it
LOOK_SECONDS = 0.02
SELDOM_SECONDS = 1.0  # of a heat that has its minutes
LONGEST_SECONDS = 300  # and as much again for every LONGEST_PAGES
LONGEST_PAGES = 10_000
QUIET_SECONDS = 0.3  # after the last page, until those that hold records back are stopped


def look_seconds(served: int, workload: Workload) -> float:
    """Until the next look at a heat of which so many pages are served."""
    if workload.minutes:
        return SELDOM_SECONDS
    return EAGER_SECONDS if served < workload.total * WARM_PART else LOOK_SECONDS


class Running:
    """A contestant's process and what was read of it."""

    def __init__(self, contestant: Contestant, cores: tuple[int, ...]) -> None:
        self.contestant = contestant
        self.log = contestant.heat.folder / "log"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SITE_")}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*LEASH, *machine.pinned(cores), *contestant.command()],
                cwd=contestant.heat.folder,
                env=kept | contestant.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.meter = Meter(self.process.pid, contestant.counts, cores)
        self.readings: list[Reading] = []
        self._told = False
        self._stretches_told = 0

    def follow(self, track: Track) -> None:
        """Read until every record is out. Raises HeatFailed."""
        workload = self.contestant.heat.workload
        total, minutes = workload.total, workload.minutes
        longest_seconds = LONGEST_SECONDS * (1 + total // LONGEST_PAGES) + 60 * minutes
        deadline = time.monotonic() + longest_seconds
        while (served := self._read(track)) < total or self.contestant.recorded() < total:
            if self.process.poll() is not None:
                break
            if time.monotonic() > deadline:
                raise HeatFailed(f"not done within {longest_seconds} s: {self._told_of(track)}")
            if self.contestant.holds_back and self._is_quiet(total):
                self._stop()
            if minutes:
                self._tell()
            time.sleep(look_seconds(served, workload))
        self._read(track)
        if (found := self.contestant.recorded()) < total:
            raise HeatFailed(f"{found} of {total} records: {self._told_of(track)}")

    def _read(self, track: Track) -> int:
        served = track.state().served
        self.readings.append(self.meter.read(served, track.process.pid, track.servers))
        return served

    def _tell(self) -> None:
        """The series so far, as it grows."""
        found = list(stretches(self.readings))[:-1]  # the last one is not over
        for one in found[self._stretches_told :]:
            print(*report.stretch_cells(one), sep="  ", file=sys.stderr, flush=True)
        self._stretches_told = len(found)

    def _is_quiet(self, total: int) -> bool:
        done = next((reading.at for reading in self.readings if reading.served >= total), None)
        return done is not None and time.time() - done > QUIET_SECONDS

    def _told_of(self, track: Track) -> str:
        return f"{track.state()}, log: {self.log.read_text(errors='replace')[-1500:]}"

    def end(self) -> None:
        """Wait for it, or stop it."""
        below = descendants(self.process.pid)
        if not self.contestant.stops_itself:
            self._stop()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self._stop()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        self.kill(below)

    def _stop(self) -> None:
        """Once only: a second signal would cut it short."""
        if not self._told:
            self._told = True
            self.process.terminate()

    def kill(self, below: list[Process] | None = None) -> None:
        """At once, with all that it started."""
        if below is None and self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)  # or it starts one more, which nobody knows
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        below = below if below is not None else descendants(self.process.pid)
        self.process.kill()
        self.process.wait()
        for process in below:
            process.send(signal.SIGKILL)


def run(contestant: Contestant, cores: Cores) -> Figures:
    """The whole turn. Raises HeatFailed."""
    heat = contestant.heat
    heat.track.reset(heat.workload)
    try:
        contestant.prepare()
        running = Running(contestant, cores.crawler)
        try:
            contestant.started(running.log, running.process)
            running.follow(heat.track)
            running.end()
        except BaseException:
            running.kill()
            raise
        state = awaited_state(heat.track)
        latencies = _checked(contestant, state)
    finally:
        contestant.close()
    try:
        return reckoned(running.readings, heat.workload.total, state.last, state.connections, latencies)
    except ValueError as error:
        raise HeatFailed(str(error)) from None


def _checked(contestant: Contestant, state: State) -> tuple[float, float] | None:
    """Every page was asked for once, and has a record; how long the records took. Raises HeatFailed."""
    workload = contestant.heat.workload
    if (state.asked, state.served, state.missing) != (workload.total, workload.total, 0):
        raise HeatFailed(f"{contestant.name} did not ask for each of {workload.total} pages once: {state}")
    served = contestant.heat.track.times()
    taken: list[float] = []
    for record in contestant.records():
        authority, slash, path = record.url.partition("//")[2].partition("/")
        at = served.pop(authority.partition(":")[0] + slash + path, None)
        if at is None or record.status != 200 or record.body_characters < 0.8 * workload.page_bytes:
            raise HeatFailed(f"{contestant.name} wrote a wrong record, or one twice: {record}")
        if record.acknowledged is not None:
            taken.append(record.acknowledged - at)
    if served:
        raise HeatFailed(f"{contestant.name} has no record of {len(served)} pages, as {next(iter(served))}")
    taken.sort()
    return (taken[len(taken) // 2], taken[len(taken) * 99 // 100]) if taken else None
