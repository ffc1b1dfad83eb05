"""One heat: a contestant crawls a workload, and its CPU and memory are read meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tools.deployment.processes import LEASH, Process, children, cpu_seconds, logged, peak_bytes
from tools.race.contestants import Contestant, HeatFailed
from tools.race.site import State, Track

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cores:
    """The crawler has a core for itself where there are two; all else shares the others."""

    crawler: tuple[int, ...]
    servers: tuple[int, ...]

    @classmethod
    def of_this_machine(cls) -> Cores:
        cores = sorted(os.sched_getaffinity(0))
        return cls((cores[-1],), tuple(cores[:-1]) or (cores[-1],))

    @classmethod
    def all_for_all(cls) -> Cores:
        cores = tuple(sorted(os.sched_getaffinity(0)))
        return cls(cores, cores)

    @property
    def are_apart(self) -> bool:
        return not set(self.crawler) & set(self.servers)

    @property
    def note(self) -> str:
        crawler, servers = (",".join(map(str, cores)) for cores in (self.crawler, self.servers))
        if self.are_apart:
            return f"crawler on core {crawler}; site, servers and runner on {servers}"
        if len(self.crawler) > 1:
            return f"crawlers, site, servers and runner share the cores {crawler}"
        return "ONE CORE: crawler, site and servers take turns, so pages/s says little"

    def busy_seconds(self) -> float:
        """How long the crawler's cores have worked since the machine was started, for whomever."""
        lines = dict(line.split(maxsplit=1) for line in Path("/proc/stat").read_text().splitlines())
        rows = [[int(word) for word in lines[f"cpu{core}"].split()] for core in self.crawler]
        return sum(sum(row[:3]) + sum(row[5:8]) for row in rows) / _TICKS_PER_SECOND


WARM_PART = 0.05  # of the pages, before which nothing is measured: imports, connections, the start


@dataclass(frozen=True)
class Reading:
    """At one moment, of all processes that count."""

    at: float  # time.time()
    served: int  # pages, by then
    cpu_seconds: float  # since the start; those that have ended are in it
    resident_bytes: int
    peak_bytes: int
    site_cpu_seconds: float  # of the site
    servers_cpu_seconds: float  # of the servers that the race has started
    core_seconds: float  # that the crawler's core has worked, for whomever


@dataclass(frozen=True)
class Figures:
    cpu_us: float  # a page, from the warm moment to the last record
    early_cpu_us: float  # in the tenth of the pages that follows the warm moment
    late_cpu_us: float  # in the last tenth
    pages_per_second: float
    early_bytes: int  # resident after a tenth of the pages
    late_bytes: int  # and in the end
    peak_bytes: int  # from the start on
    site_cpu_us: float  # a page: what the site took for it
    servers_cpu_us: float  # a page: likewise Kafka, as far as it runs, for everything it does
    disturbance: float  # the part of the time in which the crawler's cores worked for others
    connections: int


def reckoned(readings: Sequence[Reading], total: int, last_served: float, connections: int) -> Figures:
    """Raises HeatFailed when the pages were over too soon."""

    def at(part: float) -> Reading:
        return next(reading for reading in readings if reading.served >= max(1, total * part))

    def cpu_us(first: Reading, last: Reading) -> float:
        done = last.served - first.served
        return (last.cpu_seconds - first.cpu_seconds) / done * 1e6 if done else 0.0

    warm, end = at(WARM_PART), readings[-1]
    if warm.served == total:
        raise HeatFailed(f"{total} pages are over before they can be measured; take more of them (--pages)")
    pages = total - warm.served
    others = (end.core_seconds - warm.core_seconds) - (end.cpu_seconds - warm.cpu_seconds)
    return Figures(
        cpu_us=cpu_us(warm, end),
        early_cpu_us=cpu_us(warm, at(WARM_PART + 0.1)),
        late_cpu_us=cpu_us(at(0.9), end),
        pages_per_second=pages / max(last_served - warm.at, 1e-6),
        early_bytes=at(0.1).resident_bytes,
        late_bytes=next((one.resident_bytes for one in reversed(readings) if one.resident_bytes), 0),
        peak_bytes=max(reading.peak_bytes for reading in readings),
        site_cpu_us=(end.site_cpu_seconds - warm.site_cpu_seconds) / pages * 1e6,
        servers_cpu_us=(end.servers_cpu_seconds - warm.servers_cpu_seconds) / pages * 1e6,
        disturbance=max(0.0, others) / max(end.at - warm.at, 1e-6),
        connections=connections,
    )


