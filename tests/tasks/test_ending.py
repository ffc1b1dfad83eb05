"""The end of a task is never told too early and never not at all, and each seed is counted once."""

from __future__ import annotations

import pickle
import random
from contextlib import nullcontext
from functools import partial
from itertools import count
from unittest.mock import Mock

import pytest
from hypothesis import settings

from site_spider.contracts.seed_log import Partition
from site_spider.tasks.control_log import written
from site_spider.tasks.ending import Counting, Counts, Fact, Producing, TakenBack, TaskEnding
from tests.growth import assert_grows, us_a_step
from tests.tasks.world import OTHER, Mutant, Rules, Sender, Sent, Step, World, planted, run_on, settle

RUNS = 6 * settings().max_examples  # by chance; the mutants are found within 32, but one of the night


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
    for step in (*closed, ("poll", "p1", 0), ("spill", "p1", 0, 0, 1), ("log page", "p1", 0, 0), ("end", "p1", 0, 0)):
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
        packed = pickle.dumps(here)
        for step in steps:
            after: World = pickle.loads(packed)
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

# fmt: off
MUTANTS: dict[str, Mutant] = {
    "a task that is not closed ends": (TaskEnding.is_over, "self.is_closed and ", ""),
    "one producer is enough": (TaskEnding.is_over, "not self.sending and ", ""),
    "one partition is enough": (TaskEnding.is_passed, "all(", "not self.highs or any("),
    "an end comes one message early": (TaskEnding.is_passed, ">= high", ">= high - 1"),
    "highs of tallies are not heard": (TaskEnding._tallied, "self._raise(tally.highs)", "pass"),
    "the last high wins": (TaskEnding._raise, "max(position, self.highs.get(partition, 0))", "position"),
    "the last tally wins": (TaskEnding._tallied, "tally.version > before.version", "True"),
    "who began while the end was on its way is forgotten": (TaskEnding._was_told, ">= ended.upto", "< 0"),
    "no generation follows": (TaskEnding._begin_generation, "self.generation += 1", "return"),
    "words that are taken back are not said again": (TaskEnding.carried_on, "return replace(",
        "return said or replace("),
    "a close goes on into the next generation": (TaskEnding._producing,
        "said.closed == self.generation", "said.closed > 0"),
    "passed is the position": (Counting.passed, "next(iter(self._open), position)", "position"),
    "what is complete is passed before it is committed": (Counting.passed, "self._open", "self._uncounted"),
    "a repeat is counted again": (Counting.next_tally, " if not last.has_counted(offset)", ""),
    "holes are forgotten": (Counting.next_tally, "if offset >= passed and offset not in fresh", "if False"),
    "what left is forgotten with its process": (Counting.next_tally, "in last.left if", "in () if"),
    "highs of the tally before are forgotten": (Counting.next_tally, "last.highs, known", "known"),
    "highs that the process knows are not told": (Counting.next_tally, "last.highs, known", "last.highs"),
    "a key is kept although another has written": (Counting._name_anew,
        "self._writer and last.writer == self._writer", "self._writer"),
    "a tally of its version is taken for its own": (Counting.read,
        "(last.writer, last.version) != (sent.writer, sent.version)", "False"),
    "tallies are taken back before another carries them on": (Counting.stale,
        "last.writer != self._writer:\n            return []\n"
        "        found = sorted(writers - self._stale - {last.writer})",
        "False:\n            return []\n        found = sorted(writers - self._stale - {self._writer})"),
}
# fmt: on
RULES = ("tells_spilled", "waits_for_left", "waits_for_pages", "waits_for_tally", "tells_met")
SMALL_WORLDS = {  # in all orders of which one is found, where chance finds it too rarely
    "who began while the end was on its way is forgotten": 5,
    "a close goes on into the next generation": 8,
    "highs of the tally before are forgotten": 7,
    "tells_spilled": 7,
    "tells_met": 6,
}
DEAR_ONES = ("no generation follows", "highs of the tally before are forgotten", "tells_met")


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=DEAR) if one in DEAR_ONES else one for one in (*MUTANTS, *RULES)]
)
def test_the_model_finds_every_mutant(name: str) -> None:
    rules, where = Rules(**({name: False} if name in RULES else {})), SMALL_WORLDS.get(name)
    with planted(MUTANTS[name]) if name in MUTANTS else nullcontext():
        found = (
            any(faults_of(seed, rules) for seed in range(RUNS))
            if where is None
            else all_orders(small_worlds(rules)[where], 20_000)[1]
        )
    assert found, "no run shows what this rule is for"


# --- what the log holds -------------------------------------------------------------------------------

PART = Partition("seeds", 0)


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
        return sum(len(key) + len(value or b"") for key, value, _ in values)


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
    print(f"bytes {sizes}, us a start { ({starts: us_a_step(partial(grown, starts), starts) for starts in logs}) }")
    assert_grows(lambda starts: lambda: grown(starts), 100)


def test_a_commit_is_not_asked_about_seeds_that_are_not_complete() -> None:
    """Up to 20,000 are in flight, with ten commits a second. What lies below the watermark is committed in any case."""
    counting, asked = Counting(PART, "n", count()), Mock(side_effect=lambda offset: offset in (0, 1, 6, 8))
    for offset in range(1_000):
        counting.arrived(offset)
    for offset in (6, 7):
        counting.skipped(offset)
    counting.committed(asked)
    assert (counting.passed(1_000), asked.call_count) == (2, 5)
    counting.committed(lambda offset: offset < 9)
    assert counting.passed(1_000) == 9
