"""Seen means done."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from site_spider.core.seen import Seen

steps = st.lists(
    st.tuples(st.sampled_from(["begin", "complete", "forget"]), st.integers(0, 5), st.integers(0, 3)),
    max_size=100,
)


@given(steps)
def test_what_is_done_is_exactly_what_complete_seeds_met(moves: list[tuple[str, int, int]]) -> None:
    """A fingerprint counts as met while its seed is in flight, and for good once that is complete."""
    done: set[bytes] = set()
    seen = Seen(done)
    in_flight: dict[bytes, int] = {}
    model_done: set[bytes] = set()
    for move, number, owner in moves:
        fingerprint = bytes([number])
        if move == "begin":
            is_new = fingerprint not in in_flight and fingerprint not in model_done
            assert seen.begin(fingerprint, owner) is is_new
            if is_new:
                in_flight[fingerprint] = owner
        else:
            owned = {f for f, o in in_flight.items() if o == owner}
            getattr(seen, move)(owner)
            in_flight = {f: o for f, o in in_flight.items() if o != owner}
            model_done |= owned if move == "complete" else set()
        assert done == model_done


def test_a_seed_that_is_replayed_meets_its_pages_anew() -> None:
    """After its partition came back, nothing of the seed is filtered as a duplicate of itself."""
    seen = Seen()
    assert seen.begin(b"page", "seed in its first epoch")
    seen.forget("seed in its first epoch")
    assert seen.begin(b"page", "seed in its second epoch")


def test_a_request_without_a_seed_is_done_at_once() -> None:
    """Requests of other spiders are remembered as Scrapy does."""
    seen = Seen()
    assert seen.begin(b"page", None)
    assert not seen.begin(b"page", None)
    assert b"page" in seen.done
