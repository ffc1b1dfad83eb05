"""How many seeds may be in flight, of which partitions and tiers, and while memory lasts."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.http import Response

from site_spider.contracts.seed_log import Partition
from site_spider.intake import room
from site_spider.intake.room import LEAST, MAX_SEED_BYTES, STEP, Load, PollRoom, SoftLimit, TierShares
from site_spider.ledger.ledger import Ledger, Outcome
from tests.in_process import engine
from tests.in_process.engine import crawl, page

WEIGHTS = {"urgent": 8.0, "seeds": 4.0, "bulk": 1.0}


class Polling:
    """A room, and what is in flight by its ledger."""

    def __init__(self, seeds: int, partitions: list[Partition], load: Load | None = None) -> None:
        self.ledger = Ledger()
        for partition in partitions:
            self.ledger.assign(partition, None)
        self.room = PollRoom(self.ledger, load or Load(1_000, 10**12), seeds, 50_000, room.Pause, WEIGHTS)

    def has(self, partition: Partition, count: int) -> None:
        """So many are in flight."""
        entries = list(self.ledger.of_partition(partition).open.values())
        for entry in entries[count:]:
            self.ledger.decide(entry, Outcome.RESULT)
            self.ledger.release(entry)
        first = self.ledger.next_offset(partition) or 0
        for offset in range(first, first + count - len(entries)):
            self.ledger.take(partition, offset)

    def over(self, *counts: int) -> set[int]:
        """The partitions of a topic of which no more are polled."""
        for number, count in enumerate(counts):
            self.has(Partition("seeds", number), count)
        self.room.look()
        assert set(self.room.closed.values()) <= {room._SHARE}
        return {partition.number for partition in self.room.closed}

    def poll_all(self, topic: str) -> int:
        """As the intake does, until the topic is paused or there is no room."""
        partition = Partition(topic, 0)
        for _ in range(1_000):
            self.room.look()
            if partition in self.room.closed or self.room.now() <= 0:
                break
            self.has(partition, len(self.ledger.of_partition(partition).open) + min(200, self.room.now()))
        return len(self.ledger.of_partition(partition).open)


def of_one_topic(partitions: int, seeds: int = 100) -> Polling:
    return Polling(seeds, [Partition("seeds", number) for number in range(partitions)])


def of_tiers(seeds: int, load: Load | None = None) -> Polling:
    return Polling(seeds, [Partition(topic, 0) for topic in WEIGHTS], load)


# --- of the process ----------------------------------------------------------------------------------------


def test_few_are_in_flight_at_first_more_while_nothing_can_be_served_and_fewer_as_they_complete() -> None:
    (only,) = partitions = [Partition("seeds", 0)]
    polling = Polling(2 * STEP + 1, partitions)

    def limit(in_flight: int) -> int:
        polling.has(only, in_flight)
        polling.room.look()
        return polling.room.now() + in_flight

    # what is polled at once is less: half of the reserve
    assert limit(STEP - 1) == STEP
    polling.room.starved()
    assert limit(2 * STEP - 2) == 2 * STEP - 1
    polling.room.starved()
    assert limit(2 * STEP) == 2 * STEP + 1
    assert limit(0) < STEP
    assert limit(STEP - 1) == STEP
    assert Polling(16, partitions).room.now() == 2


def test_a_greedy_partition_is_left_alone_once_three_quarters_are_taken() -> None:
    assert of_one_topic(4).over(75, 0, 0, 0) == set()
    assert of_one_topic(4).over(76, 0, 0, 0) == {0}
    assert of_one_topic(4).over(50, 5, 26, 9) == {0, 2}
    assert of_one_topic(4).over(25, 25, 25, 25) == set()
    assert of_one_topic(1).over(100) == set()  # there is nobody to leave room for
    assert of_one_topic(0).over() == set()


def test_it_goes_on_with_some_room() -> None:
    polling = of_one_topic(4)
    assert polling.over(60, 10, 10, 10) == {0}
    assert polling.over(20, 30, 10, 10) == {0, 1}
    assert polling.over(18, 30, 10, 10) == {1}
    assert polling.over(0, 30, 0, 0) == set()
    assert polling.over(70, 0, 0, 0) == set()


def test_what_is_reserved_is_a_quarter_and_no_more_than_a_thousand() -> None:
    assert [room.reserve(capacity) for capacity in (1, 4, 100, 4_000, 20_000)] == [1, 1, 25, 1_000, 1_000]


# --- of tiers ----------------------------------------------------------------------------------------------


def test_a_tier_alone_is_lent_half_of_what_the_others_leave() -> None:
    """1,300 by 8, 4 and 1: its own 100, and half of 1,200."""
    assert TierShares(WEIGHTS).room({"urgent": 0, "seeds": 0, "bulk": 0}, 1_300)["bulk"] == 700
    assert TierShares(WEIGHTS).room({"urgent": 0, "seeds": 0, "bulk": 700}, 1_300)["bulk"] == 0
    assert TierShares(WEIGHTS).room({"bulk": 0}, 1_300)["bulk"] == 1_300


def test_a_tier_gives_back_what_it_was_lent() -> None:
    shares = TierShares(WEIGHTS)
    assert shares.room({"urgent": 800, "bulk": 600, "seeds": 400}, 1_300)["bulk"] == 0
    assert shares.room({"urgent": 800, "bulk": 90, "seeds": 400}, 1_300)["bulk"] == 0
    assert shares.room({"urgent": 800, "bulk": 75, "seeds": 400}, 1_300)["bulk"] == 25


@given(
    st.integers(1, 20_000),
    st.lists(st.tuples(st.sampled_from([*WEIGHTS]), st.integers(0, 300), st.booleans()), max_size=60),
)
def test_no_tier_fills_the_place_of_another(most: int, steps: list[tuple[str, int, bool]]) -> None:
    """Whoever takes what they may, of their share and of what may be polled at all."""
    shares, in_flight = TierShares(WEIGHTS), dict.fromkeys(WEIGHTS, 0)
    for tier, count, ends in steps:
        free = shares.room(in_flight, most)
        taken = min(count, free[tier], max(0, most - sum(in_flight.values())))
        in_flight[tier] = max(0, in_flight[tier] - count) if ends else in_flight[tier] + taken
        if in_flight["urgent"] == 0:  # much of its share is free whatever the others have
            assert most - sum(in_flight.values()) >= int(most * 8 / 13 / 4) - len(WEIGHTS)
        for other in WEIGHTS:
            if in_flight[other] == 0 and tier != other:
                assert TierShares(WEIGHTS).room(in_flight, most)[other] >= 1


def test_a_few_of_each_tier_are_polled_where_memory_is_full_of_others() -> None:
    load = Load(1_000, 10**12)
    polling = of_tiers(20_000, load)
    assert polling.poll_all("bulk") > 400
    assert polling.room.closed == {Partition("bulk", 0): room._TIER}
    for _ in range(1_000):
        load.count_request(1, 1)
    load.look()
    assert polling.poll_all("urgent") == LEAST
    assert polling.poll_all("bulk") > 400
    assert polling.room.capacity() >= 1


def test_the_least_there_may_be_is_enough_for_each_tier() -> None:
    polling = of_tiers(1)
    assert [polling.poll_all(topic) for topic in WEIGHTS] == [1, 1, 1]
    polling.has(Partition("bulk", 0), 0)
    assert polling.poll_all("bulk") == 1


# --- of memory ---------------------------------------------------------------------------------------------


def test_links_leave_at_either_limit() -> None:
    load = Load(max_requests=2, max_bytes=1_000)
    load.count_request(1, 10)
    assert not load.is_full
    load.count_request(1, 10)
    assert load.is_full
    load.count_request(-1, 10)
    assert not load.is_full
    load.seed_bytes = 990
    assert load.is_full


def test_seeds_wait_until_a_quarter_is_free() -> None:
    """So that partitions are not paused and resumed for each request."""
    load = Load(max_requests=100, max_bytes=10**9)
    for _ in range(100):
        load.count_request(1, 1)
    load.look()
    assert load.seed_room() == 0
    for _ in range(24):
        load.count_request(-1, 1)
    load.look()
    assert load.seed_room() == 0
    load.count_request(-1, 1)
    load.look()
    assert load.seed_room() > 0


def test_as_many_seeds_are_polled_as_fit_whatever_their_size() -> None:
    """Each may be as large as a message can be; at least one, or a small limit would stop all."""
    load = Load(max_requests=1, max_bytes=10 * MAX_SEED_BYTES)
    assert load.seed_room() == load.seed_capacity() == 10
    load.seed_bytes = 7 * MAX_SEED_BYTES + 1
    assert load.seed_room() == 2
    load.seed_bytes = 10 * MAX_SEED_BYTES - 1
    assert load.seed_room() == 1
    load.seed_bytes = 10 * MAX_SEED_BYTES
    assert load.seed_room() == 0
    assert Load(1, 5).seed_room() == Load(1, 5).seed_capacity() == 1


def test_no_page_is_asked_for_while_the_topic_takes_nothing() -> None:
    load = Load(max_requests=10, max_bytes=10**9)
    for _ in range(5_000):
        load.count_sending(1, 1)
    assert not load.may_download
    load.count_sending(-1, 1)
    assert load.may_download
    load.count_sending(1, 40_000_000)
    load.count_sending(-1, 1)
    assert not load.may_download
    assert load.bytes == 40_000_000 + 4_998


class Used:
    def __init__(self, limit_bytes: int = 1000) -> None:
        self.bytes: int | None = 0
        self.in_flight = 1
        self.limit = SoftLimit(limit_bytes, lambda: self.bytes, lambda: self.in_flight)

    def keeps(self, used_bytes: int | None) -> bool:
        self.bytes = used_bytes
        self.limit.look()
        return self.limit.keeps_intake


def test_memory_keeps_intake_above_its_limit_and_lets_go_well_below_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, room.logger.name):
        kept = list(map(Used().keeps, (900, 1000, 1001, 1500, 999, 951, 949, 999)))
    assert kept == [False, False, True, True, True, True, False, False]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[0] == "Memory is above SITE_MEMORY_SOFT_BYTES=1000, few seeds are polled: 1001 bytes are used"
    assert lines[1].startswith("Memory is below SITE_MEMORY_SOFT_BYTES=1000 again after ")


def test_without_a_limit_a_measure_or_seeds_in_flight_nothing_is_kept() -> None:
    """With nothing in flight waiting would not help."""
    assert not Used(0).keeps(10**12)
    assert not Used().keeps(None)
    used = Used()
    used.in_flight = 0
    assert not used.keeps(2000)


def test_a_crawl_above_its_limit_says_so_once_counts_the_pause_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The process is above one byte all the time: seeds are polled only while none is in flight."""

    async def slow(request: Request) -> Response:
        await asyncio.sleep(0.5)
        return page(request)

    engine.ANSWERS["/slow"] = slow
    seeds = [{"url": f"http://h{number}.test/slow"} for number in range(3)]
    with caplog.at_level(logging.INFO):
        found = crawl(tmp_path, seeds, SITE_MEMORY_SOFT_BYTES=1)
    assert found.lag == 0
    assert len(found.documents) == 3
    assert caplog.text.count("Memory is above SITE_MEMORY_SOFT_BYTES=1, few seeds are polled") == 1
