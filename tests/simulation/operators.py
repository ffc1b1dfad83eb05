"""People of a run: who produces the seeds, and two who give orders at the same time."""

from __future__ import annotations

import asyncio
import contextvars
import json
import random
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from tests.simulation.log import SimSeedLog
from tests.simulation.virtual import PROCESS, Machine, sleep
from tests.simulation.world import Process

from site_spider.contracts.seed_log import SeedLog
from site_spider.dead_letters import Replay
from site_spider.errors import LogUnavailable
from site_spider.seed.seed import seed_message
from site_spider.tasks.control_log import TaskProducer
from site_spider.tasks.desk import TaskDesk
from site_spider.tasks.desk import TaskOrders
from site_spider.tasks.desk import PutBackTasks
from site_spider.tasks.record import BadTask, Task
from site_spider.tasks.follower import TaskTopics

if TYPE_CHECKING:
    from tests.simulation.world import World

SETTLE_SECONDS = 600.0


class Operator:
    """A person at a machine of its own; what it does blocks a thread there."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.topics = TaskTopics.read(world.settings)
        self._process = Process(world, number, number)
        self._process.member_name = ""

    def start(self, call: Callable[..., Any], *args: Any) -> asyncio.Task[Any]:
        context = contextvars.Context()
        context.run(PROCESS.set, self._process)
        return Machine.running().create_task(asyncio.to_thread(call, *args), context=context)

    def orders(self, task_id: str) -> TaskOrders:
        return TaskOrders(TaskDesk(SimSeedLog(), self.topics), task_id, may_be_new=True)

    # --- producing --------------------------------------------------------------------------------

    def produce(self) -> None:
        """All seeds, and some messages that are none; tasks are declared, and closed by their producer."""
        world, log, rng = self.world, SimSeedLog(), self.world.rng("producer")
        with closing(log.producer()) as producer:
            tasks = {task_id: self._declared(log, producer, task_id, rng) for task_id in world.task_ids}
            sent = []
            for number, (key, value, task_id) in enumerate(messages(world)):
                sent.append((task_id, producer.send(rng.choice(world.topics.tiers), key, value)))
                if number % 20 == 19:
                    sleep(rng.uniform(0, 0.5))
            world.truth.produced.update(task_id for task_id, _future in sent if task_id is not None)
            for task_id, future in sent:
                place = future.result()
                if task_id is not None and tasks[task_id] is not None:
                    tasks[task_id].sent(place)
            for task in tasks.values():
                if task is not None:
                    self._insist(lambda task=task: task.end(closes=rng.random() < 0.7))
        world.is_produced = True

    def _declared(self, log: SeedLog, producer: Any, task_id: str, rng: random.Random) -> Any:
        fields = rng.choice([{}, {}, {"max_pages": rng.randrange(1, 20)}, {"weight": 5}, {"rate": 20.0}])
        if rng.random() < 0.7:
            self._insist(lambda: self._declare(Task(task_id=task_id, **fields)))
        if not self.world.tells_ends:
            return None
        task = TaskProducer(log, producer, self.topics, task_id)
        self._insist(task.begin)
        return task

    def _declare(self, task: Task) -> None:
        TaskDesk(SimSeedLog(), self.topics).order(task.task_id, lambda _before: task)

    def _insist(self, call: Callable[[], object]) -> object:
        deadline, why = Machine.now() + SETTLE_SECONDS, ""
        while Machine.now() < deadline:
            try:
                return call()
            except LogUnavailable as error:
                why = str(error)
            sleep(1.0)
        return self.world.violation("an order is not taken", why)

    # --- orders -----------------------------------------------------------------------------------

    def order(self, verb: str, task_id: str) -> None:
        """One that may come too late, or fail."""
        world = self.world
        if verb == "cancel":
            world.truth.cancelled.add(task_id)
        if verb == "close" and not (world.tells_ends and world.is_produced):
            return  # it says that all producers have ended
        try:
            orders = self.orders(task_id)
            if verb == "budget":
                orders.change([f"max_pages={world.rng('budgets').randrange(1, 30)}"])
            else:
                getattr(orders, verb)()
        except (BadTask, LogUnavailable) as error:
            world.trace("refused", verb, task_id, str(error)[:60])

    def replay(self) -> None:
        """Dead letters are put back; what the sinks refused passes now."""
        self.world.truth.was_replayed = True
        self.world.sites.refused.clear()
        log, dead_letters = SimSeedLog(), self.world.topics.dead_letters
        tasks_of = lambda producer: PutBackTasks(log, producer, self.topics)  # noqa: E731
        self.world.truth.replayed_at = Machine.now()
        self._insist(lambda: Replay(log, dead_letters, lambda _message, _reason: None, tasks_of).run())

    def settle(self) -> None:
        """Every task goes on to its end, but for those that are cancelled."""
        for task_id in self.world.task_ids:
            self._insist(lambda task_id=task_id: self._finish(task_id))

    def _finish(self, task_id: str) -> None:
        verbs = {"change": ["max_pages="], "resume": None} | (
            {"close": None} if self.world.tells_ends else {}
        )
        for verb, argument in verbs.items():
            try:
                call = getattr(self.orders(task_id), verb)
                call(argument) if argument else call()
            except BadTask as error:
                self.world.trace("refused", verb, task_id, str(error)[:60])


def messages(world: World) -> list[tuple[bytes | None, bytes, str | None]]:
    """Key, value and task of what producers send, some of it no seeds."""
    rng = world.rng("messages")
    made: list[tuple[bytes | None, bytes, str | None]] = []
    for number, url in enumerate(world.sites.seeds):
        meta: dict[str, Any] = {"url_id": f"id{number}"} if rng.random() < 0.2 else {}
        task_id = rng.choice([None, *world.task_ids]) if world.task_ids else None
        meta |= {"task_id": task_id} if task_id is not None else {}
        made.append((*seed_message(json.dumps({"url": url, "meta": meta})), task_id))
    for bad in (b"{no seed", b'{"url": "nothing"}'):
        made.insert(rng.randrange(len(made) + 1), (b"x", bad, None))
    return made
