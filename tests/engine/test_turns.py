"""Work on the event loop that shares its turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from site_spider import runtime
from site_spider.engine.background import Turns

BUDGET_MS = 20


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(scenario: Callable[[Turns, Clock], Awaitable[None]], budget: float = 0.02) -> None:
    async def main() -> None:
        clock = Clock()
        await scenario(Turns(budget, clock), clock)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def turn() -> None:
    await asyncio.sleep(0)


def test_nothing_waits_while_a_turn_has_time() -> None:
    async def scenario(turns: Turns, clock: Clock) -> None:
        for _ in range(1_000):
            clock.now += 0.00001
            waiting = turns.time()
            try:
                waiting.send(None)
            except StopIteration:
                continue
            raise AssertionError("it waited")

    run(scenario)


def test_a_turn_whose_time_is_spent_makes_work_wait_for_the_next() -> None:
    async def scenario(turns: Turns, clock: Clock) -> None:
        assert turns.has_time()
        clock.now += 0.03
        assert not turns.has_time()
        await turn()
        await turn()
        assert turns.has_time()

    run(scenario)


def test_those_who_wait_go_on_in_their_order_one_a_turn() -> None:
    async def scenario(turns: Turns, clock: Clock) -> None:
        order: list[tuple[int, int]] = []
        turns.has_time()
        clock.now += 1
        of_turn = 0

        async def work(name: int) -> None:
            for _ in range(3):
                await turns.time()
                clock.now += 1
                order.append((of_turn, name))

        working = [asyncio.ensure_future(work(name)) for name in range(5)]
        while not all(task.done() for task in working):
            of_turn += 1
            await turn()
        assert [name for _, name in order] == [0, *[0, 1, 2, 3, 4], *[0, 1, 2, 3, 4], *[1, 2, 3, 4]]
        turns_used = [number for number, _ in order]
        assert len(set(turns_used)) == len(turns_used), "two pieces of work in one turn"

    run(scenario)


def in_turns(costs_ms: list[int]) -> list[list[int]]:
    """By brute force: a turn takes pieces of work until its budget is spent."""
    turns: list[list[int]] = []
    left = 0
    for number, cost in enumerate(costs_ms):
        if left <= 0:
            turns.append([])
            left = BUDGET_MS
        turns[-1].append(number)
        left -= cost
    return turns


@given(st.lists(st.integers(1, 50), min_size=1, max_size=80))
def test_a_turn_takes_as_many_as_it_has_time_for(costs_ms: list[int]) -> None:
    async def scenario(turns: Turns, clock: Clock) -> None:
        done: dict[int, list[int]] = {}
        turns.has_time()
        clock.now += 1
        of_turn = 0

        async def work(number: int) -> None:
            await turns.time()
            clock.now += costs_ms[number]
            done.setdefault(of_turn, []).append(number)

        working = [asyncio.ensure_future(work(number)) for number in range(len(costs_ms))]
        while not all(task.done() for task in working):
            of_turn += 1
            await turn()
        assert list(done.values()) == in_turns(costs_ms)

    run(scenario, BUDGET_MS)


def test_whose_turn_it_is_does_not_wait_again_behind_others() -> None:
    async def scenario(turns: Turns, clock: Clock) -> None:
        turns.has_time()
        clock.now += 1
        order: list[str] = []

        def steps(name: str) -> Iterator[None]:
            order.append(name)
            yield

        async def work(name: str) -> None:
            await turns.time()
            await turns.run(steps(name))  # type: ignore[arg-type]
            order.append(name)

        await asyncio.gather(*(work(name) for name in "abc"))
        assert order == list("aabbcc")

    run(scenario)


def test_one_who_is_cancelled_holds_up_nobody() -> None:
    async def scenario(turns: Turns, clock: Clock) -> None:
        turns.has_time()
        clock.now += 1
        first, second = (asyncio.ensure_future(turns.time()) for _ in range(2))
        await turn()
        first.cancel()
        await asyncio.wait_for(second, 300)

    run(scenario)


def test_each_process_of_a_simulation_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Clock(), Clock()
    processes = iter([first, second, first])
    monkeypatch.setattr(runtime, "this_process", lambda: next(processes))
    found = [Turns.of_running_loop() for _ in range(3)]
    assert found[0] is found[2] is not found[1]


def test_each_loop_has_its_own() -> None:
    async def found() -> Turns:
        turns = Turns.of_running_loop()
        assert turns is Turns.of_running_loop()
        turns.has_time()  # its callback is never called
        return turns

    loops = [uvloop.new_event_loop() for _ in range(2)]
    first, second = (loop.run_until_complete(found()) for loop in loops)
    assert first is not second
    for loop in loops:
        loop.close()
