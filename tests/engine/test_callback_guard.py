"""Callbacks are bounded in time, and cost no timer when they answer at once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pytest

from site_spider import runtime
from site_spider.engine.callback_guard import CallbackBroken, CallbackCancelled, CallbackTimeout, Watchdog, guarded
from tests.in_process import virtual_time

Callback = Callable[[], Awaitable[Any]]


async def at_once() -> list[int]:
    return [1]


async def after_three_waits() -> str:
    await asyncio.sleep(0)
    first = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.01, first.set_result, "a")
    return await first + await asyncio.wait_for(later("b"), 300)


async def later(value: str) -> str:
    await asyncio.sleep(0.01)
    return value


async def for_ever() -> None:
    await asyncio.Event().wait()


async def swallowing() -> str:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "cleaned up"
    return "never"


def raising(error: BaseException, *, later: bool) -> Callback:
    async def callback() -> None:
        if later:
            await asyncio.sleep(0)
        raise error

    return callback


async def own_timeout() -> str:
    try:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
    except TimeoutError:
        return "own"
    return "never"


async def test_what_answers_at_once_sets_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("a timer")

    monkeypatch.setattr(asyncio, "timeout", refused)
    assert await guarded(at_once, 120)() == [1]
    with pytest.raises(AssertionError, match="a timer"):
        await guarded(after_three_waits, 120)()


@pytest.mark.parametrize(("callback", "answer"), [(after_three_waits, "ab"), (own_timeout, "own"), (at_once, [1])])
async def test_what_waits_answers_as_without_a_guard(callback: Callback, answer: object) -> None:
    assert await guarded(callback, 120)() == answer


@pytest.mark.parametrize("callback", [for_ever, swallowing])
async def test_what_waits_too_long_is_ended(callback: Callback) -> None:
    """It is told by CancelledError; who does away with that has answered, but too late."""
    if callback is swallowing:
        assert await guarded(callback, 0.01)() == "cleaned up"
        return
    with pytest.raises(CallbackTimeout, match=r"SITE_CALLBACK_TIMEOUT_SECONDS=0.01"):
        await guarded(callback, 0.01)()


async def test_time_before_the_first_wait_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback that has computed for all of its time is ended where it waits."""
    clock = [0.0]
    monkeypatch.setattr(runtime, "monotonic", lambda: clock[0])

    async def slow() -> None:
        clock[0] = 120.0
        await asyncio.Event().wait()

    with pytest.raises(CallbackTimeout):
        await guarded(slow, 120)()


class Panic(BaseException):
    """As extensions in Rust raise it."""


@pytest.mark.parametrize("later", [False, True])
async def test_what_would_end_no_request_is_an_ordinary_error(later: bool) -> None:
    """A stray CancelledError, and what is no exception; an error comes as it was raised, nothing as its context."""
    with pytest.raises(CallbackCancelled):
        await guarded(raising(asyncio.CancelledError(), later=later), 120)()
    with pytest.raises(CallbackBroken, match="Panic: x"):
        await guarded(raising(Panic("x"), later=later), 10)()
    with pytest.raises(ValueError, match="mine") as caught:
        await guarded(raising(ValueError("mine"), later=later), 120)()
    assert caught.value.__context__ is None


@pytest.mark.parametrize("callback", [for_ever, swallowing])
async def test_a_task_that_is_cancelled_tells_its_callback(callback: Callback) -> None:
    task = asyncio.ensure_future(guarded(callback, 120)())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert (task.cancelled() or task.result()) == (True if callback is for_ever else "cleaned up")


async def test_a_coroutine_that_is_closed_closes_its_callback() -> None:
    said: list[str] = []

    async def tidy() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            said.append("closed")

    work = guarded(tidy, 120)()
    work.send(None)
    work.close()
    assert said == ["closed"]


class Rows:
    """An iterator that is no generator, and has something to give back."""

    is_closed = False

    def __iter__(self) -> Rows:
        return self

    def __next__(self) -> int:
        return 1

    def close(self) -> None:
        self.is_closed = True


