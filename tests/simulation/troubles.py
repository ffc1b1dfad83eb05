"""What goes wrong in a run: a list made before it begins, so that it can be shortened; and its people.

Each trouble has a generator of its own. Whatever it breaks it mends before it ends. One operator produces
the seeds, and two give orders at the same time.
"""

from __future__ import annotations

import asyncio
import random
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, closing, nullcontext, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import product
from math import inf
from typing import Any, NamedTuple

from tests.simulation.log import SimSeedLog
from tests.simulation.sites import GONE, LIST_PAGE, Listing, SimResults
from tests.simulation.virtual import EPOCH, Machine, sleep, until
from tests.simulation.world import OTHER, Process, World

from site_spider.commands.task import _ONLY_FOR, Command
from site_spider.commands.recrawl import _NAMES, Recrawl, RecrawlPlan
from site_spider.dead_letter_replay import Replay
from site_spider.errors import LogUnavailable, SinkUnavailable
from site_spider.results.recrawl import Calendar, CheckRules
from site_spider.seed.topics import CrawlTopics
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
    await asyncio.sleep(trouble.after_seconds)
    world.trace("trouble", trouble.kind)
    await ACTS[trouble.kind](world, random.Random(f"{world.plan.number}:trouble:{trouble.place}"))


def _take(world: World, rng: random.Random, fits: Callable[[Process], Any] = bool) -> Process | None:
    """A process that no other trouble has."""
    free = [one for one in world.alive if not (one.is_taken or one.is_stopping or one.has_ended) and fits(one)]
    process = rng.choice(free) if free else None
    if process is not None:
        process.is_taken = True
    return process


# --- to one process -----------------------------------------------------------------------------


async def _kill(world: World, rng: random.Random, process: Process, *, at_once: bool = False) -> Process:
    """Before any step; the same, or another, takes its place at once or later: before its session has ended."""
    died = asyncio.Event()
    world.deaths += 1
    Machine.running().after_steps(0 if at_once else rng.randrange(400), lambda: (world.kill(process), died.set()))
    await died.wait()
    await asyncio.sleep(rng.choice([0.2, 0.5, 2] if at_once else [0.2, 0.5, 2, 15]))
    return world.start(process.slot if at_once or rng.random() < 0.8 else 100 + len(world.processes))


_kill_at_once = partial(_kill, at_once=True)


async def _kill_again(world: World, rng: random.Random, process: Process) -> None:
    """And its successors, soon after each has begun, or while commits are refused to it."""
    for _ in range(rng.choice([2, 3])):
        process = await _kill(world, rng, process)
        process.is_taken = True
        await asyncio.sleep(rng.choice([0.5, 2, 5]))
        if rng.random() < 0.5:
            await _commits(world, rng)
    process.is_taken = False


async def _stop(world: World, rng: random.Random, process: Process) -> None:
    await asyncio.sleep(rng.uniform(0, 0.5))
    await world.stop(process)
    await asyncio.sleep(rng.choice([0, 1, 12]))
    world.start(process.slot)


async def _hold_up(world: World, rng: random.Random, process: Process, state: str, seconds: Sequence[float]) -> None:
    """It stands still (SIGSTOP, and SIGCONT), or its event loop is blocked and its threads go on."""
    setattr(process, state, True)
    if process.is_frozen:
        world.deaths += 1
        world.go_silent(process)
    await asyncio.sleep(rng.choice(seconds))
    process.lost_at = Machine.now()  # if anything: it hears of it now
    if not process.is_dead:
        for consumer in process.consumers if process.is_frozen else ():
            consumer.group.heard_of(consumer)
        Machine.running().thaw(process)
    process.is_frozen = process.is_late = process.is_taken = False


_freeze = partial(_hold_up, state="is_frozen", seconds=(0.5, 5, 12, 60))
_late = partial(_hold_up, state="is_late", seconds=(0.1, 0.5, 2, 8, 60))


async def _freeze_and_kill(world: World, rng: random.Random, process: Process) -> None:
    """It goes on when others have its partitions, and perhaps dies when its tally has left, before it hears of that."""
    count = process.leaving[world.topics.control]
    await _freeze(world, rng, process, seconds=(12, 20, 60))
    await until(lambda: process.leaving[world.topics.control] < count, 1)
    if rng.random() < 0.7 and not process.has_ended:
        await _kill_at_once(world, rng, process)


