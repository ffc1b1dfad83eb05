"""Work on the event loop that shares its turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import uvloop

from site_spider.engine.turns import Turns


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(scenario: Callable[[Turns, Clock], Awaitable[None]]) -> None:
    async def main() -> None:
        clock = Clock()
        await scenario(Turns(0.02, clock), clock)

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


def test_one_who_is_cancelled_holds_up_nobody() -> None:
    async def scenario(turns: Turns, clock: Clock) -> None:
        turns.has_time()
        clock.now += 1
        first, second = (asyncio.ensure_future(turns.time()) for _ in range(2))
        await turn()
        first.cancel()
        await asyncio.wait_for(second, 5)

    run(scenario)


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
