"""Seen means done."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.contracts.seed_log import Partition
from site_spider.dupefilter import dupefilter as seen_module
from site_spider.dupefilter.dupefilter import Seen
from site_spider.ledger.ledger import Outcome, SeedInFlight
from tests.contracts.dupefilters import Member, Seed
from tests.in_process.engine import settings_for

moves_of_seeds = st.sampled_from(["begin", "join", "complete", "fenced", "send", "arrive"])
steps = st.lists(st.tuples(moves_of_seeds, st.integers(0, 1), st.integers(0, 2)), min_size=30, max_size=60)


@given(steps)
def test_what_is_done_is_exactly_what_complete_seeds_met(moves: list[tuple[str, int, int]]) -> None:
    """A fingerprint counts as met while its seed is in flight, and for good once that is complete.

    What was sent away is neither, but counts as met until it arrives, or its seed goes elsewhere: it may
    never have become durable. What is in flight for one seed and fetched for others, too, is done with the
    last of them.
    """
    done: set[bytes] = set()
    seen = Seen(done)
    in_flight: dict[bytes, int] = {}
    model_done: set[bytes] = set()
    sent: dict[bytes, int | None] = {}
    joined: dict[bytes, list[int]] = {}
    seeds = [0, 1, 2]
    for move, number, which in moves:
        fingerprint, owner = bytes([number]), seeds[which]
        if move in ("begin", "join"):
            is_new = fingerprint not in in_flight and fingerprint not in model_done | sent.keys()
            assert getattr(seen, move)(fingerprint, owner) in (is_new, None)
            if is_new:
                in_flight[fingerprint] = owner
            elif move == "join" and owner not in (in_flight.get(fingerprint, owner), *joined.get(fingerprint, ())):
                joined.setdefault(fingerprint, []).append(owner)
        elif move == "send":
            seen.spill(fingerprint, owner)
            if in_flight.get(fingerprint) == owner:
                del in_flight[fingerprint]
                sent[fingerprint] = owner
                if joined.get(fingerprint):
                    in_flight[fingerprint] = joined[fingerprint].pop(0)
        elif move == "arrive":
            seen.arrive(fingerprint)
            sent.pop(fingerprint, None)
        else:
            owned = {f for f, o in in_flight.items() if o == owner}
            getattr(seen, move)(owner)
            joined = {f: [one for one in others if one != owner] for f, others in joined.items()}
            heirs = {f: joined[f].pop(0) for f in owned if joined.get(f)}
            in_flight = {f: o for f, o in in_flight.items() if o != owner} | heirs
            seeds[which] = max(seeds) + 1
            if move == "complete":
                model_done |= owned - heirs.keys()
                sent = {f: None if o == owner else o for f, o in sent.items()}
            else:
                sent = {f: o for f, o in sent.items() if o != owner}
        assert done == model_done


def test_nothing_is_kept_of_seeds_that_end_before_the_one_their_page_is_in_flight_for() -> None:
    """Its tree may be open for an hour, and the same page be asked for each second."""
    seen, others = Seen(), [SeedInFlight(Partition("seeds", 0), number, 1) for number in range(4)]
    long = others.pop()
    seen.join(b"page", long)
    for number, other in enumerate(others):
        seen.join(b"page", other)
        if number:
            other.outcome = (Outcome.RESULT, Outcome.FAILURE)[number - 1]
            seen.ended(other)
    assert [*seen._joined[b"page"]] == others[:1]
    seen.complete(long)
    assert seen.in_flight_for(b"page") is others[0]
    seen.fenced(others[0])
    assert not seen._joined
    assert not seen.knows(b"page")


def test_what_was_sent_is_forgotten_beyond_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest first: it is sent, and compared where it arrives, once more."""
    monkeypatch.setattr(seen_module, "SPILLED_LIMIT", 2)
    seen = Seen()
    for page in (b"a", b"b", b"c"):
        assert seen.begin(page, "seed")
        seen.spill(page, "seed")
    assert [seen.begin(page, "other") for page in (b"a", b"b", b"c")] == [True, False, False]


def test_a_seed_whose_message_leaves_may_come_back_before_it_has_ended() -> None:
    """A paused task may go on at any moment: what comes back is no duplicate of what is about to end."""
    seen = Seen()
    parked, put_back = SeedInFlight(Partition("seeds", 0), 0, 1), SeedInFlight(Partition("seeds", 0), 1, 1)
    assert seen.begin(b"page", parked)
    seen.leaves(parked)
    assert seen.begin(b"page", put_back)
    parked.outcome = Outcome.SPILLED
    seen.ended(parked)
    assert seen.knows(b"page")


def test_what_was_spilled_is_forgotten_when_partitions_come() -> None:
    """Its message may have ended as a duplicate of a page in flight for a seed of theirs, which begins anew here."""
    seen, spilling, found = Seen(), *(SeedInFlight(Partition("seeds", number), 0, 1) for number in (0, 1))
    seen.begin(b"page", spilling)
    seen.spill(b"page", spilling)
    spilling.outcome = Outcome.RESULT
    seen.ended(spilling)
    assert not seen.begin(b"page", found)
    seen.assigned()
    assert seen.begin(b"page", found)


def test_a_page_that_has_changed_when_its_partition_has_left_is_not_met(tmp_path: Path) -> None:
    """Nobody would forget it any more: a repeat of the seed, or another seed of the page, would be filtered."""
    dupefilter = Member(settings_for(tmp_path)).dupefilter
    left, other = Seed(), Seed()
    left.entry.live = False
    dupefilter.has_changed(left.request("seed"), left.job)
    assert not dupefilter.request_seen(other.request("seed"))
    assert dupefilter.request_seen(Seed().request("seed"))


@pytest.mark.parametrize("outcome", Outcome)
def test_what_a_seed_met_is_done_when_that_ends_with_a_result(outcome: Outcome) -> None:
    """What did not end well may be sent again, or put back, and is wanted then."""
    seen, seed = Seen(), SeedInFlight(Partition("seeds", 0), 0, 1)
    seen.begin(b"page", seed)
    seed.outcome = outcome
    seen.ended(seed)
    assert seen.knows(b"page") is (outcome is Outcome.RESULT)


def test_tasks_that_share_what_is_done_share_nothing_in_flight() -> None:
    """What one of them waits for, or has spilled, may never be fetched: its task is cancelled, say."""
    seen = Seen()
    assert [seen.begin(b"page", task, task) for task in ("a", "b", "a")] == [True, True, False]
    seen.spill(b"page", "a", "a")
    met = {(seed, task) for seed in "ab" for task in ("a", "b", None) if seen.is_met_for(b"page", seed, task)}
    assert met == {("a", "a"), ("b", "b")}
    seen.drop(b"page", "b", "b")
    assert [seen.knows(b"page", task) for task in ("a", "b")] == [True, False]
    seen.arrive(b"page", "a")
    assert not seen.knows(b"page", "a")
    assert seen.begin(b"page", "b", "b")
    seen.complete("b")
    assert (seen.knows(b"page", "a"), seen.done) == (True, {b"page"})
