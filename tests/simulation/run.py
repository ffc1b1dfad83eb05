"""One run, from its number to its violations; and the shortest list of troubles that still fails."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import random
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.simulation import virtual
from tests.simulation.log import SimSeedLog
from tests.simulation.troubles import Trouble, happen, troubles_of
from tests.simulation.virtual import PROCESS, Machine
from tests.simulation.world import GROUP, TOPIC, Listener, Plan, Process, SimSink, World, loop_of, produce

TROUBLE_SECONDS = 3_000.0  # after that a trouble does not end
DONE_SECONDS = 1_800.0  # from the last trouble on
OWNED_SECONDS = 45.0  # a partition without an owner, while no rebalance is under way
MOST_VIOLATIONS = 20


@dataclass(frozen=True)
class Outcome:
    """What became of a run."""

    number: int
    digest: str  # of all that has happened, in order
    violations: tuple[tuple[str, str], ...]
    pages: int
    steps: int
    virtual_seconds: float
    cpu_seconds: float
    lines: tuple[str, ...]

    @property
    def kinds(self) -> set[str]:
        return {kind for kind, _ in self.violations}


def run(
    number: int, troubles: Sequence[Trouble] | None = None, *, keeps_trace: bool = False, **how: Any
) -> Outcome:
    """`how`: pays_owed_joins, for a log whose members do not."""
    began = virtual.cpu_seconds()
    gc.disable()
    random.seed(number)
    Machine.random = random.Random(f"{number}:product")
    Machine.clock_error = 0.0
    world = World(Plan.of(number), keeps_trace=keeps_trace)
    SimSeedLog.broker, SimSink.world = world.broker, world
    world.broker.pays_owed_joins = how.get("pays_owed_joins", True)
    loop = loop_of(world)
    loop.set_exception_handler(lambda _loop, context: world.violation("the loop caught", repr(context)[:300]))
    listener, hook = Listener(world), threading.excepthook
    threading.excepthook = lambda args: world.violation("a thread died", repr(args.exc_value))
    logging.getLogger().addHandler(listener)
    try:
        loop.run_until_complete(_story(world, troubles_of(number) if troubles is None else troubles))
    except Exception as error:  # noqa: BLE001 - so it is for whoever reads the outcome
        world.violation("the simulation failed", repr(error))
    finally:
        world.is_over = True
        threading.excepthook = hook
        logging.getLogger().removeHandler(listener)
    seconds = loop.now - 1_000.0
    _bury(world)
    return Outcome(
        number=number,
        digest=world.digest,
        violations=tuple(world.violations),
        pages=world.fetched,
        steps=loop.steps,
        virtual_seconds=seconds,
        cpu_seconds=virtual.cpu_seconds() - began,
        lines=tuple(world.lines or ()),
    )


def shrunk(number: int, troubles: Sequence[Trouble], **how: Any) -> list[Trouble]:
    """As few as still have a violation of the same kinds: halves are left out, then single ones."""
    kinds = run(number, troubles, **how).kinds
    left, size = list(troubles), max(1, len(troubles) // 2)
    while kinds:
        begin = 0
        while begin < len(left):
            without = left[:begin] + left[begin + size :]
            if run(number, without, **how).kinds & kinds:
                left = without
            else:
                begin += size
        if size == 1:
            break
        size //= 2
    return left


async def _story(world: World, troubles: Sequence[Trouble]) -> None:
    world.broker.topic(TOPIC)
    rng = world.rng("start")
    producer = Process(world, 999, 999)
    context = contextvars.Context()
    context.run(PROCESS.set, producer)
    loop = Machine.running()
    producing = loop.create_task(asyncio.to_thread(produce, world), context=context)
    for slot in range(world.plan.crawlers):
        world.start(slot)
        await asyncio.sleep(rng.choice([0.0, rng.uniform(0, 2)]))
    under_way = [producing, *(loop.create_task(happen(world, trouble)) for trouble in troubles)]
    deadline = Machine.now() + TROUBLE_SECONDS
    while not all(task.done() for task in under_way):
        if Machine.now() > deadline or len(world.violations) > MOST_VIOLATIONS:
            world.violation("a trouble does not end", "")
            return
        await _supervise(world)
    for task in under_way:
        task.result()
    healed = Machine.now()
    while world.lag():
        if Machine.now() > healed + DONE_SECONDS or len(world.violations) > MOST_VIOLATIONS:
            world.violation("not done", f"lag {world.lag()}")
            break
        await _supervise(world)
    if not world.violations:
        await _check_rest(world)
    for process in world.alive:
        if not process.has_ended:
            await world.stop(process)
    _check_documents(world)


async def _supervise(world: World) -> None:
    """As crawl_spider.sh: what ends by itself is started again."""
    for process in world.alive:
        if process.has_ended and not process.is_stopping:
            if process.exit_code == 0:
                world.violation("a process ended by itself", process.name)
            world.ended(process)
            await asyncio.sleep(1.0)
            world.start(process.slot)
    await asyncio.sleep(0.25)
    group, broker = world.broker.group(GROUP), world.broker
    if broker.is_down or not group.members or group.state != "stable" or not group.unowned([TOPIC]):
        world.owned_at = Machine.now()
    elif Machine.now() - world.owned_at > OWNED_SECONDS:
        nobodys = sorted(one.number for one in group.unowned([TOPIC]))
        world.violation("nobody has a partition", str(nobodys))


async def _check_rest(world: World) -> None:
    """A process that has nothing to do holds nothing."""
    deadline = Machine.now() + 120
    while True:
        left = {one.name: one.left() for one in world.alive if one.is_open}
        if not any(count for held in left.values() for count in held.values()):
            return
        if Machine.now() > deadline:
            world.violation("something is left", str(left))
            return
        await asyncio.sleep(1.0)


def _check_documents(world: World) -> None:
    truth = world.truth
    innocent = {
        where
        for where, reason in truth.dead_letters.items()
        if "the process died" in reason and world.deaths >= 5
    }
    spared = {url for url, places in truth.places.items() for part, at in places if (*part, at) in innocent}
    for url, page in world.pages.items():
        if (
            url in world.refused
            or _is_below(world, url, spared)
            or any(p.target == url for p in world.pages.values())
        ):
            continue
        document = truth.documents.get(url)
        if document is None or truth.stored[url] < set(world.sink_names):
            world.violation("lost", url)
            continue
        wanted = world.pages[page.target].status if page.target else page.status
        if document.get("status") != wanted:
            found = f"{document.get('status')} {document.get('description')}"
            world.violation("a wrong document", f"{url}: {found}, not {wanted}")
    for where in truth.no_seeds - set(truth.dead_letters):
        world.violation("no dead letter", str(where))
    for where, reason in truth.dead_letters.items():
        if where not in truth.no_seeds and where not in innocent and "refused by the sink" not in reason:
            world.violation("a dead letter for no reason", f"{where}: {reason}")


def _is_below(world: World, url: str | None, roots: set[str]) -> bool:
    while url is not None:
        if url in roots:
            return True
        url = world.pages[url].parent
    return False


def _bury(world: World) -> None:
    """What the dead leave behind may clean up now; nothing of it has an effect."""
    loop, hook = Machine.running(), sys.unraisablehook
    sys.unraisablehook = lambda _args: None
    logging.disable(logging.CRITICAL)
    try:
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        for process in world.processes:
            process.is_dead = True
            process.crawler = process.task = None
            process.kept.clear()
            process.consumers.clear()
        for thread in loop.threads:
            thread.is_parked = False
        loop.threads.clear()
        loop.buried.clear()
        loop._ready.clear()
        loop._scheduled.clear()
        loop._closed = True  # type: ignore[attr-defined]
        world.broker.readers.clear()
        world.broker.groups.clear()
        gc.collect()
    finally:
        Machine.loop = None
        sys.unraisablehook = hook
        logging.disable(logging.NOTSET)
