"""The parts of tasks that live as long as the crawl: opened, driven and closed together."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Collection

from site_spider import runtime
from site_spider.tasks.clock import TimeLimits
from site_spider.tasks.follower import Changed, Follower
from site_spider.tasks.gate import TaskGate
from site_spider.tasks.overtaking import Overtaking
from site_spider.tasks.parking import Parking
from site_spider.tasks.rates import GroupRates
from site_spider.tasks.return_watch import ReturnWatch
from site_spider.tasks.states import TaskStates


class Tasks:
    """On the event loop's thread, but for `open` and `close`, which block."""

    def __init__(
        self,
        states: TaskStates,
        parking: Parking,
        gate: TaskGate,
        watch: ReturnWatch,
        limits: TimeLimits,
        rates: GroupRates,
        overtaking: Overtaking | None,
        follower: Callable[[Changed], Follower],
    ) -> None:
        self._states = states
        self._parking = parking
        self._gate = gate
        self._watch = watch
        self._limits = limits
        self._rates = rates
        self._overtaking = overtaking
        self._follower = follower(self._heard)

    def open(self, timeout_seconds: float) -> None:
        """Read what was declared before. Raises LogUnavailable."""
        self._follower.open(timeout_seconds)
        self._limits.open()

    def start(self) -> None:
        """Follow what is declared from now on."""
        self._watch.heard([task.task_id for task in self._states.board])
        self._follower.start()

    def look(self) -> None:
        """To be called now and then."""
        self._states.look()
        self._limits.look()
        self._watch.look()
        self._rates.look(asyncio.get_running_loop().time())
        if self._overtaking is not None:
            self._overtaking.look()

    def tell(self) -> None:
        """Tell the other processes the rest."""
        self._rates.close()
        self._states.close()

    def close(self) -> None:
        """Follow no more."""
        self._follower.close()

    def _heard(self, task_ids: Collection[str]) -> None:
        changed = self._states.changed(task_ids)
        self._parking.changed(task_ids)
        self._watch.heard(task_ids)
        if changed:
            self._gate.changed(changed)
        self._gate.heard()


def process_name() -> str:
    """Of this process among all that write to the task topic."""
    return f"{socket.gethostname()}-{os.getpid()}-{runtime.token_hex(4)}"
