"""Pages of tasks are counted once each, from whatever the page log says how often."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request

from site_spider.adapters.local.log import LocalSeedLog
from site_spider.contracts.seed_log import Message, Partition
from site_spider.engine.background import Background
from site_spider.errors import LogUnavailable
from site_spider.ledger.completion import Completion, Job
from site_spider.ledger.ledger import Ledger, Outcome, SeedInFlight
from site_spider.seed.seed import parse_seed
from site_spider.tasks import page_log
from site_spider.tasks.control_log import Endings
from site_spider.tasks.declaration import bounded
from site_spider.tasks.page_log import (
    BadPages,
    CountedPage,
    CountedSeed,
    PageCounts,
    PageLog,
    PageTable,
    key_of,
    read,
    task_of,
    written,
)
from site_spider.tasks.tracker import Tracked, Tracker

TOPIC = "seeds.tasks.pages"

pages = st.builds(
    CountedPage,
    st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5),
    st.integers(0, 2**40),
    st.booleans(),
    st.none() | st.text(max_size=20).filter(lambda text: text.isprintable()) | st.sampled_from(["DNS", "404"]),
)
records = st.lists(st.tuples(st.sampled_from(["one", "two", "é\n"]), st.lists(pages, max_size=8)), max_size=12)


class Topic:
    """A log with one topic; two messages are handed out at a time."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.read_to = self.end = 0

    def reader(self, topic: str, *, compacted: bool) -> Topic:
        assert topic == TOPIC
        assert compacted
        assert self.end == 0, "one reader is enough"
        self.mark_end()
        return self

    def mark_end(self) -> None:
        self.end = len(self.messages)

    @property
    def is_at_end(self) -> bool:
        return self.read_to >= self.end

    def poll(self, timeout_seconds: float) -> list[Message]:
        out = self.messages[self.read_to : self.read_to + 2]
        self.read_to += len(out)
        return out

    def close(self) -> None:
        self.end = -1


def message(offset: int, key: bytes | None, value: bytes | None) -> Message:
    return Message(Partition(TOPIC, 0), offset, key, value)


def messages(said: list[tuple[str, list[CountedPage]]]) -> list[Message]:
    return [
        message(number, key_of(task_id, "w", number), written(those)) for number, (task_id, those) in enumerate(said)
    ]


def reading(found: list[Message], wanted: list[str], told: dict[str, int] | None = None) -> Any:
    bad: list[str] = []
    log: Any = Topic(found)
    with closing(PageTable(log, TOPIC, bad.append)) as table:
        return table.read(wanted, told or {}), len(bad)


def counted(said: list[tuple[str, list[CountedPage]]], task_id: str, start: int) -> PageCounts:
    """By brute force."""
    words = [page for at, (of, those) in enumerate(said) if of == task_id and at >= start for page in those]
    last = {page.page: page for page in words}.values()
    sizes = {page.page: page.size_bytes for page in words if page.size_bytes}
    reasons = [page.reason or "other" for page in last if page.reason is not None]
    return PageCounts(
        sum(page.is_answered for page in last),
        len(reasons),
        sum(sizes.values()),
        {reason: reasons.count(reason) for reason in reasons},
    )


@given(records, st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=4))
def test_the_last_word_on_each_page_counts(
    said: list[tuple[str, list[CountedPage]]], steps: list[tuple[int, int]]
) -> None:
    """Whenever it is read, and whatever was told of before."""
    topic: Any = Topic([])
    written_so_far, told = messages(said), {"one": 0}
    deleted: list[bytes] = []
    with closing(PageTable(topic, TOPIC, pytest.fail)) as table:
        for upto, ended in [*sorted(steps), (len(said), 0)]:
            topic.messages = written_so_far[:upto]
            told["one"] = max(told["one"], min(ended, upto))
            found = table.read(["one", "two", "none"], told)
            deleted += found.stale
            assert found.end == min(upto, len(said))
            assert found.counts["none"] == PageCounts()
            assert found.counts["one"] == counted(said[:upto], "one", told["one"])
            assert found.counts["two"] == counted(said[:upto], "two", 0)
    assert deleted == [
        message.key
        for message, (task_id, _) in zip(written_so_far, said, strict=True)
        if task_id == "one" and message.offset < told["one"]
    ]


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x1f"), min_size=1), st.lists(pages))
def test_what_is_written_is_read(task_id: str, those: list[CountedPage]) -> None:
    assert task_of(key_of(task_id, "w", 3)) == task_id
    assert read(written(those)) == those


