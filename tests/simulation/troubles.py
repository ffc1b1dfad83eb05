"""What goes wrong in a run: a list made before it begins, so that it can be shortened; and its people.

Each trouble has a generator of its own. Whatever it breaks it mends before it ends. One operator produces
the seeds, and two give orders at the same time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from tests.simulation.log import SimSeedLog
from tests.simulation.virtual import EPOCH, Machine, sleep, until
from tests.simulation.world import Process, World

from site_spider.dead_letter_replay import Replay
from site_spider.errors import LogUnavailable
from site_spider.seed.tiers import CrawlTopics
from site_spider.service.seed_producer import SeedProducer
from site_spider.tasks.orders import TaskDesk, TaskOrders
from site_spider.tasks.declaration import BadTask, Task

SETTLE_SECONDS = 600.0


class Trouble(NamedTuple):
    place: int  # in the whole list
    kind: str
    after_seconds: float  # from the beginning


Act = Callable[[World, random.Random], Awaitable[object]]


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
    process = rng.choice(free) if free else None
    if process is not None:
        process.is_taken = True
    return process


async def _die(world: World, process: Process | None, rng: random.Random) -> None:
    """Before any step; the same, or another, takes its place at once or later."""
    if process is None:
        return
    died = asyncio.Event()
    world.deaths += 1
    Machine.running().after_steps(rng.randrange(400), lambda: (world.kill(process), died.set()))
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
    await world.stop(process)


async def _to_one(world: World, rng: random.Random, what: Callable[..., Awaitable[None]]) -> None:
    await what(world, _take(world, rng), rng)


async def _in_rebalance(world: World, rng: random.Random, what: Callable[..., Awaitable[None]]) -> None:
    """Somebody joins, and a member dies, or stops, some steps after its group has begun to share out anew."""
    async with _guest(world, rng, 0, 5):
        await until(lambda: world.group.state != "stable")
        await what(world, _take(world, rng), rng)


async def _kill_in_revocation(world: World, rng: random.Random) -> None:
    """Somebody joins, and a member dies when it has given partitions up, before it joins again."""

    def owing() -> Process | None:
        owe = [one for one in world.alive if any(consumer.has_given_up for consumer in one.consumers)]
        return next((one for one in owe if not (one.is_taken or one.is_stopping)), None)

    async with _guest(world, rng, 0, 90):
        if (process := await until(owing)) is not None:
            world.deaths += 1
            world.kill(process)
            await asyncio.sleep(rng.choice([0.2, 0.5, 2]))
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
    process.lost_at = Machine.now()  # if anything: it hears of it now
    if not process.is_dead:
        for consumer in process.consumers if was_frozen else ():
            consumer.group.heard_of(consumer)
        Machine.running().thaw(process)


async def _restart(world: World, process: Process | None, rng: random.Random) -> None:
    """SIGTERM, and another start."""
    if process is not None:
        await asyncio.sleep(rng.uniform(0, 0.5))
        await world.stop(process)
        await asyncio.sleep(rng.choice([0, 1, 12]))
        world.start(process.slot)


async def _join(world: World, rng: random.Random) -> None:
    async with _guest(world, rng, 0.2, 15):
        pass


async def _expel(world: World, rng: random.Random) -> None:
    """The heartbeats of a member are lost; it goes on, and does not know for a while."""
    members = list(world.group.members.values())
    world.deaths += 1
    for member in rng.sample(members, min(len(members), rng.choice([1, 1, 2]))):
        knows_after = rng.choice([0.0, rng.uniform(0, 5)])
        member.client.arrive(knows_after, member.client.is_out, member.client.number)
        world.group.leave(member.number)


async def _rebalance(world: World, rng: random.Random) -> None:
    """Without a reason."""
    for _ in range(rng.randrange(1, 4)):
        world.group.rebalance()
        await asyncio.sleep(rng.uniform(0, 3))


async def _broker_away(world: World, rng: random.Random) -> None:
    if not world.broker.is_down:
        world.broker.down_since = Machine.now()
        await asyncio.sleep(rng.choice([0.5, 3, 9, 15]))
        world.broker.down_since = None


async def _leaders_away(world: World, rng: random.Random) -> None:
    """No message is taken, but commits are; a task may have been paused, and a process may die meanwhile."""
    if rng.random() < 0.5:
        await _order(world, rng, "pause")
    world.broker.takes_messages = False
    seconds = rng.uniform(1, 12)
    await asyncio.sleep(seconds / 2)
    death = asyncio.create_task(_die(world, _take(world, rng) if rng.random() < 0.7 else None, rng))
    await asyncio.sleep(seconds / 2)
    world.broker.takes_messages = True
    await death


async def _commits(world: World, rng: random.Random) -> None:
    """Refused, without an answer, lost on their way, or slow."""
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


async def _marks_away(world: World, rng: random.Random) -> None:
    world.marks_are_away = True
    await asyncio.sleep(rng.choice([0.5, 5, 40]))
    world.marks_are_away = False


async def _clock(world: World, rng: random.Random) -> None:
    """Of all machines, or of one."""
    world.have_clocks_jumped = True
    process = rng.choice([None, *world.alive])
    for each in world.alive if process is None else [process]:
        each.clock_error += rng.choice([-3600, -5, 5, 3600])


async def _partitions(world: World, rng: random.Random) -> None:
    """One more."""
    world.broker.topic(rng.choice(world.topics.tiers), more=1)


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


async def _change(world: World, rng: random.Random) -> None:
    """Pages change, and are asked for again, as some others are."""
    await world.operators[1].start(world.operators[1].check_again, rng)


async def _replay(world: World, _rng: random.Random) -> None:
    await world.operators[1].start(world.operators[1].replay)


_ALL: list[Act] = [_kill_in_revocation, _join, _expel, _rebalance, _broker_away, _leaders_away]
_ALL += [_commits, _clock, _partitions, _change, _replay, _marks_away]
ACTS: dict[str, Act] = {act.__name__[1:]: act for act in _ALL}  # type: ignore[attr-defined]
for _name, _what in (("kill", _die), ("stop", _restart)):
    ACTS |= {_name: partial(_to_one, what=_what), f"{_name}_in_rebalance": partial(_in_rebalance, what=_what)}
ACTS["freeze"] = partial(_hold_up, state="is_frozen", seconds=(0.5, 5, 12, 60))
ACTS["late"] = partial(_hold_up, state="is_late", seconds=(0.1, 0.5, 2, 8, 60))
MODES = ("away", "slow", "partial", "mute")
VERBS = ("pause", "resume", "cancel", "close", "budget", "expire")
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
    "changes": ("change", "change"),
    "marks": ("marks_away",),
}


class Operator:
    """A person at a machine of its own; what it does blocks a thread there."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.topics = CrawlTopics.beside(world.settings)
        self._process = Process(world, number, number)
        self._process.member_name = ""

    def start(self, call: Callable[..., Any], *args: Any) -> asyncio.Task[Any]:
        return self._process.run(asyncio.to_thread(call, *args))

    @property
    def _desk(self) -> TaskDesk:
        """With all that the topic says now."""
        return TaskDesk(SimSeedLog(), self.topics)

    def _give(self, task_id: str, verb: str, *what: Any) -> None:
        try:
            getattr(TaskOrders(self._desk, task_id, may_be_new=True), verb)(*what)
        except BadTask as error:
            self.world.trace("refused", verb, task_id, str(error)[:60])

    def _insist(self, call: Callable[[], Any]) -> Any:
        """Until the servers answer."""
        deadline = Machine.now() + SETTLE_SECONDS
        while True:
            try:
                return call()
            except LogUnavailable:
                if Machine.now() > deadline:
                    raise
            sleep(1.0)

    # --- producing --------------------------------------------------------------------------------

    def produce(self) -> None:
        """All seeds, and some messages that are none; tasks are declared.

        Each task has two producers: the second one sends when the first has ended, and perhaps closed it.
        """
        world, rng = self.world, self.world.rng("producer")
        for task_id in world.task_ids:
            self._declare(task_id, rng)
        made = messages(world)
        halves = made[: len(made) // 2], made[len(made) // 2 :]
        with closing(SimSeedLog().producer()) as raw:
            for producers, half in zip([self._producers(rng) for _ in halves], halves, strict=True):
                for number, (task_id, seed) in enumerate(half):
                    if seed is None:
                        raw.send(rng.choice(world.topics.tiers), b"x", rng.choice(NO_SEEDS))
                        continue
                    producers[task_id].send(seed)
                    if task_id is None:
                        world.sent[seed["url"]] = seed
                    world.truth.produced.update([task_id] if task_id is not None else [])
                    if number % 20 == 19:
                        sleep(rng.uniform(0, 0.5))
                for each in producers.values():
                    with suppress(LogUnavailable):  # it is closed in the end
                        each.close()
                sleep(rng.choice([0.0, rng.uniform(0, 5)]))
        world.is_produced = True

    def _declare(self, task_id: str, rng: random.Random) -> None:
        budgets = [{name: rng.randrange(1, most)} for name, most in BUDGETS]
        fields = rng.choice([{}, {}, {"weight": 5}, {"rate": 20.0}, *budgets])
        if rng.random() < 0.7:
            task = Task(task_id=task_id, **fields)
            self._insist(lambda: self._desk.order(task_id, lambda _before: task))

    def _producers(self, rng: random.Random) -> dict[str | None, SeedProducer]:
        def made(task_id: str | None) -> SeedProducer:
            topic, closes = rng.choice(self.world.topics.tiers), task_id is not None and rng.random() < 0.7
            make = partial(SeedProducer, self.world.settings, topic=topic, task_id=task_id)
            return self._insist(partial(make, closes_task=closes and self.world.tells_ends))

        return {task_id: made(task_id) for task_id in (None, *self.world.task_ids)}

    # --- orders -----------------------------------------------------------------------------------

    def order(self, verb: str, task_id: str) -> None:
        """One that may come too late, or fail."""
        world = self.world
        if verb in ("cancel", "expire"):
            world.truth.cancelled.add(task_id)
        if verb == "close" and not (world.tells_ends and world.is_produced):
            return  # it says that all producers have ended
        try:
            name, most = world.rng("budgets").choice(BUDGETS)
            words = {"budget": f"{name}={world.rng('budgets').randrange(1, most)}", "expire": "expires=2s"}
            self._give(task_id, *(["change", [words[verb]]] if verb in words else [verb]))
        except LogUnavailable as error:
            world.half_done.add(task_id)
            world.trace("refused", verb, task_id, str(error)[:60])

    def replay(self) -> None:
        """Dead letters are put back; what the sinks refused passes now."""
        self.world.truth.was_replayed = True
        self.world.sites.refused.clear()
        log, dead_letters = SimSeedLog(), self.world.topics.dead_letters
        self.world.truth.replayed_at = Machine.now()
        self._insist(lambda: Replay(log, dead_letters, lambda _message, _reason: None, self.topics).run())

    def check_again(self, rng: random.Random | None = None) -> None:
        """Some pages, of which some change before; without `rng` those that are not stored as they are."""
        world, truth = self.world, self.world.truth
        known = [url for url in world.sent if url not in world.sites.refused and truth.is_current(url) is not None]
        if rng is not None:
            # items of a page that is asked for twice at a time come in any order, and no check mends them
            known = [url for url in known if not (world.plan.has_items and truth.is_open(url))]
            known = rng.sample(known, min(len(known), rng.randrange(1, 9)))
            for page in (world.sites.pages[url] for url in known if rng.random() < 0.6):
                page.version += 1
                page.status = 200 if page.links else rng.choice([200, 200, 404, 410])
                page.changed_at = datetime.fromtimestamp(EPOCH + Machine.now(), UTC).isoformat(timespec="milliseconds")
        else:
            known = [url for url in known if not truth.is_current(url)]
        topic = (rng or world.rng("checks")).choice(world.topics.tiers)
        producer = self._insist(lambda: SeedProducer(world.settings, topic=topic))
        for url in known:
            seed = world.sent[url]
            producer.send({**seed, "dont_filter": True, "meta": {**seed["meta"], "if_changed": True}})
        with suppress(LogUnavailable):
            producer.close()

    def settle(self) -> None:
        """Every task goes on to its end, but for those that are cancelled; none is resumed for nothing.

        When all is done, what has changed since is asked for again.
        """
        for task_id in self.world.task_ids:
            self._insist(lambda task_id=task_id: self._settle(task_id))
        while self.world.lag():
            sleep(1.0)
        self.check_again()

    def _settle(self, task_id: str) -> None:
        board = self._desk.board
        task = board.task(task_id)
        has_budget = task is not None and any(getattr(task, name) for name, _most in BUDGETS)
        if has_budget or task_id in self.world.half_done or board.phase(task_id).name == "paused":
            self._give(task_id, "change", [f"{name}=" for name, _most in BUDGETS])
            self._give(task_id, "resume")
        if self.world.tells_ends:
            self._give(task_id, "close")


BUDGETS = (("max_pages", 30), ("max_bytes", 3_000), ("max_seconds", 10))  # and less than how much
NO_SEEDS = (b"{no seed", b'{"url": "nothing"}')


def messages(world: World) -> list[tuple[str | None, dict[str, Any] | None]]:
    """Task and seed of what producers send; None: what is no seed."""
    rng, tasks = world.rng("messages"), [None, *world.task_ids]
    seeds = [(meta.get("task_id"), {"url": url, "meta": meta}) for url, meta in world.sites.seeds.items()]
    made: list[tuple[str | None, dict[str, Any] | None]] = [*seeds, *rng.sample(seeds, len(seeds) // 10)]
    rng.shuffle(made)
    if rng.random() < 0.5:  # one after the other
        made.sort(key=lambda one: tasks.index(one[0]))
    for _ in range(2 + len(made) // 10):
        made.insert(rng.randrange(len(made) + 1), (None, None))
    return made