@asynccontextmanager
async def _guest(world: World, rng: random.Random, *stays: float) -> AsyncIterator[None]:
    """One more process, which goes after a while."""
    process = world.start(100 + len(world.processes))
    process.is_taken = True
    yield
    await asyncio.sleep(rng.uniform(*stays))
    await world.stop(process)


WITH: dict[str, Callable[[Process], Any]] = {
    "partitions given up": lambda one: any(each.has_given_up for each in one.consumers),  # and it has not joined again
    "many seeds": lambda one: one.parts is not None and one.parts.completion.ledger.in_flight > 8,
    "a tally": lambda one: one.leaving[one.world.topics.control],  # of a task, about to leave it
}


async def _to_one(
    world: World,
    rng: random.Random,
    what: Callable[..., Awaitable[Any]],
    fits: str = "",
    step: float = 0.001,
    *,
    guest_stays: tuple[float, ...] = (),
    in_rebalance: bool = False,
) -> None:
    """When one fits; when a guest has joined, if one does, and the group has begun to share out anew."""
    async with _guest(world, rng, *guest_stays) if guest_stays else nullcontext():
        if in_rebalance:
            await until(lambda: world.group.state != "stable")
        process = await until(lambda: _take(world, rng, WITH.get(fits, bool)), 20.0 if fits else 0.0, step)
        if process is not None:
            await what(world, rng, process)


# --- to all -------------------------------------------------------------------------------------


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
    for _ in range(rng.randrange(1, 4)):
        world.group.rebalance()
        await asyncio.sleep(rng.uniform(0, 3))


async def _away(world: World, rng: random.Random, what: str, seconds: Sequence[float]) -> None:
    if what not in world.away_since:
        world.away_since[what] = Machine.now()
        await asyncio.sleep(rng.choice(seconds))
        del world.away_since[what]


async def _leaders_away(world: World, rng: random.Random) -> None:
    """No message is taken, but commits are; a task may have been paused, and a process may die meanwhile."""
    if rng.random() < 0.5:
        await _order(world, rng, "pause")
    world.broker.takes_messages = False
    seconds = rng.uniform(1, 12)
    await asyncio.sleep(seconds / 2)
    deaths = [asyncio.create_task(_to_one(world, rng, _kill))] if rng.random() < 0.7 else []
    await asyncio.sleep(seconds / 2)
    world.broker.takes_messages = True
    await asyncio.gather(*deaths)


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


async def _clock(world: World, rng: random.Random) -> None:
    """Of all machines, or of one."""
    world.have_clocks_jumped = True
    process = rng.choice([None, *world.alive])
    for each in world.alive if process is None else [process]:
        each.clock_error += rng.choice([-3600, -5, 5, 3600])


async def _partitions(world: World, rng: random.Random) -> None:
    world.broker.topic(rng.choice(world.topics.tiers), more=1)


async def _order(world: World, rng: random.Random, verb: str) -> None:
    """One of two operators gives it, perhaps when links of the task have come; sometimes the other gives one, too."""
    if not world.task_ids:
        return
    task_id = rng.choice(world.task_ids)
    world.lead_on.discard(task_id)
    await until(lambda: task_id in world.lead_on, rng.choice([0, 5]))
    given = [world.operators[0].start(world.operators[0].order, verb, task_id)]
    if rng.random() < 0.3:
        other, task_id = rng.choice(["pause", "resume", "budget"]), rng.choice(world.task_ids)
        await asyncio.sleep(rng.choice([0.0, 0.005, 0.1]))
        given.append(world.operators[1].start(world.operators[1].order, other, task_id))
    await asyncio.gather(*given)


async def goes_on(world: World) -> None:
    """Tasks end, and go on."""
    rng, operator = world.rng("anew"), Operator(world, 2000)
    await until(lambda: world.is_produced, inf, 0.25)
    for _ in range(rng.randrange(2, 6)):
        task_id = rng.choice(world.task_ids)
        await operator.start(operator.insist, partial(operator.settle_task, task_id))
        await asyncio.sleep(rng.choice([0.0, rng.uniform(0, 10)]))
        if await until(partial(world.truth.has_ended, task_id), 60, 0.25):
            await operator.start(operator.go_on, task_id, rng)


