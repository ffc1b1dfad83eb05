"""How deaths are counted over restarts."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.core.ledger import Entry, Ledger, Outcome
from site_spider.core.seed_log import Partition, Position
from site_spider.core.suspicion import NO_SUSPICION, Suspicion, decode, encode

P = Partition("seeds", 0)


def taken(ledger: Ledger, offset: int) -> Entry:
    entry = ledger.take(P, offset)
    assert entry is not None
    return entry


def complete(ledger: Ledger, entry: Entry) -> None:
    ledger.decide(entry, Outcome.RESULT)
    ledger.release(entry)


def committed(ledger: Ledger) -> Position:
    position = ledger.position(P)
    assert position is not None
    return position


LIVES = count()


def a_process() -> Ledger:
    return Ledger(owner=f"process {next(LIVES)}")


def a_life(start: Position | None, offsets: range) -> Ledger:
    """A process that takes these offsets; it dies with whatever was committed last."""
    ledger = a_process()
    ledger.assign(P, start)
    for offset in offsets:
        ledger.take(P, offset)
    return ledger


@given(st.lists(st.integers(1, 50), max_size=8), st.integers(0, 60))
def test_deaths_are_counted_as_if_each_seed_had_a_counter(positions: list[int], offset: int) -> None:
    """Three bounds say the same as a counter for each seed, for seeds in flight from the first death on."""
    suspicion = NO_SUSPICION
    counters = dict.fromkeys(range(61), 0)
    for position in positions:
        suspicion = suspicion.after_death(position)
        for each in range(position):
            counters[each] += 1
    if offset < 61:
        assert suspicion.deaths(offset) == min(3, counters.get(offset, 0))


@given(
    st.tuples(st.integers(1, 99), st.integers(0, 99), st.integers(0, 99)),
    st.integers(-1, 99),
    st.integers(0, 5),
    st.integers(0, 10**15),
)
def test_it_survives_the_text_of_a_commit(
    below: tuple[int, ...], alone: int, deaths: int, watermark: int
) -> None:
    """What concerns incomplete seeds comes back as it was."""
    bounds = tuple(watermark + bound if bound else 0 for bound in below)
    suspicion = Suspicion(bounds, watermark + alone if alone >= 0 else -1, deaths if alone >= 0 else 0)
    assert decode(encode(suspicion, watermark), watermark) == suspicion


def test_a_partition_left_in_good_order_tells_of_no_death() -> None:
    """A stop or a rebalance is not a death, whatever was in flight."""
    ledger = a_life(None, range(10))
    left = ledger.position(P, leaving=True)
    assert a_life(left, range(0)).suspicion(P) == NO_SUSPICION


def test_what_was_in_flight_at_three_deaths_is_suspect_and_nothing_else() -> None:
    """The seed that stays and those taken with it are counted; what completes or comes later is not."""
    position: Position | None = None
    for life in range(3):
        ledger = a_life(position, range(8))
        if life == 0:
            assert not ledger.is_cautious(P) or position is None
        position = committed(ledger)
    ledger = a_life(position, range(8))
    assert ledger.is_cautious(P)
    assert [ledger.suspicion(P).is_suspect(offset) for offset in range(10)] == [True] * 8 + [False] * 2


def test_a_seed_that_dies_alone_twice_is_the_culprit_and_its_neighbours_are_not() -> None:
    """The dead letter is for it alone; the others are done one by one and clear themselves."""
    position: Position | None = None
    for _ in range(3):
        position = committed(a_life(position, range(3)))
    for _ in range(2):
        ledger = a_process()
        ledger.assign(P, position)
        first = taken(ledger, 0)
        assert not ledger.suspicion(P).is_culprit(0)
        ledger.isolate(first)
        position = committed(ledger)
    ledger = a_process()
    ledger.assign(P, position)
    culprit, neighbour = taken(ledger, 0), taken(ledger, 1)
    assert ledger.suspicion(P).is_culprit(0)
    assert not ledger.suspicion(P).is_culprit(1)
    ledger.decide(culprit, Outcome.DEAD_LETTER)
    ledger.release(culprit)
    ledger.isolate(neighbour)
    complete(ledger, neighbour)
    assert not ledger.suspicion(P).is_culprit(1)


def test_dying_alone_is_no_death_of_the_others() -> None:
    """While one is alone nothing else is in flight, so nothing else can have taken part."""
    position: Position | None = None
    for _ in range(3):
        position = committed(a_life(position, range(2)))
    ledger = a_process()
    ledger.assign(P, position)
    ledger.isolate(taken(ledger, 0))
    taken(ledger, 1)
    before = ledger.suspicion(P).below
    after = a_process()
    after.assign(P, committed(ledger))
    assert after.suspicion(P).below == before


@pytest.mark.parametrize("text", ["1", "1,2,3", "a,b,c,d,e", "1,2,3,-2,0", "1,2,3,4,5,6"])
def test_a_damaged_text_is_refused(text: str) -> None:
    """The commit metadata as a whole then counts as empty."""
    with pytest.raises(ValueError, match=r"suspicion|invalid"):
        decode(text, 0)


def test_a_process_that_finds_its_own_name_has_not_died() -> None:
    """Partitions that were lost in an outage and come back tell of no death."""
    ledger = a_life(None, range(10))
    position = committed(ledger)
    ledger.revoke(P)
    ledger.assign(P, position)
    assert ledger.suspicion(P) == NO_SUSPICION
    assert not ledger.is_cautious(P)
