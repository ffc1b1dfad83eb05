"""Repeats of seeds in flight and of complete ones, and what happens when a partition is handed over."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response

from site_spider.adapters.local.log import LocalConsumer, LocalSeedLog
from site_spider.contracts.seed_log import Listener, Message, Partition, Position
from site_spider.engine.background import Background
from site_spider.errors import LogUnavailable, SeedError
from site_spider.intake.intake import Intake, LoopCalls
from site_spider.seed.seed import Seed, parse_seed
from site_spider.service.service import SeedService
from tests.in_process import engine
from tests.in_process.engine import Crawled, crawl, page
from tests.in_process.scripted_sink import ScriptedSink


class Log(LocalSeedLog):
    """Its consumer does as the test says."""

    def consumer(self, topics: tuple[str, ...], group: str, listener: Listener, **_how: bool) -> LocalConsumer:
        return ScriptedConsumer(self._folder, topics, group, listener)


class ScriptedConsumer(LocalConsumer):
    """The group takes the partitions away and gives them back."""

    lose: ClassVar[bool] = False  # now, once
    revoke: ClassVar[bool] = False  # now, once
    again: ClassVar[bool] = False  # they are given without having been taken, once
    refuses: ClassVar[bool] = False  # commits
    revoked: ClassVar[list[Mapping[Partition, Position]]] = []

    def poll(self, timeout_seconds: float, limit: int) -> list[Message]:
        mine = list(self._offsets)
        if type(self).lose:
            type(self).lose = False
            self._listener.lost(mine)
            self._begin_anew(dict.fromkeys(mine))
        if type(self).again:
            type(self).again = False
            self._begin_anew(dict.fromkeys(mine))
        if type(self).revoke:
            type(self).revoke = False
            positions = self._listener.revoked(mine)
            self.revoked.append(positions)
            self._begin_anew({partition: positions.get(partition) for partition in mine})
        return super().poll(timeout_seconds, limit)

    def _begin_anew(self, positions: Mapping[Partition, Position | None]) -> None:
        for partition, position in positions.items():
            self._offsets[partition] = position.offset if position else 0
        self._announced.clear()
        self._listener.assigned(positions)

    def commit(self, positions: Mapping[Partition, Position]) -> None:
        if self.refuses:
            raise LogUnavailable("the script refuses commits")
        super().commit(positions)


@pytest.fixture(autouse=True)
def fresh_script() -> Iterator[None]:
    yield
    ScriptedConsumer.lose = ScriptedConsumer.revoke = ScriptedConsumer.again = ScriptedConsumer.refuses = False
    ScriptedConsumer.revoked.clear()


class Site:
    """Pages that wait until they are let go, and a count of what was asked for."""

    def __init__(self, *paths: str, slow: frozenset[str] = frozenset(), body: str = "") -> None:
        self.asked: Counter[str] = Counter()
        self._slow = slow
        self._body = body
        self._gate: asyncio.Event | None = None
        for path in paths:
            engine.ANSWERS[path] = self._answer

    async def _answer(self, request: Request) -> Response:
        path = request.url.removeprefix("http://h.test")
        self.asked[path] += 1
        if path in self._slow:
            await self._wait()
        return page(request, self._body if path == "/root" else "")

    async def _wait(self) -> None:
        self._gate = self._gate or asyncio.Event()
        await self._gate.wait()

    def let_go(self) -> None:
        if self._gate is not None:
            self._gate.set()


def seeds(*paths: str) -> list[dict[str, Any]]:
    return [{"url": f"http://h.test{path}", "meta": {"url_id": path}} for path in paths]


def run(folder: Path, paths: list[str], steps: list[Callable[[SeedService], bool]], **settings: Any) -> Crawled:
    """Crawl; each step is tried until it says that it is done."""

    def until(crawler: Crawler) -> bool:
        service = SeedService.of(crawler)
        if steps and steps[0](service):
            steps.pop(0)
        positions = service.parts.completion.ledger.positions().values()
        return (
            not steps
            and service.parts.completion.ledger.in_flight == 0
            and sum(p.offset for p in positions) >= len(paths)
        )

    logs = {"kafka": "unused", "local": f"{__name__}.Log"}
    return crawl(folder, seeds(*paths), until=until, SITE_SEED_LOG_CLASSES=logs, **settings)


def completed(service: SeedService) -> int:
    return sum(service.parts.completion.ledger.outcomes.values())


def do(action: Callable[[], object]) -> Callable[[SeedService], bool]:
    def step(_service: SeedService) -> bool:
        action()
        return True

    return step


def script(**flags: bool) -> Callable[[SeedService], bool]:
    """A step: from now on the consumer does so."""
    return do(lambda: [setattr(ScriptedConsumer, name, value) for name, value in flags.items()])


def has_been_revoked(_service: SeedService) -> bool:
    return bool(ScriptedConsumer.revoked)


MANY = [f"/{number}" for number in range(10)]


@pytest.mark.parametrize("again", [False, True], ids=["lost", "assigned twice"])
@pytest.mark.parametrize(
    ("paths", "slow", "body", "settings", "asked"),
    [
        (["/slow"], "/slow", "", {}, {"/slow": 1}),
        (["/slow", *MANY], "/slow", "", {"CONCURRENT_REQUESTS": 1}, dict.fromkeys(["/slow", *MANY], 1)),
        # its link is refused as it comes, for the seed has no epoch any more
        (["/root"], "/root", "<a href=/link>", {}, {"/root": 2, "/link": 1}),
        # one link is downloading, one waits as the partition is lost: the second is dropped with its epoch
        (["/root"], "/slow", "<a href=/slow><a href=/waits>", {"CONCURRENT_REQUESTS": 1}, {"/waits": 1, "/root": 2}),
    ],
    ids=["it is downloading", "others wait", "a link of it comes", "a link of it waits"],
)
def test_what_goes_on_as_its_partition_is_lost_is_done_once_and_a_tree_that_lost_a_link_again(
    tmp_path: Path, paths: list[str], slow: str, body: str, settings: dict[str, Any], asked: dict[str, int], again: bool
) -> None:
    """Or as they are given without having been taken: what the group says last counts."""
    site = Site(*paths, "/link", "/slow", "/waits", slow=frozenset({slow}), body=body)

    steps = [
        lambda s: site.asked[slow] == 1 and in_flight(s) == len(paths),
        script(**{"again" if again else "lose": True}),
        lambda s: s.parts.completion.ledger.handed_back == len(paths) and in_flight(s) == len(paths),
        do(site.let_go),
    ]
    found = run(tmp_path, paths, steps, **settings)
    assert asked.items() <= site.asked.items()
    assert {said["url"].removeprefix("http://h.test") for said in found.documents.values()} == set(site.asked)
    assert {said["status"] for said in found.documents.values()} == {200}
    assert (found.lag, found.seeds["completed"]) == (0, len(paths))


def in_flight(service: SeedService) -> int:
    return service.parts.completion.ledger.in_flight


@pytest.mark.parametrize(
    ("paths", "body", "settings", "times"),
    [(MANY, "", {}, 1), (["/root"], "<a href=/link>", {"SITE_LINKS_TO": "kafka"}, 2)],
    ids=["pages", "a tree whose link left"],
)
def test_what_was_done_but_not_committed_is_not_fetched_again(
    tmp_path: Path, paths: list[str], body: str, settings: dict[str, Any], times: int
) -> None:
    """An outage of the broker: no commit goes through, then the partitions are lost, and come back.

    A tree whose link left as a message is done again: whoever had the partition meanwhile may have filtered that.
    """
    site = Site(*paths, "/link", slow=frozenset(paths), body=body)
    steps = [
        lambda _s: site.asked.total() > 0,  # the first commit of an epoch lets its seeds begin
        script(refuses=True),
        do(site.let_go),
        lambda s: completed(s) >= len(paths),
        script(lose=True),
        lambda _s: not ScriptedConsumer.lose,
        script(refuses=False),
    ]
    found = run(tmp_path, paths, steps, **settings)
    assert {path: site.asked[path] for path in paths} == dict.fromkeys(paths, times)
    assert set(paths) <= set(found.documents)


def test_partitions_that_are_asked_back_wait_for_their_downloads(tmp_path: Path) -> None:
    """What is downloading ends within the grace, and what has not begun does not begin."""
    paths = ["/slow", *MANY]
    site = Site(*paths, slow=frozenset({"/slow"}))
    handing_over: list[int] = []

    def waits(service: SeedService) -> bool:
        assert service.parts.handover is not None
        if service.parts.handover.active:
            handing_over.append(site.asked.total())
        return len(handing_over) == 5

    steps = [lambda _s: site.asked["/slow"] == 1, script(revoke=True), waits, do(site.let_go), has_been_revoked]
    found = run(tmp_path, paths, steps, CONCURRENT_REQUESTS=1, SITE_REVOKE_GRACE_SECONDS=10)
    assert set(handing_over) == {1}
    assert sum(position.offset for position in ScriptedConsumer.revoked[0].values()) == 1
    assert site.asked == Counter(paths)
    assert found.lag == 0


def test_a_download_that_outlasts_the_grace_is_left_to_the_next_owner(tmp_path: Path) -> None:
    site = Site("/slow", slow=frozenset({"/slow"}))
    steps = [lambda _s: site.asked["/slow"] == 1, script(revoke=True), has_been_revoked, do(site.let_go)]
    found = run(tmp_path, ["/slow"], steps, SITE_REVOKE_GRACE_SECONDS=0.1)
    assert [p.offset for p in ScriptedConsumer.revoked[0].values() if p.offset] == []
    assert found.lag == 0
    assert set(found.documents) == {"/slow"}


@pytest.mark.parametrize("grace_seconds", [0, 10])
def test_partitions_that_come_back_before_the_loop_has_answered_are_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, grace_seconds: float
) -> None:
    """The event loop is so late that the intake went on: twice, and with something under way."""
    paths = ["/slow", *MANY]
    site = Site(*paths, slow=frozenset({"/slow"}))

    def answers_come_late(service: SeedService) -> bool:
        intake, in_time = service.parts.intake, service.parts.intake._receiver.revoked

        async def late(answer: Awaitable[Any]) -> Any:
            found = await answer
            await asyncio.sleep(0.1)
            while len(ScriptedConsumer.revoked) < 2:
                await asyncio.sleep(0.1)
            return found

        intake._revoke_wait_seconds = 0
        monkeypatch.setattr(intake._receiver, "revoked", lambda partitions: late(in_time(partitions)))
        return True

    def answers_come_in_time(service: SeedService) -> bool:
        service.parts.intake._revoke_wait_seconds = 10
        return True

    def revoked(times: int) -> Callable[[SeedService], bool]:
        return lambda _service: len(ScriptedConsumer.revoked) == times

    steps = [
        lambda _s: site.asked["/slow"] == 1,
        answers_come_late,
        script(revoke=True),
        revoked(1),
        lambda s: in_flight(s) == 11,
        script(revoke=True),
        revoked(2),
        lambda s: in_flight(s) == 11,
        answers_come_in_time,
        do(site.let_go),
    ]
    found = run(tmp_path, paths, steps, CONCURRENT_REQUESTS=1, SITE_REVOKE_GRACE_SECONDS=grace_seconds)
    assert ScriptedConsumer.revoked == [{}, {}]
    assert set(found.documents) == set(paths)
    assert found.lag == 0
    assert found.seeds["completed"] == len(paths)
    assert [item.getMessage() for item in caplog.records if item.levelno > logging.WARNING] == []


GRACE_SECONDS = 0.1


class SlowSink(ScriptedSink):
    """Keeps what it is given until the test lets it answer."""

    made: ClassVar[SlowSink]
    hold: asyncio.Event

    @classmethod
    def from_settings(cls, settings: Any) -> SlowSink:
        cls.made = made = cls()
        made.hold = asyncio.Event()
        return made

    @staticmethod
    def is_asked(_service: SeedService) -> bool:
        return SlowSink.made.attempts > 0

    @staticmethod
    def answers(_service: SeedService) -> bool:
        SlowSink.made.hold.set()
        return True


SLOW = {"SITE_SINKS": f"local,{__name__}.SlowSink", "SITE_REVOKE_GRACE_SECONDS": GRACE_SECONDS}


def handed_over() -> int:
    """How many seeds the positions that were given up say are complete."""
    return sum(position.offset for position in ScriptedConsumer.revoked[0].values())


def is_active_for(seconds: float) -> Callable[[SeedService], bool]:
    """A step that ends when the handover has lasted so long, and is still under way."""
    since: list[float] = []

    def step(service: SeedService) -> bool:
        now = asyncio.get_running_loop().time()
        if service.parts.handover.active:
            since.append(now)
        return bool(since) and service.parts.handover.active and now - since[0] > seconds

    return step


def test_partitions_wait_for_a_slow_sink_longer_than_for_downloads(tmp_path: Path) -> None:
    """An index that is just being created, say: what was fetched is committed before they leave."""
    paths = [f"/{number}" for number in range(5)]
    site = Site(*paths)
    steps = [
        lambda s: site.asked.total() == 5 and SlowSink.is_asked(s),
        script(revoke=True),
        is_active_for(3 * GRACE_SECONDS),
        SlowSink.answers,
        has_been_revoked,
    ]
    found = run(tmp_path, paths, steps, **SLOW)
    assert handed_over() == 5
    assert site.asked == Counter(paths)
    assert found.lag == 0


def test_partitions_do_not_wait_for_a_sink_that_is_away(tmp_path: Path) -> None:
    """It may be away for hours: they leave, and the next owner repeats what was not stored."""
    site = Site("/one")

    def is_away(away: bool) -> Callable[[SeedService], bool]:
        return do(lambda: setattr(SlowSink.made, "away", away))

    steps = [
        SlowSink.is_asked,
        is_away(True),
        script(revoke=True),
        is_active_for(2 * GRACE_SECONDS),
        SlowSink.answers,
        has_been_revoked,
        is_away(False),
    ]
    found = run(tmp_path, ["/one"], steps, **SLOW)
    assert ScriptedConsumer.revoked[0] == {} or handed_over() == 0
    assert site.asked == {"/one": 1}
    assert found.lag == 0


def test_a_stop_in_the_middle_of_a_handover_takes_nothing_from_it(tmp_path: Path) -> None:
    """The stop lets the downloads end, too; what they bring is committed as the partitions leave."""
    site = Site("/slow", slow=frozenset({"/slow"}))
    is_active = is_active_for(0)
    steps = [lambda _s: site.asked["/slow"] == 1, script(revoke=True), is_active]

    def until(crawler: Crawler) -> bool:
        service = SeedService.of(crawler)
        if steps[0](service):
            steps.pop(0)
        if not steps:
            asyncio.get_running_loop().call_later(0.2, site.let_go)  # the stop has begun by then
        return not steps

    logs = {"kafka": "unused", "local": "tests.intake.test_repeats.Log"}
    settings = {"SITE_SEED_LOG_CLASSES": logs, "SITE_REVOKE_GRACE_SECONDS": 10}
    found = crawl(tmp_path, seeds("/slow"), until=until, **settings)
    assert handed_over() == 1
    assert found.lag == 0
    assert site.asked == {"/slow": 1}


# --- rebalances that the event loop hears of late: in what order, and of which assignment ----------------


P = Partition("seeds", 0)


def with_an_owner(scenario: Callable[[Mock, asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """With an owner of seeds that notes what it hears, and answers a revocation when the test says so."""

    async def scene() -> None:
        may_answer = asyncio.Event()

        async def answer() -> Mapping[Partition, Position]:
            await may_answer.wait()
            return {P: Position(5)}

        await scenario(Mock(**{"revoked.side_effect": lambda _partitions: answer()}), may_answer)

    asyncio.run(scene())


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

    with_an_owner(scenario)


def test_an_answer_in_time_is_committed() -> None:
    async def scenario(owner: Mock, may_answer: asyncio.Event) -> None:
        may_answer.set()
        assert await asyncio.to_thread(intake(owner, 10).revoked, [P]) == {P: Position(5)}
        assert heard(owner) == ["revoked"]

    with_an_owner(scenario)


def test_a_bug_in_what_the_loop_is_told_reaches_the_owner() -> None:
    """The event loop would log it and go on without."""

    async def scenario(owner: Mock, _may_answer: asyncio.Event) -> None:
        owner.reached.side_effect = bug = RuntimeError("a bug of the owner")
        await asyncio.to_thread(intake(owner, 0).reached, P, 3)
        await asyncio.sleep(0)
        owner.failed.assert_called_once_with(bug)

    with_an_owner(scenario)


def test_a_message_that_breaks_its_reader_is_a_dead_letter() -> None:
    """The intake would end with it, and the next one again."""

    async def scenario(owner: Mock, _may_answer: asyncio.Event) -> None:
        read = intake(owner, 0, Mock(side_effect=RecursionError("too deep")))._read(Message(P, 3, None, b"[[[["))
        assert isinstance(read, SeedError)
        assert read.reason == "the message could not be read: RecursionError('too deep')"

    with_an_owner(scenario)
