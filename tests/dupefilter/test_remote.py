"""What a process knows of a store that is elsewhere."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from site_spider.dupefilter.remote import RemoteDone

PAGES = st.integers(0, 9).map(lambda number: bytes([number]))
PENDING_LIMIT, KNOWN_LIMIT, KNOWN_SECONDS = 4, 3, 10.0


class NearSide(RuleBasedStateMachine):
    """Beside a store that is a set: a page counts as done only if some process said so."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.done = RemoteDone(KNOWN_LIMIT, PENDING_LIMIT, KNOWN_SECONDS, lambda: self.now)
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
    done = RemoteDone(10, 10, 5.0, lambda: now)
    done.learn([b"page"])
    assert done.unknown([b"page", b"other", b"other"]) == [b"other"]
    now = 5.0
    assert done.unknown([b"page"]) == [b"page"]


def test_a_mark_counts_until_the_store_has_it_and_after() -> None:
    """Waiting, under way, and written."""
    done = RemoteDone(10, 10, 5.0, lambda: 0.0)
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
    done = RemoteDone(10, 2, 5.0, lambda: 0.0)
    for page in (b"1", b"2", b"3"):
        done.add(page)
    assert (done.take_dropped(), done.take_dropped()) == (1, 0)
    assert done.take(10) == [b"2", b"3"]
