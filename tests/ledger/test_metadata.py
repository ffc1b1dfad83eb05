"""The text that travels with a commit, and how deaths are counted over restarts."""

from __future__ import annotations

import base64
import zlib
from functools import partial
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
    decode,
    decode_suspicion,
    encode,
    encode_suspicion,
)
from tests.growth import assert_grows

offsets = st.sets(st.integers(1, 400), max_size=300)


def runs_of(complete: set[int], watermark: int) -> tuple[tuple[int, int], ...]:
    runs: list[tuple[int, int]] = []
    for offset in sorted(watermark + one for one in complete):
        if runs and runs[-1][1] == offset:
            runs[-1] = (runs[-1][0], offset + 1)
        else:
            runs.append((offset, offset + 1))
    return tuple(runs)


@given(st.integers(0, 2**53), offsets, st.integers(0, 1000))
def test_what_is_encoded_is_decoded(watermark: int, complete: set[int], beyond: int) -> None:
    ahead = Ahead(watermark + beyond, runs_of(complete, watermark))
    assert decode(watermark, encode(watermark, ahead)) == ahead


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=0, max_size=3000))
def test_the_text_stays_within_its_limit_and_never_claims_too_much(pairs: list[tuple[int, int]]) -> None:
    at, runs = 7, []
    for gap, length in pairs:
        runs.append((at + gap, at + gap + length))
        at += gap + length
    text = encode(7, Ahead(at, tuple(runs)))
    assert len(text.encode()) <= MAX_BYTES
    said = [o for start, end in decode(7, text).complete for o in (start, end - 1)]
    assert all(any(start <= o < end for start, end in runs) for o in said)


def test_alternating_offsets_degrade_to_a_shorter_horizon() -> None:
    runs = tuple((offset, offset + 1) for offset in range(1, 100_000, 2))
    kept = decode(0, encode(0, Ahead(100_000, runs))).complete
    assert kept == runs[: len(kept)]
    assert kept[-1][1] > 20_000


def test_nothing_ahead_is_an_empty_text() -> None:
    assert encode(5, Ahead(5, ())) == ""
    assert decode(5, "") == Ahead(5, ())


def checked(watermark: int, text: str) -> str:
    """With the check that a process would have made."""
    return f"{text};{zlib.crc32(f'{watermark};{text}'.encode()):08x}"


HUGE = base64.b64encode(b"\xff" * 2_000 + b"\x01").decode()  # a number of 14,000 bits
LARGE = base64.b64encode((b"\xff" * 8 + b"\x7f") * 4).decode()  # four of 63


@pytest.mark.parametrize(
    "text",
    [
        "x",
        f"3;1;r:{HUGE};",
        f"3;1;r:{LARGE};",
        f"3;1;r:;a:1,0,0,,{HUGE}:",
        f"3;1;r:;a:::{HUGE}",
        f"3;1;r:;a::{LARGE}",
        f"3;{'9' * 3_000};r:;",
        f"3;{'9' * 19};r:;",
        f"3;1;r:;a:{'9' * 30},0,0,,:",
        f"3;1;r:;a:0,{'9' * 30},1,,:",
        "3;1;r:;a:-1,0,0,,:",
        "3;1;r:" + "A" * 100_000 + ";",
        "3;1;r:AQE=;\x1b[31m",
        "2;1;r:AQE=;",
        "3;1;q:AA==;",
        "3;1;r:!!;",
        "3;1;r:gA==;",
        "3;z;r:;",
        ";;;",
        "3;1;r:AQ==;",
        "3;1;r:;a",
        "3;1;r:;a::!",
        "3;1;r:;a:1,2",
        "3;1;r:;a:x",
        *(
            f"3;1;r:;a:{said}:"
            for said in ("1", "1,2,3", "a,b,c,,", "1,-2,0,,", "1,2,3,!!,", "1,2,3,,,", "1,2,3,gA==,")
        ),
    ],
)
def test_a_text_that_cannot_be_read_says_nothing(text: str) -> None:
    """Foreign, damaged, forged or newer texts cost a replay, never a loss."""
    assert decode(3, checked(3, text)) == Ahead(3, ())
    assert decode(3, text) == Ahead(3, ())


@given(st.integers(0, 10**6), st.integers(0, 200), st.integers(1, 127))
def test_one_wrong_character_makes_a_text_say_nothing(watermark: int, place: int, change: int) -> None:
    """Else seeds would be skipped that nobody did. So does an offset that somebody else committed."""
    text = encode(watermark, Ahead(watermark + 50, ((watermark + 5, watermark + 40),), "owner"))
    damaged = list(text)
    damaged[place % len(text)] = chr(ord(damaged[place % len(text)]) ^ change)
    assert decode(watermark, "".join(damaged)) == Ahead(watermark, ())
    assert decode(watermark + 1, text) == Ahead(watermark + 1, ())


