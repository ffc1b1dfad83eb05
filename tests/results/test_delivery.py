"""The driver of batches, over a sink that does what the test says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from site_spider.bounded import LogLimit
from site_spider.contracts.sink import ACKNOWLEDGED, Answer, Record, Verdict
from site_spider.errors import ConfigError, SinkUnavailable
from site_spider.results import delivery as hearing
from site_spider.results.batches_and_retries import BatchLimits
from site_spider.results.delivery import Delivery, OnDemand
from tests.in_process import virtual_time
from tests.in_process.scripted_sink import ScriptedSink

QUICK = BatchLimits(size_bytes=1000, count=10, age_seconds=0.02, under_way=2)
SLOW = BatchLimits(size_bytes=1000, count=10, age_seconds=60, under_way=2)
PATIENCE_SECONDS = 300


def run_test(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await test
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a task was left behind"

    virtual_time.run(bounded())


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until the condition holds; `run` bounds it."""
    while not condition():
        await asyncio.sleep(0.001)


def scripted(**how: Any) -> ScriptedSink:
    sink = ScriptedSink()
    for name, value in how.items():
        setattr(sink, name, value)
    return sink


@asynccontextmanager
async def opened(sink: ScriptedSink, **options: Any) -> AsyncIterator[Delivery]:
    delivery = Delivery(sink, **{"limits": QUICK, **options})
    await delivery.open(300)
    try:
        yield delivery
    finally:
        await delivery.close(0)


def submit(delivery: Delivery, *keys: str, size_bytes: int = 10) -> dict[str, Verdict]:
    answers: dict[str, Verdict] = {}
    for key in keys:

        def done(verdict: Verdict, key: str = key) -> None:
            assert key not in answers, "answered twice"
            answers[key] = verdict

        delivery.submit(Record(key, {"n": key}, size_bytes), done)
    return answers


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [item.getMessage() for item in caplog.records if item.levelno == level]


async def test_records_submitted_before_open_are_written_after_it() -> None:
    sink = ScriptedSink()
    delivery = Delivery(sink, limits=QUICK)
    answers = submit(delivery, *"abcdefghijk")
    assert sink.attempts == 0
    await delivery.open(300)
    await until(lambda: len(answers) == 11)
    assert await delivery.close(300) == 0


async def test_batches_are_due_at_moments_that_have_come_during_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    """uvloop gives a handle that tells no time for a moment less than half a millisecond away."""
    sink = scripted(away=True)
    at_once = BatchLimits(size_bytes=1000, count=10, age_seconds=0.0003, under_way=2)
    async with opened(sink, limits=at_once) as delivery:
        answers: list[dict[str, Verdict]] = []
        for n in range(200):  # each before and after the moment that the one before set
            answers += [submit(delivery, f"{n}"), submit(delivery, f"{n}+")]
            await asyncio.sleep(0)
        await until(lambda: not delivery.available)
        answers.append(submit(delivery, "during"))
        sink.away = False
        await until(lambda: all(answers))
    assert [item for item in caplog.records if item.exc_info] == []


async def test_results_of_a_partition_that_has_left_are_not_written_when_the_sink_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its next owner may have written newer ones meanwhile."""
    caplog.set_level(logging.INFO)
    sink, has_left = scripted(away=True), False
    async with opened(sink) as delivery:
        answers: list[Verdict] = []
        for key in "ab":
            delivery.submit(Record(key, {}, 10), answers.append, is_void=lambda: has_left)
        kept = submit(delivery, "c")
        await until(lambda: not delivery.available)
        has_left, sink.away = True, False
        await until(lambda: kept and len(answers) == 2)
        assert sink.written == [["c"]]
        assert delivery.backlog_count == 0
    assert "Sink scripted does not get 2 results of partitions that have left" in caplog.text


async def test_a_bug_after_a_record_was_accepted_is_told_to_the_owner_and_not_to_its_submitter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who would take it for refused, and hear of it twice."""
    failures: list[BaseException] = []

    async with opened(ScriptedSink(), on_failure=failures.append) as delivery:
        with monkeypatch.context() as patched:
            patched.setattr(delivery._batcher, "next_at", lambda now: 1 / 0)
            answers = submit(delivery, "a")
        assert [type(error) for error in failures] == [ZeroDivisionError]
        submit(delivery, "b")
        await until(lambda: answers)


