"""Partitions leave when what was fetched of them is stored: their next owner need not fetch it again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from scrapy.crawler import Crawler

from site_spider.contracts.sink import ACKNOWLEDGED, Record, Verdict
from site_spider.errors import SinkUnavailable
from site_spider.service.service import SeedService
from tests.in_process.engine import crawl
from tests.intake.test_repeats import ScriptedConsumer, Site, do, has_been_revoked, revoke, run, script, seeds

__all__ = ["script"]

GRACE_SECONDS = 0.1


class SlowSink:
    """Keeps what it is given until the test lets it answer."""

    name = "slow"
    away: ClassVar[bool] = False
    writes: ClassVar[int] = 0
    may_answer: ClassVar[asyncio.Event]

    @classmethod
    def from_settings(cls, _settings: Any) -> Self:
        cls.may_answer = asyncio.Event()
        return cls()

    async def open(self) -> None:
        pass

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        type(self).writes += 1
        await self.may_answer.wait()
        if self.away:
            raise SinkUnavailable("the slow sink is away")
        return [ACKNOWLEDGED] * len(records)

    async def close(self) -> None:
        pass


SLOW = {"SITE_SINKS": f"local,{__name__}.SlowSink", "SITE_REVOKE_GRACE_SECONDS": GRACE_SECONDS}


@pytest.fixture(autouse=True)
def fresh_sink() -> Iterator[None]:
    yield
    SlowSink.away, SlowSink.writes = False, 0


def let_answer() -> None:
    SlowSink.may_answer.set()


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
        lambda _s: site.asked.total() == 5 and SlowSink.writes > 0,
        do(revoke),
        is_active_for(3 * GRACE_SECONDS),
        do(let_answer),
        has_been_revoked,
    ]
    found = run(tmp_path, paths, steps, **SLOW)
    assert handed_over() == 5
    assert site.asked == Counter(paths)
    assert found.lag == 0


def test_partitions_do_not_wait_for_a_sink_that_is_away(tmp_path: Path) -> None:
    """It may be away for hours: they leave, and the next owner repeats what was not stored."""
    site = Site("/one")
    SlowSink.away = True

    def comes_back() -> None:
        SlowSink.away = False

    steps = [
        lambda _s: SlowSink.writes > 0,
        do(revoke),
        is_active_for(2 * GRACE_SECONDS),
        do(let_answer),
        has_been_revoked,
        do(comes_back),
    ]
    found = run(tmp_path, ["/one"], steps, **SLOW)
    assert ScriptedConsumer.revoked[0] == {} or handed_over() == 0
    assert site.asked == {"/one": 1}
    assert found.lag == 0


def test_a_stop_in_the_middle_of_a_handover_takes_nothing_from_it(tmp_path: Path) -> None:
    """The stop lets the downloads end, too; what they bring is committed as the partitions leave."""
    site = Site("/slow", slow=frozenset({"/slow"}))
    is_active = is_active_for(0)
    steps = [lambda _s: site.asked["/slow"] == 1, do(revoke), is_active]

    def until(crawler: Crawler) -> bool:
        service = SeedService.of(crawler)
        if service is not None and service.is_open and steps[0](service):
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