def test_forged_names_are_bounded_when_they_are_written_again() -> None:
    """A thousand suspects of one text leave room for the runs of the next."""
    steps = base64.b64encode(b"\x01" * 1_000).decode()
    said = decode(0, checked(0, f"3;2000;r:;a:2000,0,0,{steps},{steps}:"))
    assert len(said.suspicion.twice) == len(said.suspicion.thrice) == 64
    assert len(encode(0, said)) < 400


@pytest.mark.parametrize("run", ["b:VVVV", "r:AQEB", "b:////"])
def test_reading_a_text_costs_no_more_than_its_length(run: str) -> None:
    """Every second offset, as a bitmap; as many runs as fit; and all offsets."""
    texts = {n: checked(0, f"3;1;{run[:2]}{run[2:] * n};") for n in (237, 948)}
    assert len(decode(0, texts[948]).complete) > 0
    assert_grows(lambda n: partial(decode, 0, texts[n]), 237)


def test_writing_a_text_costs_no_more_than_its_runs() -> None:
    """Every second offset, as many as a bitmap has room for."""
    runs = {n: tuple((offset, offset + 1) for offset in range(1, 2 * n, 2)) for n in (2_500, 10_000)}
    assert decode(0, encode(0, Ahead(20_000, runs[10_000]))).complete == runs[10_000]
    assert_grows(lambda n: partial(encode, 0, Ahead(20_000, runs[n])), 2_500)


# --- how deaths are counted over restarts ----------------------------------------------------------------


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
    assert not any(map(a_life(None, range(8)).of_partition(P).suspicion.is_careful, range(10)))
    twice = a_life(after_deaths(2, range(8), range(2, 4)), range(8)).of_partition(P).suspicion
    assert [twice.deaths(offset) for offset in range(10)] == [1, 1, 2, 2, 1, 1, 1, 1, 0, 0]
    assert all(map(twice.is_careful, range(8 + CAREFUL_OFFSETS)))
    assert not twice.is_careful(8 + CAREFUL_OFFSETS)
    thrice = a_life(after_deaths(3, range(8), range(2, 4)), range(8)).of_partition(P).suspicion
    assert [thrice.is_suspect(offset) for offset in range(10)] == [offset in (2, 3) for offset in range(10)]


def test_one_that_was_admitted_and_is_complete_is_named_no_more() -> None:
    ledger = a_life(after_deaths(2, range(8), range(2, 4)), range(2))
    second, third = taken(ledger, 2), taken(ledger, 3)
    for entry in (second, third):
        ledger.admit(entry)
    complete(ledger, second)
    alone = committed(ledger)
    assert decode(*alone).admitted == (3,)
    assert decode(*alone).suspicion.twice == (3,)
    with_results = ledger.position(P, besides={3})
    assert with_results is not None
    assert decode(*with_results).admitted == ()
    assert decode(*with_results).suspicion.twice == ()
    ledger.decide(third, Outcome.RESULT)
    ledger.release(third)
    with pytest.raises(LedgerError, match="not in flight"):
        ledger.admit(third)


def test_what_is_named_fits_into_a_commit() -> None:
    far = range(0, 1_000_000, 900)
    suspicion = NO_SUSPICION
    for _ in range(4):
        suspicion = suspicion.after_death(10**6, far)
    ahead = Ahead(10**6, ((10**6, 10**6 + 5),), "owner", suspicion, tuple(far[:128]))
    assert len(encode(0, ahead)) <= MAX_BYTES


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
    ledger = a_life(Position(0, encode(0, Ahead(9, (), "", Suspicion(9, (1, 2), (3, 5), 3, 2)))), range(9))
    ledger.of_partition(P).acquit()
    assert ledger.of_partition(P).suspicion.is_suspect(5)
    assert not any(map(ledger.of_partition(P).suspicion.is_careful, range(9)))
    assert ledger.of_partition(P).suspicion.is_culprit(3)  # until it has ended
    (culprit,) = (entry for entry in ledger.of_partition(P).open.values() if entry.offset == 3)
    ledger.decide(culprit, Outcome.DEAD_LETTER)
    ledger.release(culprit)
    ahead = decode(*committed(ledger))
    assert ahead.suspicion == Suspicion(thrice=(5,))
