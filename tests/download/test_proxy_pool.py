"""Proxies: how they are written, and which of them is used next."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable

import pytest

from site_spider.download.proxy_pool import (
    Attempt,
    Proxy,
    ProxyError,
    ProxyOutcome,
    ProxyPool,
    parse_lines,
    parse_list,
    parse_proxy,
)
from tests.growth import CONSTANT, assert_grows

A, B, C = (Proxy(f"http://{name}.test:3128") for name in "abc")


def taken(pool: ProxyPool, now: float, tried: tuple[Proxy, ...] = (), chance: float = 0.5) -> Attempt:
    attempt = pool.take(now, tried, chance)
    assert attempt is not None
    return attempt


# --- how they are written ---


def test_credentials_are_kept_apart_from_what_is_shown() -> None:
    """Percent-encoding lets a password hold anything; no representation has it."""
    proxy = parse_proxy("http://us%40er:p%2Cw%3A%2F@proxy.test:3128")
    assert proxy.url == "http://proxy.test:3128"
    assert proxy.authorization is not None
    kind, _, credentials = proxy.authorization.partition(b" ")
    assert (kind, b64decode(credentials)) == (b"Basic", b"us@er:p,w:/")
    for shown in (repr(proxy), str(proxy), repr(Attempt(proxy, 0)), f"{proxy}"):
        assert "us@er" not in shown
        assert credentials.decode() not in shown
    assert parse_proxy("http://[::1]:8080/").url == "http://[::1]:8080"


@pytest.mark.parametrize(
    "text",
    [
        "proxy.test:3128", "https://u:secret@proxy.test:1", "socks5://u:secret@proxy.test:1", "http://u:secret@:3128",
        "http://u:secret@proxy.test", "http://u:secret@proxy.test:port", "http://u:secret@proxy.test:99999",
        "http://u:se/cret@proxy.test:1", "http://u:secret@proxy.test:1/path", "http://u:secr et@proxy.test:1",
        "http://u:secret@[proxy:1", "http://ü:secret@proxy.test:1", "http://u:secret@proxy.test:1?x",
    ],
)  # fmt: skip
def test_what_is_no_proxy_is_refused_without_its_text(text: str) -> None:
    with pytest.raises(ProxyError, match="number 2 is no proxy: ") as refused:
        parse_list(f"http://fine.test:1,{text}")
    assert "cret" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_list_and_a_file_have_each_proxy_once() -> None:
    text = "# of the provider\n\nhttp://a.test:3128  # fast\nhttp://b.test:3128\nhttp://a.test:3128\n"
    assert parse_lines(text) == [A, B] == parse_list("http://a.test:3128, http://b.test:3128,")
    with pytest.raises(ProxyError, match="line 3 is no proxy"):
        parse_lines("http://a.test:3128\n\nhttp://b.te")
    for nothing in ("", "# nothing\n"):
        with pytest.raises(ProxyError, match="no proxy in it"):
            parse_lines(nothing)


# --- which is next ---


def test_a_failing_proxy_rests_longer_each_time() -> None:
    pool = ProxyPool([A])
    now, rests = 0.0, []
    for _ in range(8):
        rests.append(pool.end(taken(pool, now), ProxyOutcome.FAILED, now + 1))
        assert pool.take(now + 1, (), 0.5) is None
        assert pool.next_at(now + 1) == now + 1 + rests[-1]
        now = pool.next_at(now + 1)
    assert rests == [5, 10, 20, 40, 80, 160, 300, 300]
    assert pool.end(taken(pool, now), ProxyOutcome.ANSWERED, now + 1) == 0
    assert pool.end(taken(pool, now + 1), ProxyOutcome.FAILED, now + 2) == 5


def test_attempts_that_fail_together_are_one_failure() -> None:
    pool = ProxyPool([A])
    attempts = [taken(pool, 0) for _ in range(50)]
    assert [pool.end(attempt, ProxyOutcome.FAILED, 1) for attempt in attempts] == [5] + [0] * 49
    assert pool.take(1, (), 0.5) is None
    assert pool.next_at(1) == 6


def test_silence_counts_when_it_comes_three_times() -> None:
    """It may be the site's; an answer in between begins anew."""
    pool = ProxyPool([A])
    silent, answered = ProxyOutcome.SILENT, ProxyOutcome.ANSWERED
    endings = [silent, silent, answered, silent, silent, silent]
    rests = [pool.end(taken(pool, now), ending, now + 1) for now, ending in enumerate(endings)]
    assert rests == [0, 0, 0, 0, 0, 5]


