"""What goes wrong in a run: a list made before it begins, so that it can be shortened.

Each trouble has a generator of its own. Whatever it breaks it mends before it ends.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from tests.simulation.virtual import Machine
from tests.simulation.world import Process, World


@dataclass(frozen=True)
class Trouble:
    """One, by its place in the whole list."""

    place: int
    kind: str
    after_seconds: float  # from the beginning


Act = Callable[[World, random.Random], Awaitable[None]]


def troubles_of(number: int, kinds: Iterable[str] = ()) -> list[Trouble]:
    """Those of a run; only these kinds, if any are named."""
    rng = random.Random(f"{number}:troubles")
    names = [name for kind in kinds or GROUPS for name in GROUPS.get(kind, (kind,))]
    now, made = 0.0, []
    for place in range(rng.choice([3, 5, 8, 12])):
        kind = rng.choice(names)
        now += rng.choice([0.0, rng.uniform(0, 1), rng.uniform(0, 8)])
        made.append(Trouble(place, kind, now))
    return made


async def happen(world: World, trouble: Trouble) -> None:
    """At its time."""
    await asyncio.sleep(trouble.after_seconds)
    world.trace("trouble", trouble.kind)
    await ACTS[trouble.kind](world, random.Random(f"{world.plan.number}:trouble:{trouble.place}"))


def _take(world: World, rng: random.Random) -> Process | None:
    """A process that no other trouble has."""
    free = [one for one in world.alive if not (one.is_taken or one.is_stopping or one.has_ended)]
    if not free:
        return None
    process = rng.choice(free)
    process.is_taken = True
    return process


async def _die(world: World, process: Process | None, rng: random.Random, steps: int = 400) -> None:
    """Before any step; the same, or another, takes its place at once or later."""
    if process is None:
        return
    process.is_taken = True
    died = asyncio.Event()

    def die() -> None:
        world.kill(process)
        died.set()

    world.deaths += 1
    loop = Machine.running()
    loop.at_step(loop.steps + rng.randrange(steps), die)
    await died.wait()
    await asyncio.sleep(rng.choice([0.2, 0.5, 2, 15]))
    world.start(process.slot if rng.random() < 0.8 else 100 + len(world.processes))


@asynccontextmanager
async def _guest(world: World, rng: random.Random, *stays: float) -> AsyncIterator[None]:
    """One more process, which goes after a while."""
    process = world.start(100 + len(world.processes))
    process.is_taken = True
    yield
    await asyncio.sleep(rng.uniform(*stays))
    await _go(world, process)


async def _go(world: World, process: Process) -> None:
    if not process.has_ended:
        await world.stop(process)


async def _until(seconds: float, is_so: Callable[[], object]) -> None:
    deadline = Machine.now() + seconds
    while not is_so() and Machine.now() < deadline:
        await asyncio.sleep(0.001)


async def _kill(world: World, rng: random.Random) -> None:
    await _die(world, _take(world, rng), rng)


async def _kill_in_rebalance(world: World, rng: random.Random) -> None:
    """Somebody joins, and a member dies some steps after its group has begun to share out anew."""
    async with _guest(world, rng, 0, 5):
        await _until(20, lambda: world.group.state != "stable")
        await _die(world, _take(world, rng), rng)


async def _kill_in_revocation(world: World, rng: random.Random) -> None:
    """Somebody joins, and a member dies when it has given partitions up, before it joins again."""

    def owing() -> Process | None:
        owe = [one for one in world.alive if any(consumer.has_given_up for consumer in one.consumers)]
        return next((one for one in owe if not (one.is_taken or one.is_stopping)), None)

    async with _guest(world, rng, 0, 90):
        await _until(20, owing)
        if (process := owing()) is not None:
            process.is_taken = True
            world.deaths += 1
            world.kill(process)
            await asyncio.sleep(rng.choice([0.2, 0.5, 2]))
            world.start(process.slot)


async def _stop_in_rebalance(world: World, rng: random.Random) -> None:
    async with _guest(world, rng, 0, 5):
        process = _take(world, rng)
        await _until(20, lambda: world.group.state != "stable")
        if process is not None:
            await asyncio.sleep(rng.uniform(0, 0.5))
            await _go(world, process)
            world.start(process.slot)


async def _hold_up(world: World, rng: random.Random, state: str, seconds: Sequence[float]) -> None:
    """It stands still (SIGSTOP, and SIGCONT), or its event loop is blocked and its threads go on."""
    if (process := _take(world, rng)) is None:
        return
    setattr(process, state, True)
    if process.is_frozen:
        world.deaths += 1
        world.go_silent(process)
    await asyncio.sleep(rng.choice(seconds))
    was_frozen, process.is_frozen = process.is_frozen, False
    process.is_late = process.is_taken = False
    if not process.is_dead:
        for consumer in process.consumers if was_frozen else ():
            consumer.group.heard_of(consumer)
        Machine.running().thaw(process)


async def _stop(world: World, rng: random.Random) -> None:
    """SIGTERM, and another start."""
    if (process := _take(world, rng)) is None:
        return
    await world.stop(process)
    await asyncio.sleep(rng.choice([0, 1, 12]))
    world.start(process.slot)


async def _join(world: World, rng: random.Random) -> None:
    async with _guest(world, rng, 0.2, 15):
        pass


async def _expel(world: World, rng: random.Random) -> None:
    """The heartbeats of a member are lost; it goes on, and does not know."""
    members = list(world.group.members.values())
    world.deaths += 1
    for member in rng.sample(members, min(len(members), rng.choice([1, 1, 2]))):
        member.client.hear_end("its heartbeats were lost")
        world.group.leave(member.number)


async def _rebalance(world: World, rng: random.Random) -> None:
    """Without a reason."""
    for _ in range(rng.randrange(1, 4)):
        world.group._prepare()
        await asyncio.sleep(rng.uniform(0, 3))


async def _broker_away(world: World, rng: random.Random) -> None:
    broker = world.broker
    if broker.is_down:
        return
    broker.down_since = Machine.now()
    await asyncio.sleep(rng.choice([0.5, 3, 9, 15]))
    broker.down_since = None


async def _leaders_away(world: World, rng: random.Random) -> None:
    """No message is taken, but commits are; a process may die meanwhile."""
    broker = world.broker
    broker.takes_messages = False
    seconds = rng.uniform(1, 12)
    await asyncio.sleep(seconds / 2)
    death = asyncio.create_task(_die(world, _take(world, rng) if rng.random() < 0.7 else None, rng))
    await asyncio.sleep(seconds / 2)
    broker.takes_messages = True
    await death


async def _commits(world: World, rng: random.Random) -> None:
    """Refused, without an answer, or slow."""
    broker = world.broker
    broker.refused, broker.unanswered, broker.slow = rng.random() / 2, rng.random() / 3, rng.random() / 2
    await asyncio.sleep(rng.uniform(1, 10))
    broker.refused = broker.unanswered = broker.slow = 0.0


async def _sink(world: World, rng: random.Random, mode: str) -> None:
    modes = world.sinks[rng.choice(sorted(world.sinks))]
    modes[mode] += 1
    await asyncio.sleep(rng.choice([0.5, 5, 40]) if mode == "away" else rng.uniform(1, 10))
    modes[mode] -= 1
    if not modes[mode]:
        del modes[mode]


async def _clock(world: World, rng: random.Random) -> None:
    """Of all machines, or of one."""
    world.have_clocks_jumped = True
    process = rng.choice([None, *world.alive])
    for each in world.alive if process is None else [process]:
        each.clock_error += rng.choice([-3600, -5, 5, 3600])


async def _partitions(world: World, rng: random.Random) -> None:
    """One more."""
    world.were_partitions_added = True
    world.broker.add_partition(rng.choice(world.topics.tiers))


async def _order(world: World, rng: random.Random, verb: str) -> None:
    """One of two operators gives it, and sometimes the other gives another one at the same time."""
    if not world.task_ids:
        return
    given = [world.operators[0].start(world.operators[0].order, verb, rng.choice(world.task_ids))]
    if rng.random() < 0.3:
        other, task_id = rng.choice(["pause", "resume", "budget"]), rng.choice(world.task_ids)
        await asyncio.sleep(rng.choice([0.0, 0.005, 0.1]))
        given.append(world.operators[1].start(world.operators[1].order, other, task_id))
    await asyncio.gather(*given)


async def _replay(world: World, _rng: random.Random) -> None:
    await world.operators[1].start(world.operators[1].replay)


_ALL = [_kill, _kill_in_rebalance, _kill_in_revocation, _stop, _stop_in_rebalance, _join, _expel, _rebalance]
_ALL += [_broker_away, _leaders_away, _commits, _clock, _partitions, _replay]
ACTS: dict[str, Act] = {act.__name__[1:]: act for act in _ALL}
ACTS["freeze"] = partial(_hold_up, state="is_frozen", seconds=(0.5, 5, 12, 60))
ACTS["late"] = partial(_hold_up, state="is_late", seconds=(0.1, 0.5, 2, 8, 60))
MODES = ("away", "slow", "partial", "mute")
VERBS = ("pause", "resume", "cancel", "close", "budget")
ACTS |= {f"sink_{mode}": partial(_sink, mode=mode) for mode in MODES}
ACTS |= {f"task_{verb}": partial(_order, verb=verb) for verb in VERBS}
GROUPS = {
    "kills": ("kill", "kill", "kill_in_rebalance", "leaders_away"),
    "stalls": ("freeze", "late"),
    "stops": ("stop", "stop_in_rebalance"),
    "rebalances": ("join", "expel", "rebalance", "kill_in_rebalance", "kill_in_revocation"),
    "broker": ("broker_away", "leaders_away", "commits", "partitions"),
    "sinks": tuple(f"sink_{mode}" for mode in MODES),
    "tasks": (*(f"task_{verb}" for verb in VERBS), "task_pause", "task_resume"),
    "letters": ("replay",),
    "clocks": ("clock",),
}
