"""What is in memory, against its limits."""

from __future__ import annotations

from site_spider.intake.room import MAX_SEED_BYTES, Load


def test_links_leave_at_either_limit() -> None:
    """Requests and bytes; what is gone makes room at once."""
    load = Load(max_requests=2, max_bytes=1_000)
    load.add_request(10)
    assert not load.is_full
    load.add_request(10)
    assert load.is_full
    load.remove_request(10)
    assert not load.is_full
    load.seed_bytes = 990
    assert load.is_full


def test_seeds_wait_until_a_quarter_is_free() -> None:
    """So that partitions are not paused and resumed for each request."""
    load = Load(max_requests=100, max_bytes=10**9)
    for _ in range(100):
        load.add_request(1)
    load.look()
    assert load.seed_room() == 0
    for _ in range(24):
        load.remove_request(1)
    load.look()
    assert load.seed_room() == 0
    load.remove_request(1)
    load.look()
    assert load.seed_room() > 0


def test_as_many_seeds_are_polled_as_fit_whatever_their_size() -> None:
    """Each may be as large as a message can be; at least one, or a small limit would stop all."""
    load = Load(max_requests=1, max_bytes=10 * MAX_SEED_BYTES)
    assert load.seed_room() == load.seed_capacity() == 10
    load.seed_bytes = 7 * MAX_SEED_BYTES + 1
    assert load.seed_room() == 2
    load.seed_bytes = 10 * MAX_SEED_BYTES - 1
    assert load.seed_room() == 1
    load.seed_bytes = 10 * MAX_SEED_BYTES
    assert load.seed_room() == 0
    assert Load(1, 5).seed_room() == Load(1, 5).seed_capacity() == 1


def test_no_page_is_asked_for_while_the_topic_takes_nothing() -> None:
    """What is on its way counts in messages and in bytes."""
    load = Load(max_requests=10, max_bytes=10**9)
    for _ in range(5_000):
        load.add_sending(1)
    assert not load.may_download
    load.remove_sending(1)
    assert load.may_download
    load.add_sending(40_000_000)
    load.remove_sending(1)
    assert not load.may_download
    assert load.bytes == 40_000_000 + 4_998
