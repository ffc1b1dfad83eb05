"""The end of a task is never told too early and never not at all, and each seed is counted once."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from site_spider.contracts.seed_log import Partition
from site_spider.tasks.ending import Counting, Counts, EndTold, Fact, High, Tally, TaskEnding
from tests.tasks.world import OTHER, Rules, Sender, World, run_on, settle

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
    world.topic[0].extend(OTHER for _ in range(rng.randint(0, 2)))
    world.crashes, world.moves, world.additions = rng.randint(0, 4), rng.randint(0, 5), rng.randint(0, 1)
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
    crash.crashes = 2
    two_owners = World({}, [Sender("s", ("a",), closes=True)], 1, 2, rules)
    two_owners.moves = 1
    two_producers = World({}, [Sender("s", (), closes=True), Sender("t", ("a",), closes=False)], 1, 1, rules)
    two_producers.do(("say", 1))
    put_back = World({}, [Sender("s", ("a",), closes=True)], 1, 1, rules, frozenset({"a"}))
    spread = World({"a": ("b",)}, [Sender("s", ("a",), closes=True)], 2, 1, rules)
    met = World({"a": ("b",)}, [Sender("s", ("a",), closes=True)], 1, 1, rules)
    met.crashes, met.reads_at_once = 1, True
    for step in (
        ("say", 0),
        ("send", 0, 0),
        ("say", 0),
        ("poll", "p1", 0),
        ("spill", "p1", 0, 0, 0),
        ("crash", "p1"),
    ):
        met.do(step)  # it dies behind the message of the link, and before its high
    return [crash, two_owners, two_producers, put_back, spread, met]


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


@pytest.mark.parametrize("number", range(6))
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
        if isinstance(fact, High):
            self.read_to = offset + 1
        else:
            super().read(offset, fact)


class LastHighWins(TaskEnding):
    def _raise(self, partition: Partition, position: int) -> None:
        self.highs[partition] = position


class LastTallyWins(TaskEnding):
    def _tallied(self, tally: Tally) -> None:
        self.tallies[tally.partition] = tally


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


class CountsAgain(Counting):
    """Takes a repeat for a new seed."""

    def read(self, last: Tally | None) -> list[int]:
        self._sent = 0
        counted = [offset for offset in self._ready if last is not None and last.has_counted(offset)]
        for offset in counted:
            self.skipped(offset)
        return counted

    def next_tally(self, last: Tally | None, position: int, *, tells_passed: bool) -> Tally | None:
        built = super().next_tally(last, position, tells_passed=tells_passed)
        again = sum(
            (self._ready[offset] for offset in self._ready if last and last.has_counted(offset)), Counts()
        )
        if built is None:
            return None
        return Tally(
            *(built.counts + again if name == "counts" else getattr(built, name) for name in built.__slots__)
        )


class ForgetsHoles(Counting):
    def next_tally(self, last: Tally | None, position: int, *, tells_passed: bool) -> Tally | None:
        built = super().next_tally(last, position, tells_passed=tells_passed)
        if built is None:
            return None
        return Tally(*(frozenset() if name == "holes" else getattr(built, name) for name in built.__slots__))


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
)
COUNTINGS = (PassedIsThePosition, PassedBeforeTheCommit, CountsAgain, ForgetsHoles)
MUTANTS: list[Callable[[], Rules]] = [
    *(lambda kind=kind: Rules(ending=kind) for kind in ENDINGS),
    *(lambda kind=kind: Rules(counting=kind) for kind in COUNTINGS),
    lambda: Rules(waits_for_high=False),
    lambda: Rules(waits_for_pages=False),
    lambda: Rules(waits_for_tally=False),
    lambda: Rules(tells_moved=False),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MUTANTS)))
def test_the_model_finds_every_mutant(number: int) -> None:
    rules = MUTANTS[number]
    by_chance = any(faults_of(seed, rules()) for seed in range(RUNS))
    assert by_chance or any(all_orders(world, 20_000)[1] for world in small_worlds(rules())[::-1]), (
        "no run shows what this rule is for"
    )