async def test_an_outage_is_told_once_and_nothing_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """One WARNING when the sink goes away, one INFO when it is back, every record answered once."""
    caplog.set_level(logging.INFO)

    sink = scripted(away=True)
    changes: list[bool] = []
    async with opened(sink, name="statistics here") as delivery:
        delivery.on_change = lambda: changes.append(delivery.available)
        answers = submit(delivery, *(str(number) for number in range(25)))
        assert delivery.available
        await until(lambda: sink.attempts >= 3)
        assert not delivery.available
        assert delivery.backlog_count == 25
        sink.away = False
        await until(lambda: len(answers) == 25)
        assert delivery.available
    assert changes[0] is False
    assert changes[-1] is True
    [warning] = lines(caplog, logging.WARNING)
    assert "connection refused" in warning
    assert "Sink statistics here is away; 25 records wait" in warning
    [info] = lines(caplog, logging.INFO)
    assert "is back after" in info


async def test_a_hanging_write_counts_as_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    sink = scripted(hanging=True)
    async with opened(sink, write_timeout_seconds=0.05) as delivery:
        answers = submit(delivery, "a")
        await until(lambda: not delivery.available)
        sink.hanging = False
        await until(lambda: answers)
    assert "no answer within" in lines(caplog, logging.WARNING)[0]


async def test_a_silent_sink_counts_as_away_long_before_its_write_is_given_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write goes on; its answer ends the outage, and nothing is written twice."""
    monkeypatch.setattr(hearing, "SILENT_SECONDS", 0.05)
    caplog.set_level(logging.INFO)

    sink = scripted(hold=asyncio.Event())
    async with opened(sink, write_timeout_seconds=60) as delivery:
        answers = submit(delivery, "a")
        assert delivery.available
        await until(lambda: not delivery.available)
        sink.hold.set()
        await until(lambda: answers)
        assert delivery.available
        assert sink.attempts == 1
    assert ["is away" in line for line in lines(caplog, logging.WARNING)] == [True]
    assert "is back after" in lines(caplog, logging.INFO)[0]


async def test_a_mistake_in_a_sink_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected error, a wrong number of answers, none at all and a stray cancellation are outages."""

    class Miscounting(ScriptedSink):
        async def write(self, records: Any) -> Any:
            return await super().write(records) * (3 if self.attempts == 1 else 1)

    class Silent(ScriptedSink):
        async def write(self, records: Any) -> Any:
            verdicts = await super().write(records)
            return {1: None, 2: [True]}.get(self.attempts, verdicts)

    for sink, failure in (
        (ScriptedSink(), KeyError("oops")),
        (ScriptedSink(), asyncio.CancelledError()),
        (Miscounting(), None),
        (Silent(), None),
    ):
        sink.failure = failure
        async with opened(sink) as delivery:
            answers = submit(delivery, "a")
            await until(lambda: not delivery.available)
            assert answers == {}
            sink.failure = None
            await until(lambda: answers)  # noqa: B023
    assert any("oops" in line for line in lines(caplog, logging.WARNING))


async def test_rejected_records_are_final_and_their_lines_limited(caplog: pytest.LogCaptureFixture) -> None:
    sink = ScriptedSink()
    sink.answer = lambda record: Verdict(Answer.REJECTED, f"no {record.key}\n" + "x" * 5000)
    async with opened(sink) as delivery:
        answers = submit(delivery, *(str(number) for number in range(50)))
        await until(lambda: len(answers) == 50)
        assert answers["7"].answer is Answer.REJECTED
        assert answers["7"].reason.startswith("no 7")
    warnings = lines(caplog, logging.WARNING)
    assert len(warnings) == 10
    assert all(len(line) < 400 and "\n" not in line for line in warnings)


async def test_a_record_does_not_wait_for_the_pause_of_a_busy_one() -> None:
    """The timer of the pause is later than that of its batch."""
    sink = ScriptedSink()
    sink.answer = lambda record: Verdict(Answer.RETRY, "429") if record.key == "busy" else ACKNOWLEDGED
    async with opened(sink) as delivery:
        submit(delivery, "busy", "a")
        await until(lambda: sink.written)
        answers = submit(delivery, "b")
        await until(lambda: answers)
    assert sink.written[:2] == [["busy", "a"], ["b"]]


async def test_an_error_in_one_callback_does_not_reach_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(ScriptedSink()) as delivery:

        def broken(verdict: Verdict) -> None:
            raise KeyError("broken callback")

        delivery.submit(Record("a", {}, 1), broken)
        answers = submit(delivery, "b")
        await until(lambda: answers)
        assert delivery.backlog_count == 0
    assert len(lines(caplog, logging.ERROR)) == 1


async def test_a_callback_may_submit_the_next_record() -> None:
    async with opened(ScriptedSink()) as delivery:
        answers: dict[str, Verdict] = {}
        delivery.submit(Record("a", {}, 1), lambda verdict: answers.update(submit(delivery, "b")))
        await until(lambda: delivery.backlog_count == 0)


