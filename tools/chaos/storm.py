"""The loop of a run: lets events happen as the crawl goes on, until all is done.

Theory of operation. `_due` holds what happens later, as (moment, number, action): the end of a freeze,
the start of a server or of a run, events tied to an outage. Nothing here waits, so that events may
overlap. An event that finds no victim (all crawlers are just being started again) tries again in the
next round.
"""

from __future__ import annotations

import heapq
import itertools
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from tools.chaos.crew import Crew, Run
from tools.chaos.plan import OUTAGES, Event, Kind
from tools.chaos.processes import Process
from tools.chaos.rebalances import Rebalances
from tools.chaos.servers import Server

ROUND_SECONDS = 0.15
SAY_SECONDS = 5.0
LOOK_AT_LAG_SECONDS = 1.0
QUIET_SECONDS = 5.0  # without a page; then the crawl may be at its end
STUCK_SECONDS = 120.0  # without a page, a change of the lag, or an outage

T = TypeVar("T")


@dataclass(frozen=True)
class Death:
    """One crawler that was killed."""

    run: Run
    crawler: Process
    when: float


@dataclass
class Happened:
    """What was done to the crawl."""

    deaths: list[Death] = field(default_factory=list)
    counts: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    stopped: list[Run] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    gave_up: int = 0  # runs that found a server away at their start
    seconds: float = 0  # in all
    tail_seconds: float = 0  # from the last new page to the end


class Scene(Protocol):
    """What the storm sees of the crawl."""

    @property
    def total(self) -> int:
        """How many pages there are."""

    def fetched(self) -> int:
        """How many different pages were fetched so far."""

    def lag(self) -> int | None:
        """What the group has not done; None when the log does not say."""


