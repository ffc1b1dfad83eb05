"""What the next owner of a partition does with seeds that were at the death of its last one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response

from site_spider.contracts.seed_log import Message, Partition, Position
from site_spider.intake.seed_queue import SeedQueue
from site_spider.intake.suspects import Quarantine
from site_spider.ledger import metadata as commit_metadata
from site_spider.ledger.completion import Completion
from site_spider.ledger.ledger import Ledger, Outcome, SeedInFlight
from site_spider.ledger.metadata import Ahead, Suspicion
from site_spider.seed.seed import parse_seed
from site_spider.service import config as parts
from site_spider.service.service import SeedService
from tests.in_process import engine
from tests.in_process.engine import crawl, page, produce, settings_for

SEEDS = 40
SLOW = "slow.test"


def seed(number: int, host: str = "host.test") -> dict[str, Any]:
    return {"url": f"http://{host}/{number}", "meta": {"url_id": str(number), "NotExtract": True}}


def leave_behind(folder: Path, seeds: Sequence[Mapping[str, Any]], suspicion: Suspicion) -> None:
    """The seeds are on the topic, and the last commit is that of a process which then died."""
    settings = settings_for(folder)
    log = parts.seed_log(settings)
    topic, group = settings["SITE_SEED_TOPIC"], settings["SITE_CONSUMER_GROUP"]
    produce(log, topic, seeds)
    (partition,) = [each.partition for each in log.progress(topic, group) if each.end]
    joining = Mock(**{"revoked.return_value": {}})
    consumer = log.consumer((topic,), group, joining)
    while not any(partition in call.args[0] for call in joining.assigned.mock_calls):
        consumer.poll(0.05, 1)
    # nobody is named as the owner: what is under suspicion stands as it is, without one death more
    text = commit_metadata.encode(0, Ahead(len(seeds), (), "", suspicion))
    consumer.commit({partition: Position(0, text)})
    consumer.close()
    log.close()


def committed(folder: Path) -> Ahead:
    settings = settings_for(folder)
    log = parts.seed_log(settings)
    found = log.progress(settings["SITE_SEED_TOPIC"], settings["SITE_CONSUMER_GROUP"])
    (position,) = [each.committed for each in found if each.end]
    log.close()
    assert position is not None
    return commit_metadata.decode(*position)


class Site:
    """Pages that take a moment, and who was under way with whom."""

    def __init__(self) -> None:
        self.under_way: set[int] = set()
        self.company: dict[int, set[int]] = {}

    async def answer(self, request: Request) -> Response:
        number = int(request.url.rpartition("/")[2])
        self.under_way.add(number)
        for each in self.under_way:
            self.company[each] = self.company.get(each, set()) | self.under_way
        await asyncio.sleep(0.01)
        self.under_way.discard(number)
        return page(request)


def held(may_answer: asyncio.Event) -> engine.Answer:
    async def wait(request: Request) -> Response:
        await may_answer.wait()
        return page(request)

    return wait


@pytest.mark.parametrize(
    ("suspicion", "culprits"),
    [
        (Suspicion(SEEDS, thrice=(3, 17)), set()),
        (Suspicion(SEEDS, (), (3, 17), alone=3, alone_deaths=2), {3}),  # the second need not die with others
    ],
)
def test_suspects_are_done_one_by_one_and_nobody_else_is_lost(
    tmp_path: Path, suspicion: Suspicion, culprits: set[int]
) -> None:
    """The others wait meanwhile, those that were polled before the suspects included."""
    site = Site()
    engine.ANSWERS.update({f"/{number}": site.answer for number in range(SEEDS)})
    leave_behind(tmp_path, [seed(n) for n in range(SEEDS)], suspicion)
    found = crawl(tmp_path, [])
    assert set(found.documents) == {str(number) for number in range(SEEDS) if number not in culprits}
    assert all(site.company[number] == {number} for number in {3, 17} - culprits)
    assert max(map(len, site.company.values())) > 1
    assert [json.loads(letter.value or b"") for letter in found.dead_letters] == [seed(n) for n in culprits]
    assert found.lag == 0


@pytest.mark.parametrize("alone_deaths", [0, 2])
def test_nothing_begins_before_it_is_committed_that_a_suspect_has_ended(tmp_path: Path, alone_deaths: int) -> None:
    """Else it would count as alone at a death that the next one causes, or its dead letter be repeated."""
    told: list[bool] = []

    async def answer(request: Request) -> Response:
        ahead = await asyncio.to_thread(committed, tmp_path)
        told.append(ahead.suspicion.alone == -1 and (3, 4) in ahead.complete)
        return page(request)

    engine.ANSWERS.update({f"/{number}": answer for number in range(SEEDS) if number != 3})
    alone = Suspicion(SEEDS, (), (3,), alone=3, alone_deaths=alone_deaths)
    leave_behind(tmp_path, [seed(n) for n in range(SEEDS)], alone)
    found = crawl(tmp_path, [], CONCURRENT_REQUESTS=2)
    assert told[0]
    assert len(told) == SEEDS - 1
    assert len(found.dead_letters) == (alone_deaths == 2)
    assert found.lag == 0


def test_after_two_deaths_few_are_under_way_and_each_is_committed_before(tmp_path: Path) -> None:
    slow_may_answer = asyncio.Event()
    unnamed: list[int] = []
    most = 0
    under_way: set[int] = set()

    async def answer(request: Request) -> Response:
        nonlocal most
        number = int(request.url.rpartition("/")[2])
        under_way.add(number)
        most = max(most, len(under_way))
        if number not in (await asyncio.to_thread(committed, tmp_path)).admitted:
            unnamed.append(number)
        if SLOW in request.url:
            await slow_may_answer.wait()
        under_way.discard(number)
        return page(request)

    engine.ANSWERS.update({f"/{number}": answer for number in range(2 * SEEDS)})
    seeds = [seed(n, SLOW) for n in range(SEEDS)] + [seed(n, f"h{n}.test") for n in range(SEEDS, 2 * SEEDS)]
    leave_behind(tmp_path, seeds, Suspicion(2 * SEEDS, twice=(0,)))

    def fast_ones_are_through(crawler: Crawler) -> bool:
        ended = sum(SeedService.of(crawler).parts.completion.ledger.outcomes.values())
        if ended == SEEDS and len(under_way) == 4:  # else it is waited for
            slow_may_answer.set()
        return ended == 2 * SEEDS

    found = crawl(tmp_path, [], until=fast_ones_are_through)
    assert unnamed == []
    assert 4 < most <= 16
    assert len(found.documents) == 2 * SEEDS
    assert found.lag == 0


@pytest.mark.parametrize("suspicion", [Suspicion(SEEDS, twice=(0,)), Suspicion(SEEDS, thrice=tuple(range(SEEDS)))])
def test_a_topic_that_is_made_anew_ends_the_care_for_what_was_on_it(tmp_path: Path, suspicion: Suspicion) -> None:
    may_answer = asyncio.Event()
    is_new = False

    engine.ANSWERS.update({f"/{number}": held(may_answer) for number in range(SEEDS)})
    leave_behind(tmp_path, [seed(n) for n in range(SEEDS)], suspicion)

    def a_new_one_is_through(crawler: Crawler) -> bool:
        nonlocal is_new
        service = SeedService.of(crawler)
        ledger = service.parts.completion.ledger
        if service.parts.completion.begun() and not is_new and ledger.in_flight == SEEDS:
            (old,) = (entry.message for entry in service.parts.completion.begun()[:1])
            new = Message(old.partition, 0, None, json.dumps(seed(1_000)).encode())
            service.parts.seeds.arrived([(new, parse_seed(new.value, frozenset()))])
            is_new = True
            may_answer.set()
        return is_new and sum(ledger.outcomes.values()) == 1 and ledger.in_flight == 0

    found = crawl(tmp_path, [], until=a_new_one_is_through)
    assert "1000" in found.documents


def test_seeds_that_were_not_there_do_not_wait_for_those_that_were(tmp_path: Path) -> None:
    may_answer = asyncio.Event()

    engine.ANSWERS.update({f"/{number}": held(may_answer) for number in range(SEEDS)})
    leave_behind(tmp_path, [seed(n, f"h{n}.test") for n in range(SEEDS)], Suspicion(SEEDS, twice=(0,)))
    others = [seed(n, f"h{n % 50}.test") for n in range(SEEDS, SEEDS + 2_200)]

    def the_last_are_through(crawler: Crawler) -> bool:
        ended = sum(SeedService.of(crawler).parts.completion.ledger.outcomes.values())
        if ended >= 200:  # beyond those that care is taken with
            may_answer.set()
        return ended == SEEDS + 2_200

    found = crawl(tmp_path, others, until=the_last_are_through)
    assert found.lag == 0


def test_seeds_of_other_hosts_are_polled_though_a_slow_one_has_a_thousand_before_them(tmp_path: Path) -> None:
    """Nothing that is here can be served, so more is polled than is enough otherwise."""
    slow_may_answer = asyncio.Event()
    most = 0

    engine.ANSWERS.update({f"/{number}": held(slow_may_answer) for number in range(1_500)})
    seeds = [seed(n, SLOW) for n in range(1_500)] + [seed(n) for n in range(1_500, 1_530)]

    def fast_ones_are_through(crawler: Crawler) -> bool:
        nonlocal most
        service = SeedService.of(crawler)
        most = max(most, service.parts.completion.ledger.in_flight)
        ended = sum(service.parts.completion.ledger.outcomes.values())
        if ended == 30:
            slow_may_answer.set()
        return ended >= 30

    found = crawl(tmp_path, seeds, until=fast_ones_are_through)
    assert most > 1_400
    assert {str(n) for n in range(1_500, 1_530)} <= set(found.documents)


def taken(completion: Completion, queue: SeedQueue, partition: Partition, offset: int) -> SeedInFlight:
    value = json.dumps(seed(offset)).encode()
    waiting = completion.take(Message(partition, offset, None, value), found := parse_seed(value))
    assert waiting is not None
    queue.read(waiting, found)
    return waiting


def test_an_end_that_is_committed_twice_as_partitions_leave_leaves_the_next_suspect_its_turn() -> None:
    """Another partition goes while that commit waits, so it is asked for again; both are answered, one late."""
    ledger = Ledger()
    asked: list[Any] = []
    completion = Completion(ledger)
    queue = SeedQueue(Mock())
    quarantine = Quarantine(completion, queue, Mock(), lambda _positions, then: asked.append(then), Mock())
    ours, other = Partition("seeds", 0), Partition("seeds", 1)
    text = commit_metadata.encode(0, Ahead(2, (), "", Suspicion(2, thrice=(0, 1))))
    completion.assigned({ours: Position(0, text), other: Position(0)})
    for offset in range(2):
        quarantine.let_begin([taken(completion, queue, ours, offset)])
    quarantine.proceed_alone()
    asked.pop()()
    first = queue.pop()
    assert first is not None
    completion.end_as(first, Outcome.RESULT)
    quarantine.proceed_alone()
    completion.lost([other])
    quarantine.lost([other])
    quarantine.proceed_alone()
    one, again = asked
    one()
    quarantine.proceed_alone()
    again()
    asked[-1]()
    second = queue.pop()
    assert second is not None
    assert quarantine.may_begin(second)


def test_a_commit_of_before_does_not_speak_for_a_partition_that_came_back() -> None:
    """Its first seeds wait for one that says whose it is now: else nobody would know of the next death."""
    asked: list[Any] = []
    completion, queue, ours = Completion(Ledger()), SeedQueue(Mock()), Partition("seeds", 0)
    quarantine = Quarantine(completion, queue, Mock(), lambda _positions, then: asked.append(then), Mock())
    completion.assigned({ours: Position(0)})
    quarantine.assigned([ours])
    quarantine.let_begin([taken(completion, queue, ours, 0)])
    completion.lost([ours])
    quarantine.lost([ours])
    completion.assigned({ours: Position(0)})
    quarantine.assigned([ours])
    asked[0]()
    waiting = taken(completion, queue, ours, 0)
    quarantine.let_begin([waiting])
    assert queue.pop() is None
    asked[-1]()
    assert queue.pop() is waiting