async def test_close_writes_everything_whatever_its_age() -> None:
    sink = ScriptedSink()
    async with opened(sink, limits=SLOW) as delivery:
        answers = submit(delivery, *"abcdefghijklm")
        assert await delivery.close(300) == 0
        assert len(answers) == 13
        assert sink.closed == 1
        with pytest.raises(SinkUnavailable):
            submit(delivery, "late")
    assert sink.closed == 1


async def test_what_a_stop_leaves_is_told_under_the_name_of_its_delivery(caplog: pytest.LogCaptureFixture) -> None:
    """Statistics that a stop left were told as records of the sink of results."""
    sink = scripted(away=True)
    async with opened(sink, name="statistics s") as delivery:
        submit(delivery, "a")
        await until(lambda: not delivery.available)
        await delivery.close(0.1)
    assert "Sink statistics s: no time left for 1 records." in caplog.messages


async def test_close_tries_an_unavailable_sink_again_at_once() -> None:
    """A long back-off does not eat the grace period."""
    sink = scripted(away=True)
    async with opened(sink) as delivery:
        answers = submit(delivery, "a")
        await until(lambda: sink.attempts == 3)
        sink.away = False
        began = asyncio.get_running_loop().time()
        assert await delivery.close(300) == 0
        # the third pause is 2 s or more; a write that fails meanwhile begins anew, with up to 1 s
        assert asyncio.get_running_loop().time() - began < 1.8
        assert answers


async def test_a_cancelled_close_leaves_no_task() -> None:
    sink = scripted(hanging=True)
    delivery = Delivery(sink, limits=QUICK)
    await delivery.open(300)
    submit(delivery, "a")
    closing = asyncio.create_task(delivery.close(60))
    await until(lambda: sink.under_way)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert sink.under_way == 0
    assert sink.closed == 1


async def test_open_waits_for_a_sink_that_is_away_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    sink = scripted(opened_after=3)
    delivery = Delivery(sink)
    await delivery.open(300)
    assert sink.open_attempts == 4
    await delivery.close(300)
    [warning] = lines(caplog, logging.WARNING)
    assert "SITE_SCRIPTED_HOSTS is 'nowhere:1'" in warning


async def test_open_gives_up_in_time_and_releases_the_sink() -> None:
    sink = scripted(opened_after=1000)
    began = asyncio.get_running_loop().time()
    with pytest.raises(SinkUnavailable, match="SITE_SCRIPTED_HOSTS"):
        await Delivery(sink).open(0.5)
    assert asyncio.get_running_loop().time() - began < 1
    assert sink.closed == 1


async def test_verdicts_may_be_the_values_of_a_dict() -> None:
    """As they always could; only what is none is an outage."""

    class ByKey(ScriptedSink):
        async def write(self, records: Any) -> Any:
            verdicts = await super().write(records)
            return {record.key: verdict for record, verdict in zip(records, verdicts, strict=True)}.values()

    delivery = Delivery(sink := ByKey(), limits=QUICK)
    await delivery.open(300)
    submit(delivery, "page")
    assert await delivery.close(60) == 0
    assert sink.attempts == 1


async def test_a_sink_that_was_about_to_be_opened_is_released() -> None:
    """Its thread would hold up the end of the process."""

    class Slow(ScriptedSink):
        async def open(self) -> None:
            await asyncio.Event().wait()

    delivery = Delivery(OnDemand(sink := Slow()), limits=QUICK)
    await delivery.open(300)
    submit(delivery, "item")
    assert await delivery.close(1) == 1
    assert sink.closed == 1
    unused = Delivery(OnDemand(sink := ScriptedSink()), limits=QUICK)
    await unused.open(300)
    await unused.close(0)
    assert sink.closed == 0


async def test_open_passes_a_wrong_setting_on_at_once() -> None:
    """What waiting cannot mend is not waited for."""

    class Misconfigured(ScriptedSink):
        async def open(self) -> None:
            raise ConfigError("SITE_SCRIPTED_HOSTS is empty, but must be set.")

    with pytest.raises(ConfigError):
        await Delivery(Misconfigured()).open(60)


def test_a_period_has_so_many_lines_and_the_rest_is_counted() -> None:
    limit = LogLimit(count=2, period_seconds=10)
    assert [limit.admit(now) for now in (0, 1, 2, 9.9)] == [True, True, False, False]
    assert limit.admit(10)
    assert limit.take_held_back() == 2
    assert limit.take_held_back() == 0
