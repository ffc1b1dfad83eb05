"""A dict that forgets, against a list of what was set."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from site_spider.bounded import BoundedDict


@given(st.lists(st.tuples(st.integers(0, 9), st.integers())), st.integers(1, 5))
def test_what_was_set_last_is_kept(settings: list[tuple[int, int]], most: int) -> None:
    bounded: BoundedDict[int, int] = BoundedDict(most)
    kept: list[tuple[int, int]] = []  # the one set longest ago first
    for key, value in settings:
        bounded[key] = value
        kept = [*((other, its) for other, its in kept if other != key), (key, value)][-most:]
        assert list(bounded.items()) == kept


def test_any_thread_may_write(threads_take_turns_often: None) -> None:
    """As the threads that look up names do, of which some forget what others set."""
    bounded: BoundedDict[str, int] = BoundedDict(100)
    errors: list[Exception] = []

    def write(start: int) -> None:
        try:
            for number in range(20_000):
                bounded[str((number * 7 + start) % 130)] = number
                bounded.pop(str((number * 3 + start) % 130), None)
        except Exception as error:  # noqa: BLE001 - whatever it is
            errors.append(error)

    threads = [threading.Thread(target=write, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(bounded) <= 100
