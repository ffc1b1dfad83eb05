"""One run, from its number to its violations; and the shortest list of troubles that still fails."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import pickle
import random
import threading
import traceback
from itertools import chain
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.simulation.log import SimSeedLog
from tests.simulation.sites import SimSink
from tests.simulation.troubles import BESIDE, Operator, Trouble, happen, troubles_of
from tests.simulation.virtual import Machine, VirtualLoop, cpu_seconds, until
from tests.simulation.world import OTHER_SLOT, Listener, Plan, Process, World

from scrapy.settings import default_settings
from scrapy.utils.misc import load_object

from site_spider.page.url import site_of

TROUBLE_SECONDS = 3_000.0  # after that a trouble does not end
DONE_SECONDS = 900.0  # from the last trouble on
OWNED_SECONDS = 30.0  # from the last trouble of the group until each partition has an owner
HEARD_SECONDS = 20.0  # from the last order on until each process knows it
MOST_VIOLATIONS = 20
SHRINK_SECONDS = 120.0


# what Scrapy imports by name, and the list of public suffixes: each run would read them in its own process
site_of("host.test")
for _part in ("DOWNLOADER_MIDDLEWARES", "SPIDER_MIDDLEWARES", "EXTENSIONS", "DOWNLOAD_HANDLERS"):
    for _path in chain.from_iterable(getattr(default_settings, f"{_part}_BASE").items()):
        if isinstance(_path, str) and "." in _path:
            load_object(_path)


class Outcome(NamedTuple):
    number: int
    digest: str  # of all that has happened, in order
    violations: list[tuple[str, str]]
    pages: int
    steps: int
    virtual_seconds: float
    cpu_seconds: float
    lines: list[str]

    @property
    def kinds(self) -> set[str]:
        return {kind for kind, _ in self.violations}

    def __str__(self) -> str:
        seconds = f"{self.virtual_seconds:.0f} virtual seconds in {self.cpu_seconds:.2f} s of CPU"
        return f"{self.number}: {self.digest} {self.pages} pages, {self.steps} steps, {seconds}"


def run(number: int, troubles: Sequence[Trouble] | None = None, *, keeps_trace: bool = False) -> Outcome:
    """With the troubles of its number, if none are given; in a process of its own, which leaves nothing."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            with os.fdopen(writing, "wb") as answer:
                pickle.dump(_outcome(number, troubles, keeps_trace=keeps_trace), answer)
        except Exception:  # noqa: BLE001 - the other process has no answer then
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        told = answer.read()
    os.waitpid(child, 0)
    return Outcome(*pickle.loads(told))


def _outcome(number: int, troubles: Sequence[Trouble] | None, *, keeps_trace: bool) -> Outcome:
    gc.disable()
    began = cpu_seconds()
    random.seed(number)
    Machine.random = random.Random(f"{number}:product")
    world = World(Plan(number), keeps_trace=keeps_trace)
    SimSeedLog.broker, SimSink.world = world.broker, world
    rng = world.rng("workers")
    loop = VirtualLoop(lambda: rng.uniform(0.0, 0.003))
    asyncio.set_event_loop(loop)
    began_at = world.owned_at = loop.now
    loop.set_exception_handler(lambda _loop, context: world.violation("the loop caught", repr(context)[:300]))
    threading.excepthook = lambda args: world.violation("a thread died", repr(args.exc_value))
    logging.getLogger().addHandler(Listener(world))
    try:
        loop.run_until_complete(_story(world, troubles_of(number) if troubles is None else troubles))
    except Exception:  # noqa: BLE001 - so it is for whoever reads the outcome
        world.violation("the simulation failed", traceback.format_exc()[-800:])
    what = world.digest, world.violations, world.fetched, loop.steps, loop.now - began_at
    return Outcome(number, *what, cpu_seconds() - began, world.lines or [])


def shrunk(number: int, troubles: Sequence[Trouble]) -> list[Trouble]:
    """As few as still have a violation of the same kinds: one after the other is left out, the last ones first.

    Within SHRINK_SECONDS of CPU time; what is left then fails as well.
    """
    kinds, ends_at, left = run(number, troubles).kinds, cpu_seconds() + SHRINK_SECONDS, list(troubles)
    for trouble in reversed(troubles):
        without = [one for one in left if one != trouble]
        if cpu_seconds() <= ends_at and run(number, without).kinds & kinds:
            left = without
    return left


