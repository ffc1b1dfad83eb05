"""What is particular to fingerprints in Redis: time to live, keys, Bloom filters, addresses."""

from __future__ import annotations

import logging
import socketserver
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fakeredis
import pytest
from redis import Redis

from site_spider.adapters.redis import done as redis_done
from site_spider.adapters.redis.done import Filters, RedisDone, client_of
from site_spider.contracts.done_store import DoneUnavailable
from site_spider.errors import ConfigError
from tests.adapters.raw_server import serving
from tests.authority import Authority, TlsFront

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
    """Each once: SCAN may name a key twice while their table grows."""
    return list({*client.scan_iter(f"site_spider:{made['SITE_CONSUMER_GROUP']}:*")})


@pytest.fixture
def client(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as client:
        yield client


@pytest.mark.servers
@pytest.mark.parametrize("ttl_seconds", [60, 0])
def test_every_fingerprint_has_its_own_time_to_live(redis_url: str, client: Redis, ttl_seconds: int) -> None:
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
    made = settings("redis://fake", SITE_REDIS_DUPEFILTER_BLOOM=True, SITE_REDIS_DUPEFILTER_TTL_SECONDS=ttl_seconds)
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


@pytest.mark.parametrize("name", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"])
def test_a_certificate_that_cannot_be_read_is_named(name: str) -> None:
    """It was told as a server that cannot be reached."""
    with pytest.raises(ConfigError, match=f"its {name} /no/such.pem cannot be read: No such file") as caught:
        RedisDone.from_settings(settings(f"rediss://user:secret@127.0.0.1:9/0?{name}=/no/such.pem"))
    assert "secret" not in str(caught.value)


def test_a_server_that_is_away_is_named_without_its_password() -> None:
    store = RedisDone.from_settings(settings("redis://user:secret@127.0.0.1:9/0"))
    for call in (store.open, lambda: store.known([b"page"]), lambda: store.add([b"page"])):
        with pytest.raises(DoneUnavailable, match=r"SITE_REDIS_URL is .redis://127\.0\.0\.1:9/0.") as caught:
            call()
        assert "secret" not in str(caught.value)
    store.close()


@pytest.mark.parametrize("url", ["", "http://host:1", "host:6379"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="SITE_REDIS_URL"):
        RedisDone.from_settings(settings(url))


# --- What Redis, or whatever stands in its place, says that makes no sense: an outage


ODD = {
    "http": b"HTTP/1.1 400 Bad\r\n\r\n",
    "null": b"$-1\r\n",
    "number": b":7\r\n",
    "no number": b":x\r\n",
    "none": b"*0\r\n",
    "fewer": b"*1\r\n$1\r\n1\r\n",
    "more": b"*3\r\n$1\r\n1\r\n$1\r\n1\r\n$1\r\n1\r\n",
    "lists": b"*2\r\n*0\r\n*0\r\n",
    "others": b"*2\r\n$1\r\nx\r\n$2\r\n10\r\n",
    "status": b"+NO\r\n",  # two bytes, for two fingerprints
    "negative": b"*-5\r\n",
    "nested": b"*1\r\n" * 200_000,
    "error": (b"-ERR \x1b[2J" + b"x" * 5_000 + b"\r\n") * 2,
    "nothing": b"",
    "bytes": b"\xff\xfe\r\n",
}


@contextmanager
def answering(reply: bytes) -> Iterator[str]:
    """The address of a server that answers so, once it was greeted."""

    def handle(connection: socketserver.StreamRequestHandler) -> None:
        while asked := connection.request.recv(65_536):
            connection.request.sendall(b"+PONG\r\n" if b"PING" in asked else reply)
            if not reply:
                return

    with serving(handle) as port:
        yield f"redis://127.0.0.1:{port}/0"


@pytest.mark.parametrize("bloom", [False, True])
@pytest.mark.parametrize("call", ["known", "add"])
@pytest.mark.parametrize("name", ODD)
def test_an_odd_answer_is_an_outage(name: str, call: str, bloom: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a link that counts as done, or a page as kept, without the server saying so of each."""
    monkeypatch.setattr("site_spider.adapters.redis.done._ANSWER_SECONDS", 0.02)
    with answering(ODD[name]) as url:
        done = RedisDone.from_settings(settings(url, SITE_REDIS_DUPEFILTER_BLOOM=bloom))
        try:
            with pytest.raises(DoneUnavailable) as caught:
                getattr(done, call)([b"a", b"b"])
        finally:
            done.close()
    assert str(caught.value).isprintable()
    assert "caused error" not in str(caught.value)  # behind the command in bytes
    assert len(str(caught.value)) < 500


def test_an_error_leaves_the_connections_of_other_threads_alone() -> None:
    with answering(b"-ERR\r\n") as url, closing(RedisDone.from_settings(settings(url))) as done:
        busy = done._client.connection_pool.get_connection()
        with pytest.raises(DoneUnavailable):
            done.known([b"a"])
        assert busy.is_connected
        busy.disconnect()


# --- certificates that are replaced on disk: each new connection reads the files ------------------


def test_a_client_takes_a_new_authority_and_a_new_certificate_of_its_own(tmp_path: Path) -> None:
    before, after = Authority(tmp_path / "before", "before"), Authority(tmp_path / "after", "after")
    files = tmp_path / "client"
    before.give_to_client(files)
    options = f"ssl_ca_certs={files}/ca.pem&ssl_certfile={files}/client.pem&ssl_keyfile={files}/client.key"
    with answering(b"+OK\r\n") as address, TlsFront(urlsplit(address).port or 0, before) as front:
        url = f"rediss://127.0.0.1:{front.port}/0?{options}"
        with client_of(url, address) as client:
            assert client.ping()
            after.give_to_client(files)
            front.use(after)
            assert client.ping()
