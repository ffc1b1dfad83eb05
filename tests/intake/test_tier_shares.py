"""What each tier may have in flight."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from site_spider.contracts.seed_log import Partition
from site_spider.intake.room import LEAST, Load, PollRoom, SeedLimits, TierShares
from site_spider.ledger.ledger import Ledger, Outcome

WEIGHTS = {"urgent": 8.0, "seeds": 4.0, "bulk": 1.0}


def test_a_tier_alone_is_lent_half_of_what_the_others_leave() -> None:
    """1,300 by 8, 4 and 1: its own 100, and half of 1,200."""
    assert TierShares(WEIGHTS).room({"urgent": 0, "seeds": 0, "bulk": 0}, 1_300)["bulk"] == 700
    assert TierShares(WEIGHTS).room({"urgent": 0, "seeds": 0, "bulk": 700}, 1_300)["bulk"] == 0
    assert TierShares(WEIGHTS).room({"bulk": 0}, 1_300)["bulk"] == 1_300


def test_a_tier_gives_back_what_it_was_lent() -> None:
    """It goes on when it has a quarter of its share free again."""
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
        room = shares.room(in_flight, most)
        taken = min(count, room[tier], max(0, most - sum(in_flight.values())))
        in_flight[tier] = max(0, in_flight[tier] - count) if ends else in_flight[tier] + taken
        if in_flight["urgent"] == 0:  # much of its share is free whatever the others have
            assert most - sum(in_flight.values()) >= int(most * 8 / 13 / 4) - len(WEIGHTS)
        for other in WEIGHTS:
            if in_flight[other] == 0 and tier != other:
                assert TierShares(WEIGHTS).room(in_flight, most)[other] >= 1


def polled(topic: str, count: int, ledger: Ledger) -> None:
    first = ledger.next_offset(Partition(topic, 0)) or 0
    for offset in range(first, first + count):
        ledger.take(Partition(topic, 0), offset)


def room_of(limits: SeedLimits, load: Load | None = None) -> tuple[PollRoom, Ledger]:
    ledger = Ledger()
    for topic in WEIGHTS:
        ledger.assign(Partition(topic, 0), None)
    return PollRoom(ledger, load or Load(1_000, 10**12), limits, lambda: True, WEIGHTS), ledger


def poll_all(room: PollRoom, ledger: Ledger, topic: str) -> int:
    """As the intake does, until the topic is paused or there is no room."""
    for _ in range(1_000):
        room.look()
        if Partition(topic, 0) in room.closed() or room.now() <= 0:
            break
        polled(topic, min(200, room.now()), ledger)
    return ledger.open_count(Partition(topic, 0))


def test_a_backlog_of_bulk_leaves_room_for_an_urgent_seed() -> None:
    room, ledger = room_of(SeedLimits(20_000, 50_000))
    assert poll_all(room, ledger, "bulk") > 400
    assert poll_all(room, ledger, "urgent") > 300
    assert poll_all(room, ledger, "seeds") > 0


def test_a_few_of_each_tier_are_polled_where_memory_is_full_of_others() -> None:
    load = Load(1_000, 10**12)
    room, ledger = room_of(SeedLimits(20_000, 50_000), load)
    assert poll_all(room, ledger, "bulk") > 400
    for _ in range(1_000):
        load.add_request(1)
    load.look()
    assert poll_all(room, ledger, "urgent") == LEAST
    assert poll_all(room, ledger, "bulk") > 400
    assert room.capacity() >= 1


def test_the_least_there_may_be_is_enough_for_each_tier() -> None:
    room, ledger = room_of(SeedLimits(1, 50_000))
    for topic in WEIGHTS:
        assert poll_all(room, ledger, topic) == 1
    entry = ledger.open_entries(Partition("bulk", 0))[0]
    ledger.decide(entry, Outcome.RESULT)
    ledger.release(entry)
    assert poll_all(room, ledger, "bulk") == 1
