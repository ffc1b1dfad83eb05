"""The end of a task is never told too early and never not at all, and each seed is counted once."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from site_spider.contracts.seed_log import Partition
from site_spider.tasks.control_log import written
from site_spider.tasks.ending import (
    Counting,
    Counts,
    EndTold,
    Fact,
    Producing,
    TakenBack,
    Tally,
    TaskEnding,
)
from tests.growth import assert_grows
from tests.tasks.world import OTHER, Rules, Sender, Sent, Step, World, run_on, settle

RUNS = 150  # by chance; the mutants below are found within fewer


def some_world(rng: random.Random, rules: Rules) -> World:
    """One or two producers, up to 7 pages, 3 partitions, 3 processes, trouble of each kind."""
    pages = [f"page{number}" for number in range(rng.randint(1, 7))]
    links: dict[str, tuple[str, ...]] = {}
    seeds = []
    for number, page in enumerate(pages):
        if number == 0 or rng.random() < 0.4:
            seeds.append(page)
        else:
            parent = rng.choice(pages[:number])
            links[parent] = (*links.get(parent, ()), page)
    dead = frozenset(page for page in pages if page not in links and rng.random() < 0.2)
    cut = rng.randint(0, len(seeds))
    senders = [Sender("closer", tuple(seeds[cut:]), closes=True)]
    if rng.random() < 0.5:
        senders.append(Sender("other", tuple(seeds[:cut]), closes=False))
    world = World(links, senders, rng.randint(1, 3), rng.randint(1, 3), rules, dead)
    for sender in senders[1:]:
        world.do(("say", senders.index(sender)))  # it begins before the task can be closed
    world.topic[0].extend(Sent(OTHER) for _ in range(rng.randint(0, 2)))
    world.crashes, world.moves, world.additions = rng.randint(0, 4), rng.randint(0, 5), rng.randint(0, 1)
    world.hops = rng.randint(0, 3)
    return world


def faults_of(seed: int, rules: Rules) -> list[str]:
    rng = random.Random(seed)
    world = some_world(rng, rules)
    run_on(world, rng.choice, rng.randint(0, 300))
    settle(world)
    return world.faults


def test_the_end_is_exact_in_large_worlds_by_chance() -> None:
    assert [(seed, faults) for seed in range(RUNS) if (faults := faults_of(seed, Rules()))] == []


@settings(max_examples=25)
@given(st.data())
def test_the_end_is_exact_whatever_hypothesis_tries(data: st.DataObject) -> None:
    world = some_world(random.Random(data.draw(st.integers(0, 10_000))), Rules())
    run_on(world, lambda steps: data.draw(st.sampled_from(steps)), 60)
    settle(world)
    assert world.faults == []


def small_worlds(rules: Rules) -> list[World]:
    """Bounds small enough for all orders in which things can happen."""
    crash = World({}, [Sender("s", ("a",), closes=True)], 1, 1, rules)
    crash.crashes = 1
    closed: list[Step] = [("say", 0), ("send", 0, 0), ("carry on", 0), ("say", 0)]
    two_owners = World({}, [Sender("s", ("a",), closes=True)], 1, 2, rules)
    two_owners.moves = 1
    for step in (*closed, ("take back", 0), ("poll", "p1", 0)):
        two_owners.do(step)
    two_producers = World({}, [Sender("s", (), closes=True), Sender("t", ("a",), closes=False)], 1, 1, rules)
    two_producers.do(("say", 1))
    put_back = World({}, [Sender("s", ("a",), closes=True)], 1, 1, rules, frozenset({"a"}))
    for step in (*closed, ("take back", 0)):
        put_back.do(step)
    spread = World({"a": ("b",)}, [Sender("s", ("a",), closes=True)], 2, 1, rules)
    met = World({"a": ("b",)}, [Sender("s", ("a",), closes=True)], 1, 1, rules)
    met.crashes = 1
    steps: list[Step] = [("poll", "p1", 0), ("spill", "p1", 0, 0, 0), ("crash", "p1")]
    for step in (*closed, *steps):
        met.do(step)  # it dies behind the message of the link, and before its high
    left = World({"a": ("b",)}, [Sender("s", ("a",), closes=True)], 2, 1, rules)
    left.crashes, left.reads_at_once = 2, True
    for step in (
        *closed,
        ("poll", "p1", 0),
        ("spill", "p1", 0, 0, 1),
        ("log page", "p1", 0, 0),
        ("end", "p1", 0, 0),
    ):
        left.do(step)
    for step in (("tally", "p1", 0), ("commit", "p1", 0), ("crash", "p1")):
        left.do(step)  # it dies when the parent of a link is complete
    gone = World({}, [Sender("s", ("a",), closes=True)], 1, 1, rules)
    gone.crashes, gone.hops = 1, 1
    for step in (*closed, ("take back", 0)):
        gone.do(step)
    late = World({}, [Sender("s", (), closes=True), Sender("t", (), closes=False)], 1, 1, rules)
    worlds = [gone, crash, two_owners, two_producers, spread, put_back, met, left, late]
    for world in worlds:
        world.reads_at_once = True
    return worlds


def all_orders(world: World, most: int) -> tuple[int, list[str]]:
    """The number of states, and the faults found; every state is settled from, too."""
    seen, waiting = {world.key()}, [world]
    while waiting:
        here = waiting.pop()
        steps = list(here.steps())
        if not steps:
            settle(here)
        for step in steps:
            after = here.copy()
            after.do(step)
            if not after.faults and (key := after.key()) not in seen:
                seen.add(key)
                waiting.append(after)
            if after.faults:
                return len(seen), after.faults
        if here.faults:
            return len(seen), here.faults
        assert len(seen) < most, "the bounds are too large"
    return len(seen), []


DEAR = pytest.mark.nightly


@pytest.mark.parametrize("number", [0, 1, 2, 5, 8, *(pytest.param(n, marks=DEAR) for n in (3, 4, 6, 7))])
def test_the_end_is_exact_in_every_order_of_a_small_world(number: int) -> None:
    states, faults = all_orders(small_worlds(Rules())[number], 20_000)
    assert faults == []
    assert states > 10


# --- mutants: each breaks one rule, and the model finds it --------------------------------------------


class NeverClosed(TaskEnding):
    """Takes no notice of the close."""

    @property
    def is_over(self) -> bool:
        return self.is_told or (not self.sending and self.is_passed)


class OneProducerIsEnough(TaskEnding):
    @property
    def is_over(self) -> bool:
        return self.is_told or (self.is_closed and self.is_passed)


class OnePartitionIsEnough(TaskEnding):
    @property
    def is_passed(self) -> bool:
        return not self.highs or any(self.passed(part) >= high for part, high in self.highs.items())


class OneTooFew(TaskEnding):
    @property
    def is_passed(self) -> bool:
        return all(self.passed(part) >= high - 1 for part, high in self.highs.items())


class NoHighs(TaskEnding):
    """As with lag 0 or markers: what is spilled is not asked for."""

    def read(self, offset: int, fact: Fact) -> None:
        TaskEnding.read(self, offset, replace(fact, highs={}) if isinstance(fact, Tally) else fact)


class LastHighWins(TaskEnding):
    def _raise(self, highs: Mapping[Partition, int]) -> None:
        self.highs.update(highs)


class LastTallyWins(TaskEnding):
    def _tallied(self, tally: Tally) -> None:
        self.tallies[tally.partition] = tally


class CarriesNothingOn(TaskEnding):
    """Producers take back the words of others, and do not say them again."""

    def carried_on(self, said: Producing) -> Producing:
        return said


class CarriesOnTheClose(TaskEnding):
    """Into the next generation, too."""

    def _producing(self, offset: int, said: Producing) -> None:
        super()._producing(offset, said)
        self.is_closed = self.is_closed or said.closed > 0


class SwallowsProducers(TaskEnding):
    """Forgets who began while the end was on its way."""

    def _was_told(self, ended: EndTold) -> None:
        self.generation, self.ended = ended.generation, ended


class OneGeneration(TaskEnding):
    def _begin_generation(self) -> None:
        pass


class PassedIsThePosition(Counting):
    def passed(self, position: int) -> int:
        return position


class PassedBeforeTheCommit(Counting):
    def passed(self, position: int) -> int:
        return next(iter(self._uncounted), position)


class Changes(Counting):
    """Writes other tallies than it should."""

    def next_tally(self, ending: TaskEnding, *args: Any, **how: Any) -> Tally | None:
        last = ending.tallies.get(self._partition) or Tally(self._partition, "", 0, 0)
        tally = super().next_tally(ending, *args, **how)
        if tally is not None:
            self._sent = tally = replace(tally, **self.changes(tally, last))
        return tally

    def changes(self, tally: Tally, last: Tally) -> dict[str, Any]:
        raise NotImplementedError


class CountsAgain(Changes):
    """Takes a repeat for a new seed."""

    def changes(self, tally: Tally, last: Tally) -> dict[str, Any]:
        again = (self._ready[offset] for offset in self._ready if last.has_counted(offset))
        return {"counts": sum(again, tally.counts)}


class ForgetsHoles(Changes):
    def changes(self, tally: Tally, last: Tally) -> dict[str, Any]:
        return {"holes": frozenset()}


class ForgetsWhatLeft(Changes):
    """As if whoever counted a seed as spilled could not die."""

    def changes(self, tally: Tally, last: Tally) -> dict[str, Any]:
        return {"left": tally.left - last.left}


class ForgetsHighs(Changes):
    """Says those alone that its own process knows of."""

    def changes(self, tally: Tally, last: Tally) -> dict[str, Any]:
        return {"highs": {part: high for part, high in tally.highs.items() if last.highs.get(part) != high}}


class NamesNoHighs(Changes):
    def changes(self, tally: Tally, last: Tally) -> dict[str, Any]:
        return {"highs": last.highs}


class KeepsItsKey(Counting):
    """Although another one has written meanwhile."""

    def _name_anew(self, last: Tally) -> None:
        if self._writer is None:
            super()._name_anew(last)


class TakesForItsOwn(Counting):
    """A tally of its version, whoever has written it."""

    @staticmethod
    def _is_mine(last: Tally, sent: Tally) -> bool:
        return True


class TakesBackTooMuch(Counting):
    """Tallies of others, before it has written one that carries them on."""

    def stale(self, ending: TaskEnding) -> list[str]:
        found = sorted(ending.writers.get(self._partition, set()) - self._stale - {self._writer})
        self._stale.update(found)
        return found


ENDINGS = (
    NeverClosed,
    OneProducerIsEnough,
    OnePartitionIsEnough,
    OneTooFew,
    NoHighs,
    LastHighWins,
    LastTallyWins,
    SwallowsProducers,
    OneGeneration,
    CarriesNothingOn,
    CarriesOnTheClose,
)
COUNTINGS = (
    PassedIsThePosition,
    PassedBeforeTheCommit,
    CountsAgain,
    ForgetsHoles,
    ForgetsWhatLeft,
    ForgetsHighs,
    NamesNoHighs,
    KeepsItsKey,
    TakesForItsOwn,
    TakesBackTooMuch,
)
MUTANTS: list[Callable[[], Rules]] = [
    *(lambda kind=kind: Rules(ending=kind) for kind in ENDINGS),
    *(lambda kind=kind: Rules(counting=kind) for kind in COUNTINGS),
    lambda: Rules(tells_spilled=False),
    lambda: Rules(waits_for_left=False),
    lambda: Rules(waits_for_pages=False),
    lambda: Rules(waits_for_tally=False),
    lambda: Rules(tells_met=False),
]  # fmt: skip


def small_world_of(rules: Rules) -> int | None:
    """In all orders of which a mutant is found, where chance finds it too rarely."""
    if not (rules.tells_spilled and rules.tells_met):
        return 6 if rules.tells_spilled else 7
    return {SwallowsProducers: 5, CarriesOnTheClose: 8}.get(
        rules.ending, 7 if rules.counting is ForgetsHighs else None
    )


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=DEAR) if n in (8, 16, 25) else n for n in range(len(MUTANTS))]
)
def test_the_model_finds_every_mutant(number: int) -> None:
    rules = MUTANTS[number]
    where = small_world_of(rules())
    found = (
        any(faults_of(seed, rules()) for seed in range(RUNS))
        if where is None
        else all_orders(small_worlds(rules())[where], 20_000)[1]
    )
    assert found, "no run shows what this rule is for"


# --- what the log holds -------------------------------------------------------------------------------

PART = Partition("seeds", 0)


def test_a_repeat_waits_for_a_tally_of_its_own_process() -> None:
    """What it reads first may be void: the record that was before it in the log is compacted."""
    ending, counting = TaskEnding(), Counting(PART, "new", count())
    counting.arrived(3)
    counting.done(3, Counts({"result": 1}))
    ending.read(7, Tally(PART, "zombie", 5, 0, 4))
    assert counting.read(ending) == []
    first = counting.next_tally(ending, 4, {PART: 9}, tells_passed=False)
    assert first is not None
    ending.read(8, Tally(PART, "owner", 9, 0, 2))  # which was valid all the time
    ending.read(9, first)
    assert counting.read(ending) == []
    second = counting.next_tally(ending, 4, {PART: 9}, tells_passed=False)
    assert second is not None
    assert (second.version, second.has_counted(3), second.highs) == (10, True, {PART: 9})
    assert second.writer != first.writer
    ending.read(10, second)
    assert counting.read(ending) == [3]
    assert sorted(counting.stale(ending)) == ["new.0", "owner", "zombie"]


def test_a_tally_after_one_that_failed_has_a_key_of_its_own() -> None:
    """Also in a log without tallies: the one that failed may be there all the same, later."""
    ending, counting = TaskEnding(), Counting(PART, "new", count())
    sent = []
    for offset in range(3):
        counting.arrived(offset)
        counting.done(offset, Counts({"result": 1}))
        sent.append(counting.next_tally(ending, 0, {}, tells_passed=False))
        counting.failed()
    assert [tally and tally.writer for tally in sent] == ["new.0", "new.1", "new.2"]


class Log:
    """What compaction leaves of a control log, and what a record of it costs to read."""

    def __init__(self) -> None:
        self.records: dict[bytes, tuple[int, Fact]] = {}
        self.end = 0

    def append(self, fact: Fact) -> None:
        key = written("t", fact)[0]
        self.records.pop(key, None)
        if not isinstance(fact, TakenBack):
            self.records[key] = self.end, fact
        self.end += 1

    def read(self) -> TaskEnding:
        ending = TaskEnding()
        for offset, fact in self.records.values():
            ending.read(offset, fact)
        ending.read_to = self.end
        return ending

    @property
    def size_bytes(self) -> int:
        values = (written("t", fact) for _, fact in self.records.values())
        return sum(len(key) + len(value or b"") for key, value in values)


def grown(starts: int) -> Log:
    """A task of so many process starts and producers; each process counts a seed, and sends two links on."""
    log = Log()
    for number in range(starts):
        log.append(Producing(f"producer{number}", is_open=True))
        ending = log.read()
        log.append(ending.carried_on(Producing(f"producer{number}", is_open=False, highs={PART: number + 1})))
        for gone in (TakenBack(f"producer{number}", is_open=True), *ending.carried_words(ending.read_to)):
            log.append(gone)
        ending, counting = log.read(), Counting(PART, f"host-{number:05}.1", count())
        counting.arrived(number)
        counting.done(number, Counts({"result": 1}))
        known = {Partition("seeds", 1 + link): number for link in range(2)}
        tally = counting.next_tally(ending, number + 1, known, tells_passed=True)
        assert tally is not None
        log.append(tally)
        ending = log.read()
        assert counting.read(ending) == [number]
        for writer in counting.stale(ending):
            log.append(TakenBack(writer, PART))
    return log


@pytest.mark.nightly
def test_a_task_costs_the_same_after_ten_thousand_process_starts() -> None:
    """Keys and bytes of the log, and reading it: with each start it is read three times."""
    logs = {starts: grown(starts) for starts in (10, 1_000, 10_000)}
    assert [len(log.records) for log in logs.values()] == [2, 2, 2]
    sizes = {starts: log.size_bytes for starts, log in logs.items()}
    assert sizes[10_000] < 1.2 * sizes[10], sizes
    assert logs[10_000].read().counts().seeds == {"result": 10_000}
    assert_grows(lambda starts: lambda: grown(starts), 100)
