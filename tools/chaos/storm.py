"""The loop of a run: lets events happen as the crawl goes on, until all is done. Nothing here waits."""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter
from collections.abc import Sequence

from tools.chaos.acts import ACTS
from tools.chaos.plan import Event
from tools.chaos.stage import Stage

ROUND_SECONDS = 0.15
SAY_SECONDS = 5.0
LOOK_AT_LAG_SECONDS = 1.0
QUIET_SECONDS = 5.0  # without a page; then the crawl may be at its end
STUCK_SECONDS = 120.0  # without a page, a change of the lag, or an outage
EARLY_SECONDS = 300.0  # the caches of crawlers are filled then


class Storm:
    """Events that are to come, and what has come of them."""

    def __init__(self, stage: Stage, events: Sequence[Event]) -> None:
        self.counts: Counter[str] = Counter()  # of events, by act
        self.wrong: list[str] = []
        self.gave_up = 0  # runs that found a server away at their start
        self.rebalances = 0
        self.seconds = self.tail_seconds = 0.0  # in all, and from the last new page to the end
        self.early_mb: list[int] = []  # memory of crawlers, of runs that are long enough
        self.last_mb: list[int] = []
        self.left = list(events)  # events that have not come
        self._stage = stage
        self._fetched = 0
        self._began = self._grew_at = self._moved_at = self._said_at = self._asked_at = time.monotonic()
        self._lag: int | None = None
        self._waits_for = ""
        self._rng = random.Random(f"rebalances {stage.options.random_seed}")
        self._rebalance_at = self._began + stage.options.rebalance_every

    def run(self) -> None:
        """Return when the group has no lag and nothing is left to happen, or it is stuck."""
        stage, deadline = self._stage, time.monotonic() + self._stage.options.timeout
        stage.crew.start_all(stage.options.processes)
        while not self._is_done() and not self._gives_up(deadline):
            for run in stage.crew.look():
                self.gave_up += 1
                stage.tell(f"{run.name} gave up because a server is away; another one takes its place")
            stage.look()
            self._progress()
            self._let_happen()
            time.sleep(ROUND_SECONDS)
        now = time.monotonic()
        self.seconds, self.tail_seconds = now - self._began, now - self._grew_at
        self.last_mb = [crawler.resident_bytes() // 1_000_000 for _, crawler in stage.crew.crawlers()]

    def _progress(self) -> None:
        stage, now = self._stage, time.monotonic()
        fetched = len(stage.site.read_on())
        waits_for = ", ".join(each.waits_for for each in stage.watched if each.waits_for)
        if fetched > self._fetched:
            self._grew_at = now
        if fetched > self._fetched or waits_for != self._waits_for or stage.away:
            self._moved_at = now
        self._fetched, self._waits_for = fetched, waits_for
        crawlers = [crawler for _, crawler in stage.crew.crawlers()]
        if not self.early_mb and now - self._began >= EARLY_SECONDS:
            self.early_mb = [crawler.resident_bytes() // 1_000_000 for crawler in crawlers]
        if now - self._said_at >= SAY_SECONDS:
            self._said_at = now
            is_fresh = self._lag is not None and now - self._asked_at < SAY_SECONDS
            lag = f", lag {self._lag}" if is_fresh else ""
            stage.tell(f"{stage.progress()}, {len(crawlers)} crawlers{lag}")

    def _is_done(self) -> bool:
        """No lag; in two looks, the second one after everything else has settled."""
        stage, now = self._stage, time.monotonic()
        quiet = self._fetched > 0 and now - self._moved_at > QUIET_SECONDS
        ended = quiet or stage.is_fetched()
        if not ended or stage.due or stage.away or now - self._asked_at < LOOK_AT_LAG_SECONDS:
            return False
        self._asked_at, before = now, self._lag
        self._lag = stage.lag()
        if self._lag != before:
            self._moved_at = now
        return before == 0 and self._lag == 0 and not any(each.waits_for for each in stage.watched)

    def _gives_up(self, deadline: float) -> bool:
        now = time.monotonic()
        waits = f", waiting for {self._waits_for}" if self._waits_for else ""
        if now - self._moved_at > STUCK_SECONDS:
            self.wrong.append(f"stuck for {STUCK_SECONDS:.0f} s, lag {self._lag}{waits}")
        elif now > deadline:
            self.wrong.append(f"not done in time, lag {self._stage.lag()}{waits}")
        else:
            return False
        return True

    def _let_happen(self) -> None:
        stage = self._stage
        share = stage.share()
        while self.left and self.left[0].share <= share:
            event = self.left.pop(0)
            stage.later(event.delay_seconds, lambda event=event: self._happens(event))  # type: ignore[misc]
        while stage.due and stage.due[0][0] <= time.monotonic():
            action = heapq.heappop(stage.due)[2]
            if not action():
                stage.later(ROUND_SECONDS, action)
        if stage.options.rebalance_every and time.monotonic() >= self._rebalance_at:
            self._rebalance()

    def _happens(self, event: Event) -> bool:
        told = ACTS[event.name].happen(self._stage, event)
        if told is None:
            return False
        self.counts[event.name] += 1
        self._stage.say(told)
        return True

    def _rebalance(self) -> None:
        """A member joins, the next time another one leaves, and so on: never fewer than at the beginning."""
        crew = self._stage.crew
        if self.rebalances % 2 == 0:
            told = f"{crew.start(1).name} joins"
        elif alone := [run for run in crew.working() if run.size == 1]:
            run = self._rng.choice(alone)
            run.terminate()
            told = f"{run.name} leaves (SIGTERM)"
        else:
            return  # again in the next round
        self.rebalances += 1
        self._rebalance_at = max(self._rebalance_at + self._stage.options.rebalance_every, time.monotonic())
        self._stage.say(f"rebalance {self.rebalances}: {told}")