def test_after_a_rest_one_attempt_is_a_trial() -> None:
    """The others wait until it has ended, or for half a minute."""
    pool = ProxyPool([A])
    pool.end(taken(pool, 0), ProxyOutcome.FAILED, 0)
    trial = taken(pool, 5)
    assert pool.take(5, (), 0.5) is None
    assert pool.next_at(5) == 35
    pool.end(trial, ProxyOutcome.ANSWERED, 6)
    assert pool.take(6, (), 0.5) is not None
    assert pool.resting(6) == 0
    pool.end(taken(pool, 6), ProxyOutcome.FAILED, 6)
    trial = taken(pool, 11)
    assert pool.take(11, (), 0.5) is None
    assert pool.end(trial, ProxyOutcome.SILENT, 12) == 10  # silence of a trial counts at once
    assert pool.next_at(12) == 22


def test_what_was_not_tried_comes_first() -> None:
    pool = ProxyPool([A, B])
    assert {taken(pool, 0, (A,), chance / 10).proxy for chance in range(10)} == {B}
    pool.end(taken(pool, 0, (A,)), ProxyOutcome.FAILED, 0)
    assert taken(pool, 1, (A,)).proxy == A


def test_the_healthy_and_fast_are_chosen_more_often() -> None:
    pool = ProxyPool([A, B, C])
    for now in range(20):
        for proxy, others in ((A, (B, C)), (B, (A, C)), (C, (A, B))):
            attempt = taken(pool, now * 100, others)
            assert attempt.proxy == proxy
            ending = ProxyOutcome.SILENT if proxy == B and now % 2 else ProxyOutcome.ANSWERED
            pool.end(attempt, ending, now * 100 + (5 if proxy == C else 0.1))
    chosen = []
    for chance in range(1000):
        attempt = taken(pool, 10_000, (), chance / 1000)
        chosen.append(attempt.proxy)
        pool._health[attempt.proxy].out -= 1
    assert chosen.count(A) > chosen.count(B) > 0
    assert chosen.count(A) > chosen.count(C) > 0


def test_a_long_list_is_not_looked_at_whole() -> None:
    """Of 20,000 proxies each has its chance, and a choice takes no longer than of a few."""
    proxies = [Proxy(f"http://p{number}.test:1") for number in range(20_000)]

    def choosing(listed: int) -> Callable[[], list[Proxy]]:
        pool = ProxyPool(proxies[:listed])
        return lambda: [taken(pool, 0, (), number / 1000).proxy for number in range(1000)]

    assert_grows(choosing, 5_000, CONSTANT)
    chosen = choosing(20_000)()
    assert len(set(chosen)) == 1000
    places = {proxy: number for number, proxy in enumerate(proxies)}
    assert {places[proxy] // 1000 for proxy in chosen} == set(range(20))


def test_a_long_list_of_which_all_rest_is_not_looked_at_whole_either() -> None:
    """All that waits asks for one again and again: 10 ms each, of 10,000 proxies."""
    proxies = [Proxy(f"http://p{number}.test:1") for number in range(20_000)]

    def asking(listed: int) -> Callable[[], None]:
        pool = ProxyPool(proxies[:listed])
        for number, proxy in enumerate(proxies[:listed]):
            pool.end(Attempt(proxy, 0), ProxyOutcome.FAILED, number / listed)
        assert pool.take(2, (), 0.5) is None

        def ask() -> None:
            for _ in range(30):
                assert pool.take(2, (), 0.5) is None
                assert pool.next_at(2) == 5

        return ask

    assert_grows(asking, 500, CONSTANT)


def test_a_new_list_keeps_the_health_of_what_stays() -> None:
    pool = ProxyPool([A, B])
    gone = taken(pool, 0, (B,))
    pool.end(taken(pool, 0, (A,)), ProxyOutcome.FAILED, 0)
    pool.replace([B, C])
    assert pool.end(gone, ProxyOutcome.FAILED, 1) == 0
    assert pool.resting(1) == 1
    assert len(pool) == 2
    pool.end(taken(pool, 1), ProxyOutcome.FAILED, 1)
    assert pool.take(1, (), 0.5) is None
    pool.replace([A, B, C])
    assert taken(pool, 1).proxy == A
