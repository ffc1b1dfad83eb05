"""What holds for every dupefilter that SITE_DUPEFILTER names."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from site_spider.contracts.done_store import DoneUnavailable
from tests.contracts.dupefilters import ELSEWHERE, KINDS, Case, Seed, case, until

__all__ = ["case"]

every_kind = pytest.mark.parametrize("case", KINDS, indirect=True)
kinds_elsewhere = pytest.mark.parametrize("case", ELSEWHERE, indirect=True)


# --- all of them -------------------------------------------------------------------------------


@every_kind
async def test_a_page_is_new_once(case: Case) -> None:
    async with case.member() as member:
        seed, other = Seed(), Seed()
        assert await member.new(seed, "a", "b", "a") == ["a", "b"]
        assert await member.new(other, "b", "c") == ["c"]
        member.complete(seed)
        await member.written()
        assert await member.new(other, "a", "b", "c", "d") == ["d"]


@every_kind
async def test_what_a_seed_met_is_new_again_when_it_goes_elsewhere(case: Case) -> None:
    async with case.member() as member:
        revoked, stays = Seed(), Seed()
        await member.do("done")
        await member.new(stays, "in flight")
        await member.new(revoked, "done", "in flight", "met")
        member.forget(revoked)
        assert await member.new(Seed(), "done", "in flight", "met") == ["met"]


@every_kind
async def test_thousands_of_pages_are_told_from_others(case: Case) -> None:
    async with case.member() as member:
        for start in range(0, 12_000, 3000):
            pages = [str(number) for number in range(start, start + 3000)]
            assert await member.new(Seed(), *pages[:10]) == pages[:10]
            await member.do(*pages[10:])
        await member.written()
        seen = [str(number) for number in range(10, 12_000, 300)]
        new = [str(number) for number in range(12_000, 12_050)]
        assert await member.new(Seed(), *seen, *new) == new


@every_kind
async def test_fingerprints_are_scrapys(case: Case) -> None:
    """The method belongs to them. A request that belongs to no seed is remembered in this process only."""
    async with case.member() as member:
        seed = Seed()
        get, head = seed.request("page"), seed.request("page").replace(method="HEAD")
        await member.dupefilter.prefetch([get, head])
        assert [member.dupefilter.request_seen(request) for request in (get, head)] == [False, False]
        of_none = seed.request("other")
        of_none.meta.clear()
        assert [member.dupefilter.request_seen(of_none) for _ in range(2)] == [False, True]


# --- those whose store outlives the process ----------------------------------------------------


@kinds_elsewhere
@pytest.mark.parametrize("wait_seconds", [10, 0])
async def test_what_was_done_stays_done_over_a_restart(case: Case, wait_seconds: float) -> None:
    """Marks that wait are written at the end; what was in flight is new. A store that is there is asked in any case."""
    async with case.member() as member:
        await member.do("done")
        await member.new(Seed(), "in flight")
    async with case.member(SITE_DUPEFILTER_WAIT_SECONDS=wait_seconds) as member:
        assert await member.new(Seed(), "done", "in flight") == ["in flight"]


@kinds_elsewhere
async def test_processes_share_what_is_done_and_not_what_is_in_flight(case: Case) -> None:
    """In both directions, while both run; what a process had in flight that is killed is new. A group has its own."""
    async with case.member() as member:
        await member.do("mine")
        await member.written()
        await member.new(Seed(), "in my flight")
        async with case.member() as other, case.member(SITE_CONSUMER_GROUP="another") as stranger:
            theirs = Seed()
            assert await other.new(theirs, "mine", "theirs") == ["theirs"]
            other.complete(theirs)
            await other.written()
            in_flight = ["in my flight", "in their flight"]
            assert await other.new(Seed(), *in_flight) == in_flight
            assert await member.new(Seed(), "theirs", "in their flight") == ["in their flight"]
            assert await stranger.new(Seed(), "mine", "theirs") == ["mine", "theirs"]


@kinds_elsewhere
async def test_questions_that_come_together_are_answered_together(case: Case) -> None:
    async with case.member() as member:
        await member.do(*(f"done {number}" for number in range(200)))
        await member.written()
        async with case.member() as fresh:
            found = await asyncio.gather(
                *(fresh.new(Seed(), f"done {number}", f"new {number}") for number in range(200))
            )
        assert found == [[f"new {number}"] for number in range(200)]


@kinds_elsewhere
async def test_the_event_loop_goes_on_while_the_store_is_asked(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that hangs holds up those who ask, for SITE_DUPEFILTER_WAIT_SECONDS, and nobody else."""
    async with case.member(SITE_DUPEFILTER_WAIT_SECONDS=0.5) as member:
        courier = member.dupefilter._courier
        assert courier is not None
        hanging, answers = threading.Event(), []

        def hang(_fingerprints: object) -> set[bytes]:
            answers.append(hanging.wait(300))
            return set()

        monkeypatch.setattr(courier.store, "known", hang)
        asking = asyncio.create_task(member.new(Seed(), "page"))
        assert await asking == ["page"]
        assert answers == []
        assert member.count("unanswered") == 1
        hanging.set()


@kinds_elsewhere
async def test_an_outage_slows_and_loses_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks waits; marks are kept; both go on when the store is back."""
    async with case.member() as member:
        await member.do("before")
        await member.written()
        courier: Any = member.dupefilter._courier
        with away(courier, monkeypatch):
            asking = asyncio.create_task(member.new(Seed(), "before the cache knew", "new"))
            await until(lambda: courier._reads.seconds() > 0)
            await member.do()
            member.dupefilter.seen.done.add(b"a mark")
            await until(lambda: courier._writes.seconds() > 0)
            assert not asking.done()
        assert await asking == ["before the cache knew", "new"]
        await member.written()
        assert b"a mark" in await asyncio.to_thread(courier.store.known, [b"a mark"])


@kinds_elsewhere
async def test_after_a_long_outage_pages_are_fetched_without_asking(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, without a wait for each; and it asks again when the store is back."""
    async with case.member(SITE_DUPEFILTER_WAIT_SECONDS=0.2) as member:
        async with case.member() as other:
            await other.do("page")
        courier: Any = member.dupefilter._courier
        with away(courier, monkeypatch):
            assert await member.new(Seed(), "page") == ["page"]
            began = asyncio.get_running_loop().time()
            for number in range(100):
                assert await member.new(Seed(), f"page {number}") == [f"page {number}"]
            assert asyncio.get_running_loop().time() - began < 100 * 0.2
        await until(lambda: courier._reads.seconds() == 0)
        async with case.member() as other:
            await other.do("another")
        assert await member.new(Seed(), "another") == []


@contextmanager
def away(courier: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fails = True

    def failing(call: Callable[[list[bytes]], Any]) -> Callable[[list[bytes]], Any]:
        def fail(fingerprints: list[bytes]) -> Any:
            if fails:
                raise DoneUnavailable("away")
            return call(fingerprints)

        return fail

    for name in ("known", "add"):
        monkeypatch.setattr(courier.store, name, failing(getattr(courier.store, name)))
    yield
    fails = False
