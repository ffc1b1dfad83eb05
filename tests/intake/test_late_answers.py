"""Rebalances that the event loop hears of late: in what order, and of which assignment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any
from unittest.mock import Mock

from site_spider.contracts.seed_log import Message, Partition, Position
from site_spider.engine.background import Background
from site_spider.errors import SeedError
from site_spider.intake.intake import Intake, LoopCalls
from site_spider.seed.seed import Seed, parse_seed

P = Partition("seeds", 0)


def run(scenario: Callable[[Mock, asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """With an owner of seeds that notes what it hears, and answers a revocation when the test says so."""

    async def with_an_owner() -> None:
        may_answer = asyncio.Event()

        async def answer() -> Mapping[Partition, Position]:
            await may_answer.wait()
            return {P: Position(5)}

        await scenario(Mock(**{"revoked.side_effect": lambda _partitions: answer()}), may_answer)

    asyncio.run(with_an_owner())


def heard(owner: Mock) -> list[str]:
    return [name for name, *_ in owner.mock_calls]


def intake(owner: Any, wait_seconds: float, parse: Callable[[bytes | None], Seed] = parse_seed) -> Intake:
    background = Background(owner.failed)
    return Intake(Mock(), owner, parse, wait_seconds, Mock(), LoopCalls(background), background.fail)


def test_an_assignment_that_was_given_up_ends_before_the_next_begins() -> None:
    """However late its answer comes; nothing is committed by it."""

    async def scenario(owner: Mock, may_answer: asyncio.Event) -> None:
        taken = intake(owner, 0.0)
        assert taken.revoked([P]) == {}  # the loop is so late that it hears all of this at once
        taken.assigned({P: None})
        may_answer.set()
        await asyncio.sleep(0)
        assert heard(owner) == ["revoked", "lost", "assigned"]
        assert taken._mine == {P}

    run(scenario)


def test_an_answer_in_time_is_committed() -> None:
    async def scenario(owner: Mock, may_answer: asyncio.Event) -> None:
        may_answer.set()
        assert await asyncio.to_thread(intake(owner, 10).revoked, [P]) == {P: Position(5)}
        assert heard(owner) == ["revoked"]

    run(scenario)


def test_a_bug_in_what_the_loop_is_told_reaches_the_owner() -> None:
    """The event loop would log it and go on without."""

    async def scenario(owner: Mock, _may_answer: asyncio.Event) -> None:
        owner.reached.side_effect = bug = RuntimeError("a bug of the owner")
        await asyncio.to_thread(intake(owner, 0).reached, P, 3)
        await asyncio.sleep(0)
        owner.failed.assert_called_once_with(bug)

    run(scenario)


def test_a_message_that_breaks_its_reader_is_a_dead_letter() -> None:
    """The intake would end with it, and the next one again."""

    async def scenario(owner: Mock, _may_answer: asyncio.Event) -> None:
        read = intake(owner, 0, Mock(side_effect=RecursionError("too deep")))._read(Message(P, 3, None, b"[[[["))
        assert isinstance(read, SeedError)
        assert read.reason == "the message could not be read: RecursionError('too deep')"

    run(scenario)