class Meter:
    """A process and its descendants, those that count. What has ended keeps its CPU and has no memory."""

    _LOOK_SECONDS = 0.5  # between two looks for new processes

    def __init__(self, root: int, counts: Callable[[Process], bool], cores: Cores) -> None:
        self._root = root
        self._counts = counts
        self._cores = cores
        self._cpu: dict[Process, float] = {}
        self._looked = 0.0

    def read(self, served: int, site: int, servers: Sequence[int]) -> Reading:
        """What they have cost so far; and the site's process, and those of the servers."""
        if time.monotonic() - self._looked > self._LOOK_SECONDS:
            self._looked = time.monotonic()
            found = [Process(self._root, 0), *children(self._root)]
            for process in found[1:]:  # grows while it is read
                found += children(process.pid)
            self._cpu |= {one: 0.0 for one in found if one not in self._cpu and self._counts(one)}
        peak = 0
        for process in self._cpu:
            with suppress(OSError):
                self._cpu[process] = cpu_seconds(process.pid)
                peak += peak_bytes(process.pid)
        return Reading(
            at=time.time(),
            served=served,
            cpu_seconds=sum(self._cpu.values()),
            resident_bytes=sum(process.resident_bytes() for process in self._cpu),
            peak_bytes=peak,
            site_cpu_seconds=cpu_seconds(site),
            servers_cpu_seconds=sum(map(cpu_seconds, servers)),
            core_seconds=self._cores.busy_seconds(),
        )


EAGER_SECONDS = 0.004  # until the warm moment: few pages may be over soon after it
LOOK_SECONDS = 0.02
LONGEST_SECONDS = 300  # and as much again for every LONGEST_PAGES
LONGEST_PAGES = 10_000


class Running:
    """A contestant's process and what was read of it."""

    def __init__(self, contestant: Contestant, cores: Cores, servers: Sequence[int]) -> None:
        self.contestant = contestant
        self.log = contestant.heat.folder / "log"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SITE_")}
        pinned = ["taskset", "--cpu-list", ",".join(map(str, cores.crawler))]
        command, environment = [*pinned, *LEASH, *contestant.command()], kept | contestant.environment()
        self.process = logged(command, self.log, environment, contestant.heat.folder)
        self.readings: list[Reading] = []
        self._meter = Meter(self.process.pid, contestant.counts, cores)
        self._servers = servers

    def follow(self, track: Track) -> None:
        """Read until every record is out. Raises HeatFailed."""
        total = self.contestant.heat.workload.total
        longest_seconds = LONGEST_SECONDS * (1 + total // LONGEST_PAGES)
        deadline = time.monotonic() + longest_seconds
        while (served := self._read(track)) < total or self.contestant.recorded() < total:
            if self.process.poll() is not None:
                break
            if time.monotonic() > deadline:
                raise HeatFailed(f"not done within {longest_seconds} s: {self._told_of(track)}")
            time.sleep(EAGER_SECONDS if served < total * WARM_PART else LOOK_SECONDS)
        self._read(track)
        if (found := self.contestant.recorded()) < total:
            raise HeatFailed(f"{found} of {total} records: {self._told_of(track)}")

    def _read(self, track: Track) -> int:
        served = track.state().served
        self.readings.append(self._meter.read(served, track.process.pid, self._servers))
        return served

    def _told_of(self, track: Track) -> str:
        return f"{track.state()}, log: {self.log.read_text(errors='replace')[-1500:]}"

    def end(self) -> None:
        if not self.contestant.stops_itself:
            self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(40)
        self.kill()

    def kill(self) -> None:
        """At once; what the script has started ends with it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def run(contestant: Contestant, cores: Cores, servers: Sequence[int] = ()) -> Figures:
    """The whole turn, beside these processes of servers. Raises HeatFailed."""
    heat = contestant.heat
    heat.track.reset(heat.workload)
    try:
        contestant.prepare()
        running = Running(contestant, cores, servers)
        try:
            contestant.started(running.log, running.process)
            running.follow(heat.track)
            running.end()
        except BaseException:
            running.kill()
            raise
        state = heat.track.state()
        _check(contestant, state)
    finally:
        contestant.close()
    return reckoned(running.readings, heat.workload.total, state.last, state.connections)


def _check(contestant: Contestant, state: State) -> None:
    """Raise HeatFailed unless every page was asked for once, and has a record."""
    workload = contestant.heat.workload
    if (state.asked, state.served, state.missing) != (workload.total, workload.total, 0):
        raise HeatFailed(f"{contestant.name} did not ask for each of {workload.total} pages once: {state}")
    served = set(contestant.heat.track.served())
    for record in contestant.records():
        authority, slash, path = record.url.partition("//")[2].partition("/")
        page = authority.partition(":")[0] + slash + path
        if page not in served or record.status != 200 or record.body_characters < 0.8 * workload.page_bytes:
            raise HeatFailed(f"{contestant.name} wrote a wrong record, or one twice: {record}")
        served.remove(page)
    if served:
        raise HeatFailed(f"{contestant.name} has no record of {len(served)} pages, as {next(iter(served))}")
