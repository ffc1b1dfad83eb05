"""What goes wrong in a run: a list made before it begins, so that it can be shortened.

Each trouble has a generator of its own. Whatever it breaks it mends before it ends.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from tests.simulation.virtual import Machine
from tests.simulation.world import GROUP, TOPIC, Process, World


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
        now += rng.choice([0.0, rng.uniform(0, 1), rng.uniform(0, 8)])
        made.append(Trouble(place, rng.choice(names), now))
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


async def _kill(world: World, rng: random.Random) -> None:
    """Before any step, and another one takes its place at once or later."""
    if (process := _take(world, rng)) is None:
        return
    died = asyncio.Event()

    def die() -> None:
        world.kill(process)
        died.set()

    world.deaths += 1
    loop = Machine.running()
    loop.at_step(loop.steps + rng.randrange(400), die)
    await died.wait()
    await asyncio.sleep(rng.choice([0.2, 0.5, 2, 15]))
    world.start(process.slot)


async def _kill_in_rebalance(world: World, rng: random.Random) -> None:
    """Somebody joins, and a member dies some steps after its group has begun to share out anew."""
    joined = world.start(100 + len(world.processes))
    joined.is_taken = True
    group = world.broker.group(GROUP)
    deadline = Machine.now() + 20
    while group.state == "stable" and Machine.now() < deadline:
        await asyncio.sleep(0.01)
    await _kill(world, rng)
    await asyncio.sleep(rng.uniform(0, 5))
    if not joined.has_ended:
        await world.stop(joined)


async def _kill_in_revocation(world: World, rng: random.Random) -> None:
    """Somebody joins, and a member dies when it has given partitions up, before it joins again."""
    joined = world.start(100 + len(world.processes))
    joined.is_taken = True
    deadline = Machine.now() + 20
    process = None
    while process is None and Machine.now() < deadline:
        await asyncio.sleep(0.001)
        owing = [one for one in world.alive if any(consumer.has_given_up for consumer in one.consumers)]
        process = next((one for one in owing if not (one.is_taken or one.is_stopping)), None)
    if process is not None:
        process.is_taken = True
        world.deaths += 1
        world.kill(process)
        await asyncio.sleep(rng.choice([0.2, 0.5, 2]))
        world.start(process.slot)
    await asyncio.sleep(rng.uniform(0, 90))
    if not joined.has_ended:
        await world.stop(joined)


async def _freeze(world: World, rng: random.Random) -> None:
    """SIGSTOP, and SIGCONT."""
    if (process := _take(world, rng)) is None:
        return
    world.deaths += 1
    process.is_frozen = True
    world.go_silent(process)
    await asyncio.sleep(rng.choice([0.5, 5, 12, 60]))
    process.is_frozen = process.is_taken = False
    if not process.is_dead:
        for consumer in process.consumers:
            consumer.group.heard_of(consumer)
        Machine.running().thaw(process)


async def _late(world: World, rng: random.Random) -> None:
    """Its event loop is blocked, and its threads go on."""
    if (process := _take(world, rng)) is None:
        return
    process.is_late = True
    await asyncio.sleep(rng.choice([0.1, 0.5, 2, 8, 60]))
    process.is_late = process.is_taken = False
    if not process.is_dead:
        Machine.running().thaw(process)


async def _stop(world: World, rng: random.Random) -> None:
    """SIGTERM, and another start."""
    if (process := _take(world, rng)) is None:
        return
    await world.stop(process)
    await asyncio.sleep(rng.choice([0, 1, 12]))
    world.start(process.slot)


async def _join(world: World, rng: random.Random) -> None:
    """One more process, for a while."""
    process = world.start(100 + len(world.processes))
    process.is_taken = True
    await asyncio.sleep(rng.uniform(0.2, 15))
    if not process.has_ended:
        await world.stop(process)


async def _expel(world: World, rng: random.Random) -> None:
    """The heartbeats of a member are lost; it goes on, and does not know."""
    members = list(world.broker.group(GROUP).members.values())
    world.deaths += 1
    for member in rng.sample(members, min(len(members), rng.choice([1, 1, 2]))):
        member.client.hear_end("its heartbeats were lost")
        world.broker.group(GROUP).leave(member.number)


async def _rebalance(world: World, rng: random.Random) -> None:
    """Without a reason."""
    for _ in range(rng.randrange(1, 4)):
        world.broker.group(GROUP)._prepare()
        await asyncio.sleep(rng.uniform(0, 3))


async def _broker_away(world: World, rng: random.Random) -> None:
    broker = world.broker
    if broker.is_down:
        return
    broker.down_since = Machine.now()
    await asyncio.sleep(rng.choice([0.5, 3, 9, 15]))
    broker.down_since = None


async def _commits(world: World, rng: random.Random) -> None:
    """Refused, without an answer, or slow."""
    broker = world.broker
    broker.refused, broker.unanswered, broker.slow = rng.random() / 2, rng.random() / 3, rng.random() / 2
    await asyncio.sleep(rng.uniform(1, 10))
    broker.refused = broker.unanswered = broker.slow = 0.0


async def _sink_away(world: World, rng: random.Random) -> None:
    name = rng.choice(world.sink_names)
    world.sinks_away.add(name)
    await asyncio.sleep(rng.choice([0.5, 5, 40]))
    world.sinks_away.discard(name)


async def _sink_odd(world: World, rng: random.Random) -> None:
    """Slow, retries, and what is written without an answer."""
    name = rng.choice(world.sink_names)
    world.sinks_odd.add(name)
    await asyncio.sleep(rng.uniform(1, 10))
    world.sinks_odd.discard(name)


async def _clock(_world: World, rng: random.Random) -> None:
    """Of all machines."""
    Machine.clock_error += rng.choice([-3600, -5, 5, 3600])


async def _partitions(world: World, _rng: random.Random) -> None:
    """One more."""
    world.broker.add_partition(TOPIC)


ACTS: dict[str, Act] = {
    "kill": _kill,
    "kill_in_rebalance": _kill_in_rebalance,
    "kill_in_revocation": _kill_in_revocation,
    "freeze": _freeze,
    "late": _late,
    "stop": _stop,
    "join": _join,
    "expel": _expel,
    "rebalance": _rebalance,
    "broker_away": _broker_away,
    "commits": _commits,
    "sink_away": _sink_away,
    "sink_odd": _sink_odd,
    "clock": _clock,
    "partitions": _partitions,
}
GROUPS = {
    "kills": ("kill", "kill", "kill_in_rebalance"),
    "stalls": ("freeze", "late"),
    "stops": ("stop",),
    "rebalances": ("join", "expel", "rebalance", "kill_in_rebalance", "kill_in_revocation"),
    "broker": ("broker_away", "commits", "partitions"),
    "sinks": ("sink_away", "sink_odd"),
    "clocks": ("clock",),
}