class Storm:
    """Events that are to come, and what has come of them."""

    def __init__(
        self,
        scene: Scene,
        crew: Crew,
        servers: Mapping[Kind, Server],
        events: Sequence[Event],
        rebalances: Rebalances,
        say: Callable[[str], None],
    ) -> None:
        self.happened = Happened()
        self._scene = scene
        self._crew = crew
        self._servers = servers
        self._events = list(events)
        self._rebalances = rebalances
        self._say = say
        self._due: list[tuple[float, int, Callable[[], bool]]] = []
        self._numbers = itertools.count()
        self._fetched = 0
        self._began = self._grew_at = self._moved_at = self._said_at = self._asked_at = time.monotonic()
        self._lag: int | None = None

    def run(self, timeout_seconds: float) -> None:
        """Return when the group has no lag and nothing is left to happen, or it is stuck."""
        deadline = time.monotonic() + timeout_seconds
        while not self._is_done() and not self._gives_up(deadline):
            self._look_after_runs()
            for server in self._servers.values():
                server.look()
            self._progress()
            self._let_happen()
            time.sleep(ROUND_SECONDS)
        self.happened.seconds = time.monotonic() - self._began
        self.happened.tail_seconds = time.monotonic() - self._grew_at

    def _look_after_runs(self) -> None:
        self._crew.look()
        for run in self._crew.start_again():
            self.happened.gave_up += 1
            self._say(f"{run.name} gave up because a server is away; another one takes its place")

    # --- how far it is ------------------------------------------------------------------------

    def _progress(self) -> None:
        now, fetched = time.monotonic(), self._scene.fetched()
        if fetched > self._fetched:
            self._grew_at = now
        if fetched > self._fetched or self._is_outage():
            self._moved_at = now
        self._fetched = fetched
        if now - self._said_at >= SAY_SECONDS:
            self._said_at = now
            crawlers = len(self._crew.crawlers())
            is_fresh = self._lag is not None and now - self._asked_at < SAY_SECONDS
            lag = f", lag {self._lag}" if is_fresh else ""
            self._say(f"{fetched} of {self._scene.total} pages, {crawlers} crawlers{lag}")

    def _is_outage(self) -> bool:
        return any(server.away_since for server in self._servers.values())

    def _is_done(self) -> bool:
        """No lag; in two looks, the second one after everything else has settled."""
        now = time.monotonic()
        quiet = self._fetched > 0 and now - self._moved_at > QUIET_SECONDS
        ended = self._fetched >= self._scene.total or quiet
        if not ended or self._due or self._is_outage() or now - self._asked_at < LOOK_AT_LAG_SECONDS:
            return False
        self._asked_at, before = now, self._lag
        self._lag = self._scene.lag()
        if self._lag != before:
            self._moved_at = now
        return before == 0 and self._lag == 0

    def _gives_up(self, deadline: float) -> bool:
        now = time.monotonic()
        if now - self._moved_at > STUCK_SECONDS:
            self.happened.wrong.append(f"stuck for {STUCK_SECONDS:.0f} s, lag {self._lag}")
        elif now > deadline:
            self.happened.wrong.append(f"not done in time, lag {self._scene.lag()}")
        else:
            return False
        return True

    # --- events -------------------------------------------------------------------------------

    def _let_happen(self) -> None:
        share = self._fetched / self._scene.total
        while self._events and self._events[0].share <= share:
            event = self._events.pop(0)
            self._later(event.delay_seconds, lambda event=event: self._happens(event))  # type: ignore[misc]
        while self._due and self._due[0][0] <= time.monotonic():
            action = heapq.heappop(self._due)[2]
            if not action():
                self._later(ROUND_SECONDS, action)
        if told := self._rebalances.look(time.monotonic()):
            self._say(f"{share:4.0%}: {told}")

    def left(self) -> int:
        """How many events never came."""
        return len(self._events)

    def _later(self, seconds: float, action: Callable[[], bool]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), action))

    def _happens(self, event: Event) -> bool:
        acts = {
            Kind.KILL: self._kill,
            Kind.TERM: self._terminate,
            Kind.STOP: self._freeze,
            Kind.JOIN: self._join,
        }
        act = self._outage if event.kind in OUTAGES else acts[event.kind]
        told = act(event)
        if told is None:
            return False
        self.happened.counts[event.kind] += 1
        self._say(f"{self._fetched / self._scene.total:4.0%}: {told}")
        return True

    def _kill(self, event: Event) -> str | None:
        victim = chosen(self._crew.crawlers(), event.victim)
        if victim is None or not victim[1].send(signal.SIGKILL):
            return None
        run, crawler = victim
        self.happened.deaths.append(Death(run, crawler, time.time()))
        return f"kill -9 of {crawler.pid} in {run.name}"

    def _freeze(self, event: Event) -> str | None:
        victim = chosen(self._crew.crawlers(), event.victim)
        if victim is None or not victim[1].send(signal.SIGSTOP):
            return None
        run, crawler = victim

        def thaw() -> bool:
            if crawler.send(signal.SIGCONT):
                self._say(f"SIGCONT of {crawler.pid} in {run.name}")
            return True

        self._later(event.seconds, thaw)
        return f"SIGSTOP of {crawler.pid} in {run.name} for {event.seconds:.0f} s"

    def _terminate(self, event: Event) -> str | None:
        run = chosen(self._crew.working(), event.victim)
        if run is None:
            return None
        run.terminate()
        self.happened.stopped.append(run)

        def replace() -> bool:
            self._say(f"{self._crew.start(run.size).name} takes the place of {run.name}")
            return True

        self._later(event.seconds, replace)
        return f"SIGTERM of {run.name}"

    def _join(self, _event: Event) -> str:
        return f"{self._crew.start(1).name} joins"

    def _outage(self, event: Event) -> str | None:
        server = self._servers[event.kind]
        if server.away_since:
            return None  # one after the other
        server.kill()

        def start() -> bool:
            self._say(f"start of {server.name}")
            server.begin_start()
            return True

        self._later(event.seconds, start)
        return f"kill -9 of {server.name} for {event.seconds:.1f} s"


def chosen(candidates: Sequence[T], victim: float) -> T | None:
    """One of them, None when there are none."""
    return candidates[min(int(victim * len(candidates)), len(candidates) - 1)] if candidates else None
