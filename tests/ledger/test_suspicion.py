"""How deaths are counted over restarts."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from site_spider.contracts.seed_log import Partition, Position
from site_spider.errors import LedgerError
from site_spider.ledger.ledger import Ledger, Outcome, SeedInFlight
from site_spider.ledger.metadata import (
    CAREFUL_OFFSETS,
    MAX_BYTES,
    NO_SUSPICION,
    Ahead,
    Suspicion,
    decode_suspicion,
    encode_suspicion,
)
from site_spider.ledger.metadata import decode as decode_ahead
from site_spider.ledger.metadata import encode as encode_ahead

P = Partition("seeds", 0)


def taken(ledger: Ledger, offset: int) -> SeedInFlight:
    entry = ledger.take(P, offset)
    assert entry is not None
    return entry


def complete(ledger: Ledger, entry: SeedInFlight) -> None:
    ledger.decide(entry, Outcome.RESULT)
    ledger.release(entry)


def committed(ledger: Ledger) -> Position:
    position = ledger.position(P)
    assert position is not None
    return position


LIVES = count()


def a_process() -> Ledger:
    return Ledger(owner=f"process {next(LIVES)}")


def a_life(start: Position | None, offsets: range, admitted: range = range(0)) -> Ledger:
    """A process that takes these offsets; it dies with whatever was committed last."""
    ledger = a_process()
    ledger.assign(P, start)
    for offset in offsets:
        entry = ledger.take(P, offset)
        if entry is not None and offset in admitted:
            ledger.admit(entry)
    return ledger


def after_deaths(count: int, offsets: range, admitted: range) -> Position:
    """What is committed when so many processes have died of the same seeds."""
    position: Position | None = None
    for life in range(count):
        position = committed(a_life(position, offsets, admitted if life else range(0)))
    assert position is not None
    return position


lives = st.lists(st.tuples(st.integers(1, 50), st.sets(st.integers(0, 49), max_size=20)), max_size=8)


@given(lives, st.integers(0, 60))
def test_deaths_are_counted_as_if_each_seed_had_a_counter(lives: list[tuple[int, set[int]]], offset: int) -> None:
    """All below the position at their first death; at a later one those that were admitted."""
    suspicion = NO_SUSPICION
    counters: dict[int, int] = {}
    for position, admitted in lives:
        under_way = {each for each in admitted if each < position}
        counters = {
            each: min(3, max(1, counters.get(each, 0) + (each in under_way and each in counters)))
            for each in {*counters, *range(position)}
        }
        suspicion = suspicion.after_death(position, under_way)
    assert suspicion.deaths(offset) == counters.get(offset, 0)
    assert suspicion.is_suspect(offset) == (counters.get(offset, 0) == 3)


named = st.lists(st.integers(0, 10**6), max_size=64, unique=True).map(sorted).map(tuple)


@given(
    st.integers(1, 99), named, named, st.integers(-1, 99), st.integers(0, 5), st.integers(0, 10**15)
)  # fmt: skip
@example(1, (), (), -1, 0, 7)
def test_it_survives_the_text_of_a_commit(
    below: int, twice: tuple[int, ...], thrice: tuple[int, ...], alone: int, deaths: int, watermark: int
) -> None:
    """What concerns incomplete seeds comes back as it was."""
    suspicion = Suspicion(
        watermark + below,
        tuple(watermark + offset for offset in twice),
        tuple(watermark + offset for offset in thrice),
        watermark + alone if alone >= 0 else -1,
        deaths if alone >= 0 else 0,
    )
    assert decode_suspicion(encode_suspicion(suspicion, watermark), watermark) == suspicion


def test_a_stop_a_rebalance_and_an_outage_are_no_deaths() -> None:
    """Whatever was in flight. A process that finds its own name has lost its partitions, which are back."""
    ledger = a_life(None, range(10))
    position, left = committed(ledger), ledger.position(P, leaving=True)
    assert a_life(left, range(0)).of_partition(P).suspicion == NO_SUSPICION
    ledger.revoke(P)
    ledger.assign(P, position)
    assert ledger.of_partition(P).suspicion == NO_SUSPICION
    assert not ledger.of_partition(P).suspicion.is_careful(10)


def test_after_a_death_care_is_taken_and_only_those_admitted_take_part_in_the_next() -> None:
    """What completes or comes later is not counted."""
    assert not any(map(a_life(None, range(8)).of_partition(P).suspicion.is_careful, range(10)))
    twice = a_life(after_deaths(2, range(8), range(2, 4)), range(8)).of_partition(P).suspicion
    assert [twice.deaths(offset) for offset in range(10)] == [1, 1, 2, 2, 1, 1, 1, 1, 0, 0]
    assert all(map(twice.is_careful, range(8 + CAREFUL_OFFSETS)))
    assert not twice.is_careful(8 + CAREFUL_OFFSETS)
    thrice = a_life(after_deaths(3, range(8), range(2, 4)), range(8)).of_partition(P).suspicion
    assert [thrice.is_suspect(offset) for offset in range(10)] == [offset in (2, 3) for offset in range(10)]


def test_one_that_was_admitted_and_is_complete_is_named_no_more() -> None:
    """Nor in the commit that says that it is complete together with its results."""
    ledger = a_life(after_deaths(2, range(8), range(2, 4)), range(2))
    second, third = taken(ledger, 2), taken(ledger, 3)
    for entry in (second, third):
        ledger.admit(entry)
    complete(ledger, second)
    alone = committed(ledger)
    assert decode_ahead(*alone).admitted == (3,)
    assert decode_ahead(*alone).suspicion.twice == (3,)
    with_results = ledger.position(P, besides={3})
    assert with_results is not None
    assert decode_ahead(*with_results).admitted == ()
    assert decode_ahead(*with_results).suspicion.twice == ()
    ledger.decide(third, Outcome.RESULT)
    ledger.release(third)
    with pytest.raises(LedgerError, match="not in flight"):
        ledger.admit(third)


def test_what_is_named_fits_into_a_commit() -> None:
    """However many seeds there are and however far apart they lie."""
    far = range(0, 1_000_000, 900)
    suspicion = NO_SUSPICION
    for _ in range(4):
        suspicion = suspicion.after_death(10**6, far)
    ahead = Ahead(10**6, ((10**6, 10**6 + 5),), "owner", suspicion, tuple(far[:128]))
    assert len(encode_ahead(0, ahead)) <= MAX_BYTES


def test_a_seed_that_dies_alone_twice_is_the_culprit_and_its_neighbours_are_not() -> None:
    """The dead letter is for it alone; the others are done one by one and clear themselves.

    Another death, before it is alone again, is none of its own, and there may be no second proof. While one is alone
    nothing else is in flight, so nothing else can have taken part.
    """
    position = after_deaths(3, range(3), range(2))
    known = a_life(position, range(0)).of_partition(P).suspicion[:3]
    for is_alone in (True, False, False, True):
        ledger = a_life(position, range(4 if is_alone else 2))
        suspicion = ledger.of_partition(P).suspicion
        assert (suspicion[:3], suspicion.is_culprit(0)) == (known, False)
        if is_alone:
            ledger.isolate(ledger.of_partition(P).open[0])
        position = committed(ledger)
    ledger = a_life(position, range(2))
    culprit, neighbour = ledger.of_partition(P).open.values()
    assert [ledger.of_partition(P).suspicion.is_culprit(offset) for offset in (0, 1)] == [True, False]
    ledger.decide(culprit, Outcome.DEAD_LETTER)
    ledger.release(culprit)
    ledger.isolate(neighbour)
    complete(ledger, neighbour)
    assert not ledger.of_partition(P).suspicion.is_culprit(1)


def test_suspects_stay_suspects_when_a_culprit_is_found() -> None:
    """There may be two, and each would take its five deaths otherwise."""
    ledger = a_life(Position(0, encode_ahead(0, Ahead(9, (), "", Suspicion(9, (1, 2), (3, 5), 3, 2)))), range(9))
    ledger.of_partition(P).acquit()
    assert ledger.of_partition(P).suspicion.is_suspect(5)
    assert not any(map(ledger.of_partition(P).suspicion.is_careful, range(9)))
    assert ledger.of_partition(P).suspicion.is_culprit(3)  # until it has ended
    (culprit,) = (entry for entry in ledger.of_partition(P).open.values() if entry.offset == 3)
    ledger.decide(culprit, Outcome.DEAD_LETTER)
    ledger.release(culprit)
    ahead = decode_ahead(*committed(ledger))
    assert ahead.suspicion == Suspicion(thrice=(5,))


@pytest.mark.parametrize("text", ["1", "1,2,3", "a,b,c,,", "1,-2,0,,", "1,2,3,!!,", "1,2,3,,,", "1,2,3,gA==,"])
def test_a_damaged_text_is_refused(text: str) -> None:
    """The commit metadata as a whole then counts as empty."""
    with pytest.raises(ValueError, match=r"suspicion|invalid|unpack|base64|cut off"):
        decode_suspicion(text, 0)
