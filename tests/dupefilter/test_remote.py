"""What a process knows of a store that is elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from site_spider.dupefilter.remote import DoneCourier

PAGES = st.integers(0, 9).map(lambda number: bytes([number]))
PENDING_LIMIT, KNOWN_LIMIT, KNOWN_SECONDS = 4, 3, 10.0

COUNTED: Counter[str] = Counter()


def near_side(now: Callable[[], float], known_limit: int = 10, marks_limit: int = 10) -> DoneCourier:
    """Of a store whose answers count for ten seconds."""
    store: Any = SimpleNamespace(name="a set", cache_seconds=KNOWN_SECONDS)
    nobody: Any = None
    COUNTED.clear()
    limits = {"known_limit": known_limit, "marks_limit": marks_limit}
    return DoneCourier(store, 1, lambda key, by: COUNTED.update({key: by}), nobody, now=now, **limits)


class NearSide(RuleBasedStateMachine):
    """Beside a store that is a set: a page counts as done only if some process said so."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.done = near_side(lambda: self.now, KNOWN_LIMIT, PENDING_LIMIT)
        self.store: set[bytes] = set()
        self.marked: set[bytes] = set()

    @rule(page=PAGES)
    def mark(self, page: bytes) -> None:
        self.done.add(page)
        self.marked.add(page)
        assert page in self.done

    @rule(page=PAGES)
    def another_process_writes(self, page: bytes) -> None:
        self.store.add(page)
        self.marked.add(page)

    @rule(pages=st.lists(PAGES, max_size=KNOWN_LIMIT))
    def prefetch(self, pages: list[bytes]) -> None:
        unknown = self.done.unknown(pages)
        self.done.learn(self.store.intersection(unknown))
        if unknown == list(dict.fromkeys(pages)):
            assert {page for page in pages if page in self.done} == self.store & set(pages)

    @rule(limit=st.integers(1, 3), succeeds=st.booleans())
    def write(self, limit: int, succeeds: bool) -> None:
        batch = self.done.take(limit)
        assert batch == self.done.take(len(batch))
        if succeeds:
            self.store.update(batch)
            self.done.written()

    @rule(seconds=st.sampled_from([1.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def nothing_counts_as_done_that_nobody_did(self) -> None:
        assert {page for page in map(bytes, ([n] for n in range(10))) if page in self.done} <= self.marked

    @invariant()
    def its_memory_is_bounded(self) -> None:
        assert self.done.waiting <= PENDING_LIMIT + 3
        assert len(self.done._known) <= KNOWN_LIMIT


TestNearSide = NearSide.TestCase


def test_what_the_store_said_counts_for_a_while_only() -> None:
    """The store may forget."""
    now = 0.0
    done = near_side(lambda: now)
    done.learn([b"page"])
    assert done.unknown([b"page", b"other", b"other"]) == [b"other"]
    now = 10.0
    assert done.unknown([b"page"]) == [b"page"]


def test_a_mark_counts_until_the_store_has_it_and_after() -> None:
    """Waiting, under way, and written."""
    done = near_side(lambda: 0.0)
    done.add(b"page")
    for _ in range(2):
        assert b"page" in done
        assert done.take(10) == [b"page"]
    assert b"page" in done
    done.written()
    assert b"page" in done
    assert done.waiting == 0


def test_the_oldest_marks_make_room_and_are_counted() -> None:
    """Their pages are fetched again, nothing else."""
    done = near_side(lambda: 0.0, marks_limit=2)
    for page in (b"1", b"2", b"3"):
        done.add(page)
    assert done.take(10) == [b"2", b"3"]
    done.written()
    done.written()
    assert COUNTED == {"dupefilter/marks_written": 2, "dupefilter/marks_dropped": 1}
