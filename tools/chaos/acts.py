"""What can happen to the processes of a crawl and to servers: a class for each kind of event.

An act does not wait: what follows later is given to the stage, so that events may overlap. An act that finds
no victim (all crawlers are just being started again) returns None, and the storm tries again in the next
round.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from tools.chaos.crew import Crew
from tools.chaos.happened import Death, Happened
from tools.chaos.plan import Event
from tools.chaos.servers import Server

SHARE_OF_TWO = 0.3  # of the kills of a broker take a second one of three

T = TypeVar("T")


class Stage(Protocol):
    """What acts see of the storm."""

    happened: Happened

    def later(self, seconds: float, action: Callable[[], bool]) -> None:
        """Call it then, and again and again until it is true."""

    def say(self, text: str) -> None:
        """A line of progress, with how far the crawl is."""


class Act(Protocol):
    """One kind of event."""

    def happen(self, event: Event, stage: Stage) -> str | None:
        """What was done, in words; None when it cannot be done now."""


def chosen(candidates: Sequence[T], victim: float) -> T | None:
    """One of them, None when there are none."""
    return candidates[min(int(victim * len(candidates)), len(candidates) - 1)] if candidates else None


class Kill:
    """kill -9 of a crawler."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def happen(self, event: Event, stage: Stage) -> str | None:
        """As in Act."""
        victim = chosen(self._crew.crawlers(), event.victim)
        if victim is None or not victim[1].send(signal.SIGKILL):
            return None
        run, crawler = victim
        stage.happened.deaths.append(Death(run, crawler, time.time()))
        return f"kill -9 of {crawler.pid} in {run.name}"


class Freeze:
    """SIGSTOP of a crawler, later SIGCONT."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def happen(self, event: Event, stage: Stage) -> str | None:
        """As in Act."""
        victim = chosen(self._crew.crawlers(), event.victim)
        if victim is None or not victim[1].send(signal.SIGSTOP):
            return None
        run, crawler = victim

        def thaw() -> bool:
            if crawler.send(signal.SIGCONT):
                stage.say(f"SIGCONT of {crawler.pid} in {run.name}")
            return True

        stage.later(event.seconds, thaw)
        return f"SIGSTOP of {crawler.pid} in {run.name} for {event.seconds:.0f} s"


class Terminate:
    """SIGTERM of a run; later another one takes its place."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def happen(self, event: Event, stage: Stage) -> str | None:
        """As in Act."""
        run = chosen(self._crew.working(), event.victim)
        if run is None:
            return None
        run.terminate()
        stage.happened.stopped.append(run)

        def replace() -> bool:
            stage.say(f"{self._crew.start(run.size).name} takes the place of {run.name}")
            return True

        stage.later(event.seconds, replace)
        return f"SIGTERM of {run.name}"


class Join:
    """One run more."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def happen(self, event: Event, stage: Stage) -> str | None:
        """As in Act."""
        return f"{self._crew.start(1).name} joins"


class Outage:
    """kill -9 of a server, or of one or two of several; later they start again."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = servers

    def happen(self, event: Event, stage: Stage) -> str | None:
        """As in Act."""
        if any(server.is_away for server in self._servers):
            return None  # one after the other
        victims = self._victims(event.victim)
        for server in victims:
            server.kill()

        def start() -> bool:
            for server in victims:
                stage.say(f"start of {server.title}")
                server.begin_start()
            return True

        stage.later(event.seconds, start)
        return f"kill -9 of {' and '.join(server.title for server in victims)} for {event.seconds:.1f} s"

    def _victims(self, victim: float) -> list[Server]:
        """The fraction that is left after the choice says whether there are two."""
        place = victim * len(self._servers)
        number = min(int(place), len(self._servers) - 1)
        two = len(self._servers) > 2 and place - number < SHARE_OF_TWO
        return [self._servers[(number + more) % len(self._servers)] for more in range(1 + two)]
