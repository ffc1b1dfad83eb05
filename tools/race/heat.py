"""One heat: a contestant crawls a workload, and is measured meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from tools.chaos.crew import LEASH, Process
from tools.race import machine
from tools.race.contestant import Contestant, HeatFailed
from tools.race.machine import Cores, Meter, Reading, descendants
from tools.race.track import State, Track, awaited_state
from tools.race.workload import Workload

WARM_PART = 0.05  # of the pages, before which nothing is measured: imports, connections, the start


@dataclass(frozen=True)
class Figures:
    """Of one contestant, one workload, one run."""

    cpu_us: float  # a page, from the warm moment to the last record
    early_cpu_us: float  # in the tenth of the pages that follows the warm moment
    late_cpu_us: float  # in the last tenth
    pages_per_second: float
    early_bytes: int  # resident after a tenth of the pages
    late_bytes: int  # and in the end
    peak_bytes: int  # from the start on
    site_cpu_us: float  # a page: what the site took for it
    servers_cpu_us: float  # a page: likewise Kafka and Redis, as far as they run, for everything they do
    disturbance: float  # the part of the time in which the crawler's cores worked for others
    connections: int
    latencies: tuple[float, float] | None  # p50 and p99 of seconds from page served to record acknowledged


def reckoned(
    readings: Sequence[Reading],
    total: int,
    last_served: float,
    connections: int,
    latencies: tuple[float, float] | None,
) -> Figures:
    """Raises ValueError when the pages were over too soon."""

    def at(part: float) -> Reading:
        return next(reading for reading in readings if reading.served >= max(1, total * part))

    warm, end = at(WARM_PART), readings[-1]
    if warm.served == total:
        raise ValueError(f"{total} pages are over before they can be measured; take more of them (--pages)")
    pages = total - warm.served
    return Figures(
        cpu_us=_cpu_us(warm, end),
        early_cpu_us=_cpu_us(warm, at(WARM_PART + 0.1)),
        late_cpu_us=_cpu_us(at(0.9), end),
        pages_per_second=pages / max(last_served - warm.at, 1e-6),
        early_bytes=at(0.1).resident_bytes,
        late_bytes=next((one.resident_bytes for one in reversed(readings) if one.resident_bytes), 0),
        peak_bytes=max(reading.peak_bytes for reading in readings),
        site_cpu_us=(end.site_cpu_seconds - warm.site_cpu_seconds) / pages * 1e6,
        servers_cpu_us=(end.servers_cpu_seconds - warm.servers_cpu_seconds) / pages * 1e6,
        disturbance=max(0.0, _others(warm, end)) / max(end.at - warm.at, 1e-6),
        connections=connections,
        latencies=latencies,
    )


def _cpu_us(first: Reading, last: Reading) -> float:
    pages = last.served - first.served
    return (last.cpu_seconds - first.cpu_seconds) / pages * 1e6 if pages else 0.0


def _others(first: Reading, last: Reading) -> float:
    return (last.core_seconds - first.core_seconds) - (last.cpu_seconds - first.cpu_seconds)


EAGER_SECONDS = 0.004  # until the warm moment: few pages may be over soon after it
LOOK_SECONDS = 0.02
LONGEST_SECONDS = 300  # and as much again for every LONGEST_PAGES
LONGEST_PAGES = 10_000
QUIET_SECONDS = 0.3  # after the last page, until those that hold records back are stopped


def look_seconds(served: int, workload: Workload) -> float:
    """Until the next look at a heat of which so many pages are served."""
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

    def follow(self, track: Track) -> None:
        """Read until every record is out. Raises HeatFailed."""
        workload = self.contestant.heat.workload
        total = workload.total
        longest_seconds = LONGEST_SECONDS * (1 + total // LONGEST_PAGES)
        deadline = time.monotonic() + longest_seconds
        while (served := self._read(track)) < total or self.contestant.recorded() < total:
            if self.process.poll() is not None:
                break
            if time.monotonic() > deadline:
                raise HeatFailed(f"not done within {longest_seconds} s: {self._told_of(track)}")
            if self.contestant.holds_back and self._is_quiet(total):
                self._stop()
            time.sleep(look_seconds(served, workload))
        self._read(track)
        if (found := self.contestant.recorded()) < total:
            raise HeatFailed(f"{found} of {total} records: {self._told_of(track)}")

    def _read(self, track: Track) -> int:
        served = track.state().served
        self.readings.append(self.meter.read(served, track.process.pid, track.servers))
        return served

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
