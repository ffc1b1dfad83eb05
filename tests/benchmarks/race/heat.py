"""One heat: a contestant crawls a workload, and is measured meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass

from tests.benchmarks.race import machine
from tests.benchmarks.race.contestant import Contestant
from tests.benchmarks.race.machine import Cores
from tests.benchmarks.race.meter import Meter, Reading, descendants
from tests.benchmarks.race.track import State, Track, awaited_state
from tests.chaos.processes import LEASH, Process

LOOK_SECONDS = 0.02
LONGEST_SECONDS = 400
QUIET_SECONDS = 0.3  # after the last page, until those that do not end by themselves are told to
WARM_PART = 0.05  # of the pages, before which nothing is measured: imports, connections, the start


class HeatFailed(Exception):
    """A contestant did not do the work; the message says what was missing."""


@dataclass(frozen=True)
class Figures:
    """What one heat gave."""

    cpu_us: float  # a page
    pages_per_second: float
    peak_bytes: int
    connections: int
    latencies: (
        tuple[float, float] | None
    )  # seconds from the page being served to the acknowledgement: p50, p99


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
        self.meter = Meter(self.process.pid, contestant.counts)
        self.readings: list[Reading] = []

    def follow(self, track: Track, total: int) -> None:
        """Read until every record is out. Raises HeatFailed."""
        deadline = time.monotonic() + LONGEST_SECONDS
        told = False
        while self._read(track) < total or self.contestant.recorded() < total:
            if self.process.poll() is not None:
                break
            if time.monotonic() > deadline:
                raise HeatFailed(f"not done within {LONGEST_SECONDS} s: {self._told_of(track)}")
            if not told and not self.contestant.stops_itself and self._is_quiet(total):
                told = True
                self.process.send_signal(signal.SIGTERM)
            time.sleep(LOOK_SECONDS)
        self._read(track)
        if (found := self.contestant.recorded()) < total:
            raise HeatFailed(f"{found} of {total} records: {self._told_of(track)}")

    def _read(self, track: Track) -> int:
        served = track.state().served
        self.readings.append(Reading(time.time(), self.meter.cpu(), served))
        return served

    def _is_quiet(self, total: int) -> bool:
        done = next((reading.at for reading in self.readings if reading.served >= total), None)
        return done is not None and time.time() - done > QUIET_SECONDS

    def _told_of(self, track: Track) -> str:
        return f"{track.state()}, log: {self.log.read_text(errors='replace')[-1500:]}"

    def end(self) -> None:
        """Wait for it, or stop it."""
        below = descendants(self.process.pid)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        self.kill(below)

    def kill(self, below: list[Process] | None = None) -> None:
        """At once, with all that it started."""
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
            running.follow(heat.track, heat.workload.total)
            running.end()
        except BaseException:
            running.kill()
            raise
        state = awaited_state(heat.track)
        latencies = _checked(contestant, state)
    finally:
        contestant.close()
    return _figures(running, state, latencies)


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


def _figures(running: Running, state: State, latencies: tuple[float, float] | None) -> Figures:
    readings = running.readings
    total = running.contestant.heat.workload.total
    first = next(reading for reading in readings if reading.served >= max(1, total * WARM_PART))
    pages = total - first.served
    if pages <= 0:
        raise HeatFailed(f"{total} pages are over before they can be measured; take more of them (--pages)")
    return Figures(
        cpu_us=(readings[-1].cpu_seconds - first.cpu_seconds) / pages * 1e6,
        pages_per_second=pages / max(state.last - first.at, 1e-6),
        peak_bytes=running.meter.peak_bytes(),
        connections=state.connections,
        latencies=latencies,
    )