@pytest.mark.parametrize(
    "value",
    [
        b"", b"{}x", b"3", b"[3]", b"[[1, 2, true]]", b"[[1, 2, 1, null]]", b"[[1, -2, true, null]]",
        b'[["1", 2, true, null]]', b"[[9223372036854775808, 2, true, null]]", b'[[1, 2, true, "\\ud800"]]',
        b'[[1, 2]]', b'[["1", ""]]', b'[[1, "\\ud800"]]',
        b"[" * 100_000, b"\xff", b"[[1, 1e99, true, null]]", b"[[1, 2, true, {}]]",
    ],
)  # fmt: skip
def test_a_record_that_is_none_is_skipped_and_named(value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    page = CountedPage(1, 10, True, None)
    keys = (key_of("one", "w", number) for number in range(3))
    said = [message(0, next(keys), written([page])), message(1, next(keys), value)]
    found, bad = reading([*said, message(2, None, value), message(3, b"k", b"[]")], ["one"])
    assert bad == 3
    assert [f"{TOPIC}/0 offset {offset}:" in caplog.text for offset in range(4)] == [False, True, True, True]
    assert found.counts["one"] == PageCounts(1, 0, 10, {})
    with pytest.raises(BadPages):
        read(value)


def test_a_seed_that_left_counts_once_by_the_last_word_on_it() -> None:
    """But for a copy that was filtered. What was not counted as spilled is none, whatever its other messages say."""
    left, lost, never = (CountedSeed.at(f"seeds/0/{offset}") for offset in range(3))
    said = [
        [left, lost],
        [left._replace(outcome="failure"), never._replace(outcome="result")],
        [left, left._replace(outcome="result")],
        [left._replace(outcome="filtered")],
    ]
    found, bad = reading(messages([("one", those) for those in said]), ["one"])  # type: ignore[misc]
    assert bad == 0
    assert found.counts["one"].came_back == {"result": 1, "spilled": 1}
    taken_back = [*messages([("one", said[0])]), message(1, key_of("one", "w", 0), None)]  # type: ignore[list-item]
    assert reading(taken_back, ["one"])[0].counts["one"].came_back == {}


def test_a_failure_without_a_reason_has_a_name() -> None:
    """A spider may write anything, and an event with an empty name is none."""
    assert bounded({"": 2, "other": 1, "dns": 3}) == {"other": 3, "dns": 3}


def test_rare_reasons_are_one() -> None:
    many = {f"reason {number}": number + 1 for number in range(80)}
    few = bounded(many)
    assert (len(few), sum(few.values()), few["reason 79"]) == (50, sum(many.values()), 80)
    again = PageCounts(0, 0, 0, few).plus(PageCounts(0, 0, 0, many)).reasons
    assert (len(again), sum(again.values())) == (50, 2 * sum(many.values()))


def away(real: Any, failures: int) -> Any:
    """A producer that fails so often."""
    failed: Future[Any] = Future()
    failed.set_exception(LogUnavailable("away"))
    answers = [failed] * failures
    return SimpleNamespace(send=lambda *record: answers.pop() if answers else real.send(*record))


@pytest.mark.parametrize("failures", [0, 3])
async def test_nothing_is_counted_before_its_pages_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    monkeypatch.setattr(page_log, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(page_log, "_MOST_PAGES", 2)
    log = LocalSeedLog(tmp_path)
    told: list[int] = []

    def stored() -> int:
        with closing(PageTable(log, TOPIC)) as table:
            found = table.read(["t"], {})
        pages: int = found.counts["t"].pages
        return pages

    with closing(log.producer()) as real:
        lines = PageLog(log, away(real, failures), TOPIC, Background(lambda error: pytest.fail(repr(error))))
        lines.add("t", [], lambda: told.append(-1))
        for number in range(7):
            page = CountedPage(number % 5, 1, True, None)
            lines.add("t", [page], lambda: told.append(stored()))
            lines.look()
            await asyncio.sleep(0.002)
        while lines.is_writing:
            lines.look()
            await asyncio.sleep(0.002)

    assert told[0] == -1
    assert len(told) == 8
    assert all(count >= min(number, 5) for number, count in enumerate(told[1:], 1))
    assert stored() == 5


async def test_the_event_loop_goes_on_while_the_pages_of_many_tasks_are_written() -> None:
    """After an outage thousands may have some."""
    turn, sent_in, told = 0, list[int](), list[int]()
    durable: Future[Any] = Future()
    durable.set_result(None)

    def send(*_record: object) -> Future[Any]:
        time.sleep(0.03)
        sent_in.append(turn)
        return durable

    lines = PageLog(Mock(), SimpleNamespace(send=send), TOPIC, Background(lambda error: pytest.fail(repr(error))))  # type: ignore[arg-type]
    for number in range(10):
        lines.add(f"t{number}", [CountedPage(number, 1, True, None)], partial(told.append, number))
    lines.look()
    while lines.is_writing:
        turn += 1
        await asyncio.sleep(0)
    assert told == [*range(10)]
    assert len({*sent_in}) > 5


async def test_many_tasks_are_counted_some_at_a_time() -> None:
    """After an outage of the log of pages the seeds of thousands are done at once."""
    completion, partition = Completion(Ledger()), Partition("seeds", 0)
    control = Mock(get=lambda _task: None, endings=Endings(), writer="w", known=lambda _task: {})
    control.guarded = lambda _task: nullcontext()
    pages: Any = SimpleNamespace(add=lambda _task, _pages, then, _seed: then(), waiting={})
    completion.add(tracker := Tracker(completion, control, pages, lambda _task_id: True), of_tasks=True)
    completion.assigned({partition: None})
    for offset in range(2_000):
        value = b'{"url": "http://h.test/", "meta": {"task_id": "t%d"}}' % offset
        entry = completion.take(Message(partition, offset, None, value), parse_seed(value))
        assert entry is not None
        completion.end_as(entry, Outcome.RESULT)
    for look in range(1, 11):
        tracker.look()
        assert control.write.call_count <= 500 * look
    assert {task for task, *_ in (call.args for call in control.write.call_args_list)} == {
        f"t{n}" for n in range(2_000)
    }


def test_a_table_that_is_closed_reads_no_more(tmp_path: Path) -> None:
    table = PageTable(LocalSeedLog(tmp_path), TOPIC)
    assert table.read(["t"], {}).end == 0
    table.close()
    with pytest.raises(LogUnavailable):
        table.read(["t"], {})


def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    log = LocalSeedLog(tmp_path)
    page = CountedPage(0, 1, True, None)
    with closing(log.producer()) as producer, closing(PageTable(log, TOPIC)) as table:
        for number in range(3):
            those = [page._replace(page=1_000 * number + each) for each in range(1_000)]
            producer.send(TOPIC, key_of("t", "w", number), written(those)).result()
        table._rows.execute("PRAGMA max_page_count = 8")
        with pytest.raises(LogUnavailable, match=r"disk is full.*SQLITE_TMPDIR"):
            table.read(["t"], {})
        assert table.read(["t"], {}).counts["t"].pages == 3_000


class _Repeats:
    """One seed of a task whose partition leaves and comes back."""

    def __init__(self) -> None:
        self.logged: list[CountedPage] = []
        self._partition, self.completion = Partition("seeds", 0), Completion(Ledger())
        log: Any = SimpleNamespace(add=lambda _task, pages, _then, _seed: self.logged.extend(pages), waiting={})
        self.completion.add(Tracker(self.completion, MagicMock(), log, lambda _task_id: True))

    def arrives(self) -> SeedInFlight:
        value = b'{"url": "http://h.test/", "meta": {"task_id": "t", "url_id": "a"}}'
        self.completion.assigned({self._partition: None})
        entry = self.completion.take(Message(self._partition, 0, None, value), seed := parse_seed(value))
        assert entry is not None
        entry.reads(seed)
        return entry

    def leaves(self) -> None:
        self.completion.lost([self._partition])

    def is_written(self, entry: SeedInFlight, **said: Any) -> None:
        job = Job(Request("http://h.test/"), entry)
        self.completion.tell("written", job, {"url_id": "a", "response_size": 5, **said})


def test_what_is_cancelled_where_a_partition_comes_back_is_no_page_though_it_was_one_before() -> None:
    """Its items were not stored when the partition left, so what was done of it does not complete it."""
    seed = _Repeats()
    seed.is_written(seed.arrives(), status=200)
    seed.leaves()
    seed.is_written(entry := seed.arrives(), status=None, description="CancelledError")
    seed.completion.end_as(entry, Outcome.CANCELLED)
    assert [page.is_answered for page in seed.logged] == [False]


def test_a_page_is_counted_for_the_repeat_that_it_completes_also_behind_one_that_left_at_once() -> None:
    seed = _Repeats()
    seed.is_written(seed.arrives(), status=200)
    seed.leaves()
    seed.arrives()
    seed.leaves()
    seed.completion.release(seed.arrives())
    assert [page.is_answered for page in seed.logged] == [True]


def test_pages_of_seeds_that_left_are_few_enough_for_the_memory() -> None:
    """A tree may have hundreds; those that left last are kept, as their seeds may still be under way."""
    tracker = Tracker(Mock(), MagicMock(), Mock(), lambda _task_id: True)
    pages = {number: CountedPage(number, 1, is_answered=True, reason=None) for number in range(500)}
    for offset in range(1_000):
        entry = Mock(partition=Partition("seeds", 0), offset=offset)
        tracker._tracked[entry] = tracked = Tracked("t", "", "")
        tracked.pages = dict(pages)
        tracker.fenced(entry)
    assert 50_000 <= sum(len(left.pages) for left in tracker._left.values()) <= 200_000
    assert (Partition("seeds", 0), 999) in tracker._left