async def test_items_that_nobody_takes_any_more_are_closed() -> None:
    """As `yield from` does it; what is wrong then is an ordinary error, too."""
    rows = Rows()
    items = guarded(lambda: rows, 9)()
    assert next(items) == 1
    assert not rows.is_closed
    items.close()
    assert rows.is_closed

    def stray() -> Any:
        try:
            yield 1
        finally:
            raise asyncio.CancelledError

    items = guarded(stray, 9)()
    next(items)
    with pytest.raises(CallbackCancelled):
        items.close()


def test_items_are_given_one_by_one_within_the_time() -> None:
    got: list[int] = []

    async def items() -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(0)
        yield 2
        await asyncio.Event().wait()

    async def main() -> None:
        async for item in guarded(items, 5)():
            got.append(item)
            await asyncio.sleep(6)

    with pytest.raises(CallbackTimeout):
        virtual_time.run(main())
    assert got == [1, 2]


def test_the_time_in_which_the_process_stood_still_hardly_counts() -> None:
    """As by Ctrl-Z, or in a container that was paused."""

    async def items() -> AsyncIterator[int]:
        for number in range(3):
            await asyncio.sleep(50)
            yield number

    async def answer() -> int:
        await asyncio.sleep(250)
        return 3

    async def main() -> list[int]:
        guarded_items, answered = guarded(items, 300)(), asyncio.create_task(guarded(answer, 300)())
        first = asyncio.create_task(anext(guarded_items))
        await asyncio.sleep(1)
        virtual_time.skip(3_600)
        return [await first, *[item async for item in guarded_items], await answered]

    assert virtual_time.run(main()) == [0, 1, 2, 3]


async def test_a_generator_that_panics_is_an_ordinary_error() -> None:
    def generator() -> Any:
        yield 1
        raise Panic("x")

    with pytest.raises(CallbackBroken, match="Panic: x"):
        list(guarded(generator, 10)())


async def test_what_ends_the_process_ends_it() -> None:
    def leaving() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        guarded(leaving, 10)()


class Odd:
    """Its name is none."""

    __name__ = 7

    def __call__(self) -> list[int]:
        return [1]

    def method(self) -> list[int]:
        return [2]

    method.__signature__ = inspect.signature(method)  # type: ignore[attr-defined] # as decorators leave it


def test_whatever_can_be_called_is_guarded_and_has_the_arguments_of_the_method() -> None:
    """Its name is taken over for others to see: what cannot be seen ends no page, and `self` is no argument."""
    assert guarded(Odd(), 10)() == [1]
    method = guarded(Odd().method, 10)
    assert (method(), method.__name__, [*inspect.signature(method).parameters]) == ([2], "method", [])


@pytest.mark.parametrize(
    ("steps", "cpu_seconds", "is_bitten"),
    [([1] * 9, 0, False), ([1] * 15, 0, True), ([1, 1000, 1], 0, False), ([1, 1000], 1000, True)],
    ids=["not so long", "blocked", "the process stood still", "nothing else could run"],
)
async def test_a_loop_that_is_blocked_for_long_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, steps: list[int], cpu_seconds: int, is_bitten: bool
) -> None:
    """But not when the process goes on after a pause: its threads do so in any order."""
    now, left, bitten = 100.0, iter(steps), Mock()

    def sleep(_seconds: float) -> None:
        nonlocal now
        now += next(left)

    cpu = iter([0, 0, *[cpu_seconds] * len(steps)])
    clock = {"monotonic": lambda: now, "process_time": lambda: next(cpu), "sleep": sleep, "Thread": Mock()}
    for name, value in clock.items():
        monkeypatch.setattr(runtime, name, value)
    watchdog = Watchdog(10, bitten, Mock())
    with suppress(StopIteration):
        watchdog._watch()
    watchdog.stop()
    assert bitten.called is is_bitten


def test_an_event_loop_that_goes_on_is_not_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "Thread", Mock())

    async def half_a_minute() -> None:
        watchdog = Watchdog(2, Mock(), Mock())
        for _ in range(60):
            await asyncio.sleep(0.5)
            assert watchdog._blocked() < 2
        watchdog.stop()

    virtual_time.run(half_a_minute())