async def recrawls(world: World) -> None:
    """`scrapy recrawl` again and again, also two at a time; some are killed."""
    rng, under_way = world.rng("recrawls"), []
    for number in range(1000, 1000 + rng.randrange(3, 12)):
        await asyncio.sleep(rng.choice([0.0, rng.uniform(0, 8), rng.uniform(0, 8), 30.0]))
        operator = Operator(world, number)
        under_way.append((operator.process, operator.start(operator.recrawl, rng)))
        if rng.random() < 0.3:
            Machine.running().after_steps(rng.randrange(400), partial(world.kill, operator.process))
    await until(lambda: all(process.is_dead or run.done() for process, run in under_way), 600.0, 1.0)


async def vanishes(world: World) -> None:
    operator = Operator(world, 3000)
    await operator.start(operator.vanish, world.rng("gone"))


BESIDE = {"recrawls": recrawls, "anew": goes_on, "gone": vanishes}  # all the time, if a number has it
MODES = ("away", "slow", "partial", "mute")
VERBS = ("pause", "resume", "cancel", "close", "budget", "expire")
ACTS: dict[str, Act] = {
    "kill": partial(_to_one, what=_kill),
    "kill_again": partial(_to_one, what=_kill_again, fits="many seeds", step=0.05),
    "kill_in_rebalance": partial(_to_one, what=_kill, guest_stays=(0, 5), in_rebalance=True),
    "kill_in_revocation": partial(_to_one, what=_kill_at_once, fits="partitions given up", guest_stays=(0, 90)),
    "stop": partial(_to_one, what=_stop),
    "stop_in_rebalance": partial(_to_one, what=_stop, guest_stays=(0, 5), in_rebalance=True),
    "freeze": partial(_to_one, what=_freeze),
    "freeze_with_a_tally": partial(_to_one, what=_freeze_and_kill, fits="a tally"),
    "late": partial(_to_one, what=_late),
    "join": _join,
    "expel": _expel,
    "rebalance": _rebalance,
    "broker_away": partial(_away, what="broker", seconds=(0.5, 3, 9, 15)),
    "leaders_away": _leaders_away,
    "commits": _commits,
    "partitions": _partitions,
    **{f"sink_{mode}": partial(_sink, mode=mode) for mode in MODES},
    "marks_away": partial(_away, what="marks", seconds=(0.5, 5, 40)),
    **{f"task_{verb}": partial(_order, verb=verb) for verb in VERBS},
    "replay": lambda world, _rng: world.operators[1].start(world.operators[1].replay),
    "clock": _clock,
    "change": lambda world, rng: world.operators[1].start(world.operators[1].check_again, rng),  # of pages
}
GROUPS = {
    "kills": ("kill", "kill_again", "kill_again", "kill_in_rebalance", "leaders_away"),
    "stalls": ("freeze", "freeze_with_a_tally", "late"),
    "stops": ("stop", "stop_in_rebalance"),
    "rebalances": ("join", "expel", "rebalance", "kill_in_rebalance", "kill_in_revocation"),
    "broker": ("broker_away", "leaders_away", "commits", "partitions"),
    "sinks": tuple(f"sink_{mode}" for mode in MODES),
    "tasks": (*(f"task_{verb}" for verb in VERBS), "task_pause", "task_resume", "freeze_with_a_tally"),
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
        self.process = Process(world, number, number)
        self.process.member_name = ""

    def start(self, call: Callable[..., Any], *args: Any) -> asyncio.Task[Any]:
        return self.process.run(asyncio.to_thread(call, *args))

    @property
    def _desk(self) -> TaskDesk:
        """With all that the topic says now."""
        return TaskDesk(SimSeedLog(), self.topics)

    def _give(self, task_id: str, verb: str, *what: Any) -> None:
        try:
            getattr(TaskOrders(self._desk, task_id, may_be_new=True), verb)(*what)
        except BadTask as error:
            self.world.trace("refused", verb, task_id, str(error)[:60])

    def insist(self, call: Callable[[], Any]) -> Any:
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
        extras, budgets = self.world.plan.extras, [{name: rng.randrange(1, most)} for name, most in BUDGETS]
        fields = rng.choice([{}, {}, {"weight": 5}, {"rate": 20.0}, *budgets])
        if rng.random() < 0.7 or not {"full hosts", "limits"}.isdisjoint(extras):
            fields |= {"max_pages_host": rng.randrange(1, 6)} if "full hosts" in extras else {}
            fields |= {"rate": rng.choice([0.5, 2.0])} if "limits" in extras else {}
            if "limits" in extras and rng.random() < 0.5:
                fields["expires_at"] = datetime.fromtimestamp(EPOCH + Machine.now() + rng.uniform(2, 40), UTC)
                self.world.truth.cancelled.add(task_id)
            self.world.declared[task_id] = task = Task(task_id=task_id, **fields)
            self.insist(lambda: self._desk.order(task_id, lambda _before: task))
            self.world.budgets[task_id] = task.max_pages or inf
            self.world.most_on_host[task_id] = task.max_pages_host or inf

    def _producers(self, rng: random.Random) -> dict[str | None, SeedProducer]:
        def made(task_id: str | None) -> SeedProducer:
            topic, closes = rng.choice(self.world.topics.tiers), task_id is not None and rng.random() < 0.7
            make = partial(SeedProducer, self.world.settings, topic=topic, task_id=task_id)
            return self.insist(partial(make, closes_task=closes and self.world.tells_ends))

        return {task_id: made(task_id) for task_id in (None, *self.world.task_ids)}

    # --- orders -----------------------------------------------------------------------------------

    def order(self, verb: str, task_id: str) -> None:
        """One that may come too late, or fail."""
        world = self.world
        if verb in ("cancel", "expire"):
            world.truth.cancelled.add(task_id)
            world.truth.restarted.discard(task_id)
        if verb == "close" and not (world.tells_ends and world.is_produced):
            return  # it says that all producers have ended
        try:
            name, most = world.rng("budgets").choice(BUDGETS)
            most = world.rng("budgets").randrange(1, most)
            if verb == "budget":
                world.budgets[task_id] = max(world.budgets.get(task_id, inf), most if name == "max_pages" else 0)
            words = {"budget": f"{name}={most}", "expire": "expires=2s"}
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
        self.insist(lambda: Replay(log, dead_letters, lambda _message, _reason: None, self.topics).run())

    def go_on(self, task_id: str, rng: random.Random) -> None:
        """Some of its seeds, in its next generation; or it is deleted before, or declared anew."""
        world, truth = self.world, self.world.truth
        verb = rng.choice(["", "delete", "start"])
        if verb and not self._command(verb, task_id):
            return
        if verb == "delete":
            truth.forget(task_id)
            world.budgets.pop(task_id, None)
            world.declared.pop(task_id, None)
        truth.restarted.update([task_id] if verb else [])
        mine = [url for url, meta in world.sites.seeds.items() if meta.get("task_id") == task_id]
        mine = rng.sample(mine, min(len(mine), rng.randrange(1, 5)))
        truth.produced[task_id] += len(mine)
        seeds = [{"url": url, "meta": world.sites.seeds[url], "dont_filter": True} for url in mine]
        self._send(seeds, rng, task_id=task_id, closes_task=True)

    def _command(self, verb: str, task_id: str) -> bool:
        """`scrapy task`, with no options."""
        command, options = Command(), dict.fromkeys([*_ONLY_FOR])
        vars(command).update(settings=self.world.settings, opts=Namespace(new=False, **options), task_id=task_id)
        vars(command).update(_answer=lambda *_said, **_more: None)
        try:
            self.insist(lambda: vars(command).update(desk=self._desk) or getattr(command, verb)())
        except BadTask as error:
            self.world.trace("refused", verb, task_id, str(error)[:60])
            return verb == "delete" and "is not known" in str(error)  # an earlier try has done it
        return True

    def vanish(self, rng: random.Random) -> None:
        """Pages go and come again, and are checked each time; each check counts once."""
        world, truth, after = self.world, self.world.truth, self.world.plan.settings["SITE_GONE_AFTER"]
        for url, number in product(GONE, range(after + 3)):
            world.sites.pages[url].status = rng.choice([404, 410]) if 0 < number < after + 2 else 200
            self._send([{"url": url, "if_changed": number > 0, "dont_filter": True}], rng)
            while len(truth.places[url]) <= number or truth.is_open(url):
                sleep(0.5)
            truth.check_gone(url, number)

    def recrawl(self, rng: random.Random) -> None:
        calendar = Calendar(CheckRules.read(self.world.settings), rng.choice([None, None, 2, 20]))
        names = {name: name for name in (*_NAMES, "host")}
        plan = RecrawlPlan(calendar, names, rng.choice(self.topics.tiers), waits=rng.random() < 0.5)
        with suppress(LogUnavailable, SinkUnavailable):  # a later one goes on
            Recrawl(plan, SimResults(), SimSeedLog(), self.topics, print).run()

    def check_again(self, rng: random.Random | None = None) -> None:
        """Some pages, of which some change before; without `rng` those that are not stored as they are."""
        world, truth = self.world, self.world.truth
        refused, lists = world.sites.refused, [url for url in world.sites.lists if url in world.sent]
        known = [url for url in world.sent if url not in {*refused, *lists} and truth.is_current(url) is not None]
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
        if rng is None and lists:
            self._expect(lists)
        seeds = [world.sent[url] for url in lists]
        for url in known:
            meta = world.sent[url]["meta"] | {"if_changed": True}
            meta |= {"follow_unchanged": True} if "more" in world.plan.extras else {}
            seeds.append({**world.sent[url], "dont_filter": True, "meta": meta})
        self._send(seeds, rng or world.rng("checks"))

    def _send(self, seeds: Sequence[Mapping[str, Any]], rng: random.Random, **options: Any) -> None:
        topic = rng.choice(self.world.topics.tiers)
        producer = self.insist(lambda: SeedProducer(self.world.settings, topic=topic, **options))
        for seed in seeds:
            producer.send(seed)
        with suppress(LogUnavailable):  # it is closed in the end
            producer.close()

    def _expect(self, lists: Sequence[str]) -> None:
        """From now on a list is as it is; what is stored ends it."""
        world = self.world
        for kind, what in world.truth.wrong_lists():
            world.violation(kind, what)
        for listing in (world.sites.pages[url] for url in lists):
            assert isinstance(listing, Listing)
            new = sum(not world.truth.stored[listing.entry(number + 1)] for number in range(listing.count))
            listing.most_asked = listing.asked + 2 + new // LIST_PAGE
        sleep(61.0)  # what is stored a minute before is known

    def settle(self) -> None:
        """Every task goes on to its end, but for those that are cancelled; none is resumed for nothing.

        When all is done, what has changed since is asked for again.
        """
        for task_id in self.world.task_ids:
            self.insist(partial(self.settle_task, task_id))
        while self.world.lag():
            sleep(1.0)
        self.world.settled_at = Machine.now()
        self.check_again()

    def settle_task(self, task_id: str) -> None:
        board = self._desk.board
        task = board.task(task_id)
        has_budget = task is not None and any(getattr(task, name) for name, _most in BUDGETS)
        if has_budget or task_id in self.world.half_done or board.phase(task_id).name == "paused":
            self.world.budgets.pop(task_id, None)
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
    again = [one for one in seeds if one[1]["url"] in world.sites.lists]  # while the first crawl is under way, perhaps
    for _, seed in again:
        seed["dont_filter"] = True
    for many in world.rng("doubles").choices([10, 60], k=2) if "doubles" in world.plan.extras else ():
        some = world.rng("doubles").sample(seeds, min(4, len(seeds)))
        again += [max(some, key=lambda one: world.sites.pages[one[1]["url"]].trouble)] * many
    for _, seed in [one for one in seeds if world.plan.other_callback(one[1]["url"])]:
        seed["callback"] = OTHER
    for _, seed in seeds if "more" in world.plan.extras else ():
        seed["priority"] = rng.choice([-3, 0, 0, 5])
    made: list[tuple[str | None, dict[str, Any] | None]] = [*seeds, *rng.sample(seeds, len(seeds) // 10), *again]
    rng.shuffle(made)
    if rng.random() < 0.5:  # one after the other
        made.sort(key=lambda one: tasks.index(one[0]))
    for _ in range(2 + len(made) // 10):
        made.insert(rng.randrange(len(made) + 1), (None, None))
    return made
