"""Rebalances that the event loop hears of late: in what order, and of which assignment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from typing import Any

from site_spider.contracts.seed_log import Message, Partition, Position
from site_spider.engine.background import Background
from site_spider.errors import SeedError
from site_spider.intake.intake import Arrival, Intake, LoopCalls
from site_spider.seed.seed import Seed, parse_seed

P = Partition("seeds", 0)


class Owner:
    """Notes what it hears; answers a revocation when the test says so."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.may_answer = asyncio.Event()
        self.failures: list[BaseException] = []

    def room(self) -> int:
        return 10

    def capacity(self) -> int:
        return 10

    def too_wide(self) -> Set[Partition]:
        return frozenset()

    def arrived(self, arrivals: list[Arrival]) -> None:
        self.heard.append("arrived")

    def assigned(self, positions: Mapping[Partition, Position | None]) -> None:
        self.heard.append("assigned")

    def revoked(self, partitions: Sequence[Partition]) -> Awaitable[Mapping[Partition, Position]]:
        self.heard.append("revoked")
        return self._answer()

    async def _answer(self) -> Mapping[Partition, Position]:
        await self.may_answer.wait()
        return {P: Position(5)}

    def lost(self, partitions: Sequence[Partition]) -> None:
        self.heard.append("lost")

    def reached(self, partition: Partition, offset: int) -> None:
        raise RuntimeError("a bug of the owner")


class NoCommits:
    is_awaited = False

    def join(self, _log: object, _listener: object) -> Any:
        raise AssertionError("nobody joins")

    def look(self, consumer: Any, mine: Set[Partition]) -> None:
        pass

    def forget(self, partitions: Sequence[Partition]) -> None:
        pass


def intake(owner: Any, wait_seconds: float, parse: Callable[[bytes | None], Seed] = parse_seed) -> Intake:
    background = Background(owner.failures.append)
    return Intake(
        None,
        owner,
        parse,
        wait_seconds,
        NoCommits(),
        LoopCalls(background),
        background.fail,  # type: ignore[arg-type]
    )


def test_an_assignment_that_was_given_up_ends_before_the_next_begins() -> None:
    """However late its answer comes; nothing is committed by it."""

    async def scenario() -> None:
        owner = Owner()
        taken = intake(owner, 0.0)
        assert await asyncio.to_thread(taken.revoked, [P]) == {}
        await asyncio.to_thread(taken.assigned, {P: None})
        owner.may_answer.set()
        await asyncio.sleep(0)
        assert owner.heard == ["revoked", "lost", "assigned"]
        assert taken._mine == {P}

    asyncio.run(scenario())


def test_an_answer_in_time_is_committed() -> None:
    async def scenario() -> None:
        owner = Owner()
        owner.may_answer.set()
        assert await asyncio.to_thread(intake(owner, 10).revoked, [P]) == {P: Position(5)}
        assert owner.heard == ["revoked"]

    asyncio.run(scenario())


def test_a_bug_in_what_the_loop_is_told_reaches_the_owner() -> None:
    """The event loop would log it and go on without."""

    async def scenario() -> None:
        owner = Owner()
        await asyncio.to_thread(intake(owner, 0).reached, P, 3)
        await asyncio.sleep(0)
        assert [str(error) for error in owner.failures] == ["a bug of the owner"]

    asyncio.run(scenario())


def test_a_message_that_breaks_its_reader_is_a_dead_letter() -> None:
    """The intake would end with it, and the next one again."""

    def broken(_value: object) -> Seed:
        raise RecursionError("too deep")

    async def scenario() -> None:
        read = intake(Owner(), 0, broken)._read(Message(P, 3, None, b"[[[["))
        assert isinstance(read, SeedError)
        assert read.reason == "the message could not be read: RecursionError('too deep')"

    asyncio.run(scenario())
