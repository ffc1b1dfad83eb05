"""The parts of tasks that live as long as the crawl: opened, driven and closed together."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import InitVar, dataclass
from typing import Protocol

from site_spider import runtime
from site_spider.tasks.board import TimeLimits
from site_spider.tasks.ends import OverTasks, Teller
from site_spider.tasks.follower import Changed, Follower
from site_spider.tasks.gate import TaskGate
from site_spider.tasks.moving import Parking
from site_spider.tasks.rates import GroupRates
from site_spider.tasks.states import TaskStates
from site_spider.tasks.tracker import Control, Tracker

logger = logging.getLogger(__name__)

Duty = tuple[float, Callable[[], None]]  # seconds from one call to the next, and what is called


class Looking(Protocol):
    """What has a duty."""

    every_seconds: float

    def look(self) -> None:
        """Do it."""


@dataclass(kw_only=True)
class Tasks:
    """On the event loop's thread, but for `open` and `close`, which block.

    Without `tells_ends` (results and offsets are one transaction) no seed is counted, and no end is told.
    """

    states: TaskStates
    parking: Parking
    gate: TaskGate
    hear: Sequence[Changed]
    limits: TimeLimits
    rates: GroupRates
    control: Control
    tracker: Tracker
    teller: Teller
    over: OverTasks
    duties: dict[Duty, float]  # and when each is due
    follow: InitVar[Callable[[Changed], Follower]]
    tells_ends: bool

    def __post_init__(self, follow: Callable[[Changed], Follower]) -> None:
        self._follower = follow(self._heard)

    def open(self, timeout_seconds: float) -> None:
        """Read what was declared before. Raises ConfigError, LogUnavailable."""
        self._follower.open(timeout_seconds)
        self.limits.open()
        if self.tells_ends:
            self.over.make_log()

    def start(self) -> None:
        """Follow what is declared, and what is said of ends, from now on."""
        for hear in self.hear:
            hear([task.task_id for task in self.states.board])
        self._follower.start()
        if self.tells_ends:
            self.control.start()
        else:
            logger.info("The end of tasks is not told with SITE_KAFKA_EXACTLY_ONCE")

    def look(self) -> None:
        """To be called now and then."""
        now = asyncio.get_running_loop().time()
        for duty, due in self.duties.items():
            if now >= due:
                self.duties[duty] = now + duty[0]
                duty[1]()

    def count(self) -> None:
        """Write what was counted, and which ends are there; to be called often."""
        if self.tells_ends:
            self.tracker.look()
            self.teller.look()

    def is_counting(self) -> bool:
        """Whether seeds that are done wait to be counted."""
        return self.tells_ends and self.tracker.is_counting

    def tell(self) -> None:
        """Tell the other processes the rest."""
        self.rates.close()
        self.states.close()

    def close(self) -> None:
        """Follow no more."""
        self._follower.close()
        if self.tells_ends:
            self.teller.close()
            self.control.close()

    def _heard(self, task_ids: Collection[str]) -> None:
        changed = self.states.changed(task_ids)
        self.parking.changed(task_ids)
        for hear in self.hear:
            hear(task_ids)
        if changed:
            self.gate.changed(changed)
        self.gate.heard()


def process_name() -> str:
    """Of this process among all that write to the task topic."""
    return f"{socket.gethostname()}-{os.getpid()}-{runtime.token_hex(4)}"
