"""The loop of a run: lets events happen as the crawl goes on, until all is done.

Theory of operation. `_due` holds what happens later, as (moment, number, action): the end of a freeze,
the start of a server or of a run, events tied to an outage. Nothing here waits, so that events may
overlap.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tools.chaos.acts import Act
from tools.chaos.crew import Crew
from tools.chaos.happened import Happened
from tools.chaos.plan import Event, Kind
from tools.chaos.rebalances import Rebalances

ROUND_SECONDS = 0.15
SAY_SECONDS = 5.0
LOOK_AT_LAG_SECONDS = 1.0
QUIET_SECONDS = 5.0  # without a page; then the crawl may be at its end
STUCK_SECONDS = 120.0  # without a page, a change of the lag, or an outage


class Scene(Protocol):
    """What the storm sees of the crawl."""

    def share(self) -> float:
        """How much of it is done, from 0 to 1."""

    def progress(self) -> str:
        """The same in words."""

    def fetched(self) -> int:
        """How many different pages were fetched so far."""

    def is_fetched(self) -> bool:
        """Whether all pages were."""

    def lag(self) -> int | None:
        """What the group has not done; None when the log does not say."""


class Watched(Protocol):
    """Something that the storm looks after while it lasts."""

    @property
    def is_away(self) -> bool:
        """Whether the crawl cannot go on for its sake."""

    @property
    def waits_for(self) -> str:
        """What is still to come before the crawl is over; empty: nothing."""

    def look(self) -> None:
        """To be called in each round."""


class Storm:
    """Events that are to come, and what has come of them."""

    def __init__(
        self,
        scene: Scene,
        crew: Crew,
        acts: Mapping[Kind, Act],
        watched: Sequence[Watched],
        events: Sequence[Event],
        rebalances: Rebalances,
        tell: Callable[[str], None],
    ) -> None:
        self.happened = Happened()
        self._scene = scene
        self._crew = crew
        self._acts = acts
        self._watched = watched
        self._events = list(events)
        self._rebalances = rebalances
        self._tell = tell
        self._due: list[tuple[float, int, Callable[[], bool]]] = []
        self._numbers = itertools.count()
        self._fetched = 0
        self._began = self._grew_at = self._moved_at = self._said_at = self._asked_at = time.monotonic()
        self._lag: int | None = None
        self._waits_for = ""

    def run(self, timeout_seconds: float) -> None:
        """Return when the group has no lag and nothing is left to happen, or it is stuck."""
        deadline = time.monotonic() + timeout_seconds
        while not self._is_done() and not self._gives_up(deadline):
            self._look_after_runs()
            for each in self._watched:
                each.look()
            self._progress()
            self._let_happen()
            time.sleep(ROUND_SECONDS)
        self.happened.seconds = time.monotonic() - self._began
        self.happened.tail_seconds = time.monotonic() - self._grew_at

    def left(self) -> int:
        """How many events never came."""
        return len(self._events)

    # --- Stage --------------------------------------------------------------------------------

    def later(self, seconds: float, action: Callable[[], bool]) -> None:
        """As in Stage."""
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), action))

    def say(self, text: str) -> None:
        """As in Stage."""
        self._tell(f"{self._scene.share():4.0%}: {text}")

    # --- how far it is ------------------------------------------------------------------------

    def _look_after_runs(self) -> None:
        self._crew.look()
        for run in self._crew.start_again():
            self.happened.gave_up += 1
            self._tell(f"{run.name} gave up because a server is away; another one takes its place")

    def _progress(self) -> None:
        now, fetched = time.monotonic(), self._scene.fetched()
        waits_for = self._waiting()
        if fetched > self._fetched:
            self._grew_at = now
        if fetched > self._fetched or waits_for != self._waits_for or self._is_outage():
            self._moved_at = now
        self._fetched, self._waits_for = fetched, waits_for
        if now - self._said_at >= SAY_SECONDS:
            self._said_at = now
            crawlers = len(self._crew.crawlers())
            is_fresh = self._lag is not None and now - self._asked_at < SAY_SECONDS
            lag = f", lag {self._lag}" if is_fresh else ""
            self._tell(f"{self._scene.progress()}, {crawlers} crawlers{lag}")

    def _is_outage(self) -> bool:
        return any(each.is_away for each in self._watched)

    def _waiting(self) -> str:
        return ", ".join(each.waits_for for each in self._watched if each.waits_for)

    def _is_done(self) -> bool:
        """No lag; in two looks, the second one after everything else has settled."""
        now = time.monotonic()
        quiet = self._fetched > 0 and now - self._moved_at > QUIET_SECONDS
        ended = self._scene.is_fetched() or quiet
        if not ended or self._due or self._is_outage() or now - self._asked_at < LOOK_AT_LAG_SECONDS:
            return False
        self._asked_at, before = now, self._lag
        self._lag = self._scene.lag()
        if self._lag != before:
            self._moved_at = now
        return before == 0 and self._lag == 0 and not self._waiting()

    def _gives_up(self, deadline: float) -> bool:
        now = time.monotonic()
        waits = f", waiting for {self._waits_for}" if self._waits_for else ""
        if now - self._moved_at > STUCK_SECONDS:
            self.happened.wrong.append(f"stuck for {STUCK_SECONDS:.0f} s, lag {self._lag}{waits}")
        elif now > deadline:
            self.happened.wrong.append(f"not done in time, lag {self._scene.lag()}{waits}")
        else:
            return False
        return True

    # --- events -------------------------------------------------------------------------------

    def _let_happen(self) -> None:
        share = self._scene.share()
        while self._events and self._events[0].share <= share:
            event = self._events.pop(0)
            self.later(event.delay_seconds, lambda event=event: self._happens(event))  # type: ignore[misc]
        while self._due and self._due[0][0] <= time.monotonic():
            action = heapq.heappop(self._due)[2]
            if not action():
                self.later(ROUND_SECONDS, action)
        if told := self._rebalances.look(time.monotonic()):
            self.say(told)

    def _happens(self, event: Event) -> bool:
        told = self._acts[event.kind].happen(event, self)
        if told is None:
            return False
        self.happened.counts[event.kind] += 1
        self.say(told)
        return True