async def _story(world: World, troubles: Sequence[Trouble]) -> None:
    for topic in world.topics.tiers:
        world.broker.topic(topic)
    rng, loop = world.rng("start"), Machine.running()
    world.operators = [Operator(world, 990), Operator(world, 991)]
    producing = world.operators[0].start(world.operators[0].produce)
    for slot in range(world.plan.crawlers):
        world.start(slot)
        await asyncio.sleep(rng.choice([0.0, rng.uniform(0, 2)]))
    for slot in (OTHER_SLOT, OTHER_SLOT + 1) if "groups" in world.plan.extras else ():
        world.start(slot)
    under_way = [producing, *(loop.create_task(happen(world, trouble)) for trouble in troubles)]
    extras = () if world.plan.is_exactly_once else world.plan.extras
    under_way += [loop.create_task(act(world)) for name, act in BESIDE.items() if name in extras]
    if not await _supervised(world, TROUBLE_SECONDS, lambda: all(task.done() for task in under_way)):
        world.violation("a trouble does not end", "")
        return
    for task in under_way:
        task.result()
    settling = world.operators[0].start(world.operators[0].settle)
    if not await _supervised(world, DONE_SECONDS, lambda: settling.done() and _is_done(world)):
        ends = {task_id: world.truth.has_ended(task_id) for task_id in world.task_ids}
        world.violation("not done", f"lag {world.lag()}, {settling.done()}, {ends}")
    else:
        settling.result()
    if not world.violations:
        await _check_rest(world)
    has_moved = world.has_moved
    for process in world.alive:
        if not process.has_ended:
            await world.stop(process)
    world.has_moved = has_moved  # not to another process
    world.truth.check()


def _is_done(world: World) -> bool:
    ends = all(map(world.truth.has_ended, world.task_ids)) or not world.tells_ends
    return ends and not world.lag() and not world.truth.parked_for_good()


async def _supervised(world: World, seconds: float, is_over: Callable[[], bool]) -> bool:
    deadline = Machine.now() + seconds
    while not (is_done := is_over()) and Machine.now() <= deadline and len(world.violations) <= MOST_VIOLATIONS:
        await _supervise(world)
    return is_done


async def _supervise(world: World) -> None:
    """As crawl_spider.sh: what ends by itself is started again."""
    for process in world.alive:
        if process.has_ended and not (process.is_dead or process.is_stopping):
            await _ended(world, process)
        elif "idle" in world.plan.extras and process.has_work:
            process.busy_at = Machine.now()
    if not world.alive and (world.lag() or world.processes[-1].began_at < world.settled_at):
        world.start(0)
    await asyncio.sleep(0.25)
    for process in world.alive:
        if wrong := process.unbalanced():
            world.violation("conservation", f"{process.name}: {wrong}")
    group, topics, owners = world.group, world.topics.tiers, world.owners
    is_shared = group.is_settled(topics) and owners.total() == len(owners) == len(group.partitions(topics))
    if world.is_disturbed or is_shared:
        world.owned_at = Machine.now()
    elif Machine.now() - world.owned_at > OWNED_SECONDS:
        nobodys = [tuple(one) for one in sorted(group.unowned(topics))]
        kind = "two have a partition" if owners.total() > len(owners) else "nobody has a partition"
        world.violation(kind, f"{nobodys}, {group.state}, {[(*one, owners[one]) for one in sorted(owners)]}")


async def _ended(world: World, process: Process) -> None:
    """It is started again, unless it says that there were no seeds."""
    is_idle = process.crawler.stats.get_value("finish_reason") == "idle"
    if process.exit_code == 0 and not is_idle:
        world.violation("a process ended by itself", f"{process.name} {process.task.exception()!r}")
    world.ended(process)
    if not is_idle:
        await asyncio.sleep(1.0)
        world.start(process.slot)
    elif (seconds := Machine.now() - process.busy_at) < world.plan.settings["SITE_IDLE_CLOSE_SECONDS"]:
        world.violation("an end too soon", f"{process.name} after {seconds:.1f} s")
    elif not (world.alive or world.lag() or _is_done(world)) and Machine.now() - world.settled_at > HEARD_SECONDS:
        world.violation("an end is left", process.name)


async def _check_rest(world: World) -> None:
    """A process that has nothing to do holds nothing."""

    def left() -> dict[str, dict[str, int]]:
        return {one.name: held for one in world.alive if any((held := one.left()).values())}

    if not await until(lambda: not left(), 120, 1.0):
        world.violation("something is left", str(left()))
