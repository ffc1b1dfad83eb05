"""The end of the way to a dupefilter's store that is elsewhere."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, Self

from site_spider.contracts.done_store import DoneStore, DoneUnavailable
from site_spider.dupefilter.remote import DoneCourier, RemoteDone
from site_spider.engine.background import Background

MARK = b"1" * 20


class SlowStore(DoneStore):
    """Takes marks when the test lets it."""

    name = "slow"
    cache_seconds = 60.0

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.added: list[bytes] = []
        self.under_way = 0
        self.most_under_way = 0
        self.is_closed = False
        self.is_away = False

    @classmethod
    def from_settings(cls, settings: Any) -> Self:
        return cls()

    def open(self) -> None:
        pass

    def known(self, fingerprints: Sequence[bytes]) -> set[bytes]:
        return set()

    def add(self, fingerprints: Sequence[bytes]) -> None:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        self.has_begun.set()
        try:
            assert self.may_end.wait(300)
            assert not self.is_closed
            if self.is_away:
                raise DoneUnavailable("away")
            self.added += fingerprints
        finally:
            self.under_way -= 1

    def close(self) -> None:
        self.is_closed = True


async def closed_while_marks_are_under_way(store: SlowStore) -> RemoteDone:
    failures: list[BaseException] = []
    done = RemoteDone(100, 100, 60, asyncio.get_running_loop().time)
    courier = DoneCourier(store, done, 1, lambda _key, _by: None, Background(failures.append))
    done.add(MARK)
    await courier.open(300)
    await asyncio.to_thread(store.has_begun.wait, 10)
    closing = asyncio.create_task(courier.close())
    for _ in range(20):  # whatever it would do beside the call under way, it does now
        await asyncio.sleep(0.005)
    store.may_end.set()
    await closing
    assert failures == []
    return done


def test_the_end_waits_for_marks_that_are_under_way() -> None:
    """A store may take one call at a time only, and none once it is closed."""
    store = SlowStore()
    done = asyncio.run(closed_while_marks_are_under_way(store))
    assert store.most_under_way == 1
    assert store.added == [MARK]
    assert store.is_closed
    assert done.waiting == 0


def test_the_end_does_not_wait_for_a_store_that_is_away() -> None:
    """One more try, and a line that says what is left."""
    store = SlowStore()
    store.is_away = True
    done = asyncio.run(asyncio.wait_for(closed_while_marks_are_under_way(store), 300))
    assert store.most_under_way == 1
    assert done.waiting == 1
