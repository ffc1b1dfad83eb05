"""What is particular to fingerprints in Redis: time to live, keys, Bloom filters, addresses."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from typing import Any

import fakeredis
import pytest
from redis import Redis

from site_spider.adapters.redis import stores as redis_done
from site_spider.adapters.redis.stores import Filters, RedisDone
from site_spider.contracts.done_store import DoneUnavailable
from site_spider.errors import ConfigError

PAGES = [b"page %d" % number for number in range(2500)]


def settings(url: str, **overrides: Any) -> dict[str, Any]:
    return {
        "SITE_REDIS_URL": url,
        "SITE_CONSUMER_GROUP": uuid.uuid4().hex,
        "SITE_REDIS_DUPEFILTER_TTL_SECONDS": 60,
        "SITE_REDIS_DUPEFILTER_BLOOM": False,
        "SITE_BLOOM_CAPACITY": 10_000,
        "SITE_BLOOM_ERROR_RATE": 0.0001,
        **overrides,
    }


def keys_of(client: Redis, made: dict[str, Any]) -> list[bytes]:
    return list(client.scan_iter(f"site_spider:{made['SITE_CONSUMER_GROUP']}:*"))


@pytest.fixture
def client(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as client:
        yield client


@pytest.mark.servers
@pytest.mark.parametrize("ttl_seconds", [60, 0])
def test_every_fingerprint_has_its_own_time_to_live(redis_url: str, client: Redis, ttl_seconds: int) -> None:
    """Or none, when it is 0; and it begins anew when the page is done anew."""
    made = settings(redis_url, SITE_REDIS_DUPEFILTER_TTL_SECONDS=ttl_seconds)
    store = RedisDone.from_settings(made)
    store.open()
    store.add(PAGES)
    assert store.known([*PAGES, b"other"]) == set(PAGES)
    keys = keys_of(client, made)
    assert len(keys) == len(PAGES)
    left: list[int] = [client.ttl(key) for key in keys[:20]]  # type: ignore[misc]
    assert all(0 < seconds <= 60 for seconds in left) if ttl_seconds else set(left) == {-1}
    assert store.cache_seconds <= (6 if ttl_seconds else 60)  # nor is an answer relied on for long
    client.delete(*keys)
    assert store.known(PAGES) == set()
    store.close()


@pytest.mark.servers
def test_a_server_without_bloom_filters_keeps_them_exactly_and_says_so(
    redis_url: str, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Debian's Redis has none."""
    made = settings(redis_url, SITE_REDIS_DUPEFILTER_BLOOM=True)
    store = RedisDone.from_settings(made)
    with caplog.at_level(logging.WARNING):
        store.open()
        store.add([b"page"])
        assert store.known([b"page", b"other"]) == {b"page"}
    assert "SITE_REDIS_DUPEFILTER_BLOOM" in caplog.text
    assert len(caplog.records) == 1
    client.delete(*keys_of(client, made))
    store.close()


# --- Bloom filters of the server: against fakeredis, an implementation of BF.* that is not ours ---


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Redis:
    client: Redis = fakeredis.FakeRedis()
    monkeypatch.setattr(redis_done, "client_of", lambda _url, _address: client)
    return client


@pytest.mark.parametrize("ttl_seconds", [36_000, 0])  # seldom does a new filter begin within the test
def test_bloom_filters_of_the_server_are_used_when_it_has_them(fake: Redis, ttl_seconds: int) -> None:
    """One key for all; what was not added is seldom in it."""
    made = settings(
        "redis://fake", SITE_REDIS_DUPEFILTER_BLOOM=True, SITE_REDIS_DUPEFILTER_TTL_SECONDS=ttl_seconds
    )
    store = RedisDone.from_settings(made)
    store.add(PAGES)
    assert store.known(PAGES) == set(PAGES)
    assert len(store.known([b"other %d" % number for number in range(2000)])) <= 3
    (key,) = keys_of(fake, made)
    if ttl_seconds:
        assert abs(fake.ttl(key) - 2 * ttl_seconds) < 1000
    else:
        assert fake.ttl(key) == -1


def test_a_fingerprint_in_a_bloom_filter_is_kept_for_one_to_two_times_its_time_to_live(fake: Redis) -> None:
    """A new filter begins each time that has passed, and the one before is asked too."""
    now = 1000.0
    filters = Filters(b"prefix:", 100, 1000, 0.001, lambda: now)
    filters.add(fake, [b"page"])
    for now, is_known in ((1099.0, True), (1199.0, True), (1200.0, False)):  # noqa: B007 - the clock
        assert filters.known(fake, [b"page", b"other"]) == [is_known, False]


# --- addresses ------------------------------------------------------------------------------------


def test_a_server_that_is_away_is_named_without_its_password() -> None:
    """In an error that says that trying again may help."""
    store = RedisDone.from_settings(settings("redis://user:secret@127.0.0.1:9/0"))
    for call in (store.open, lambda: store.known([b"page"]), lambda: store.add([b"page"])):
        with pytest.raises(DoneUnavailable, match=r"SITE_REDIS_URL is .redis://127\.0\.0\.1:9/0.") as caught:
            call()
        assert "secret" not in str(caught.value)
    store.close()


@pytest.mark.parametrize("url", ["", "http://host:1", "host:6379"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """At the start, with the setting's name."""
    with pytest.raises(ConfigError, match="SITE_REDIS_URL"):
        RedisDone.from_settings(settings(url))
