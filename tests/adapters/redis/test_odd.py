"""What Redis, or whatever stands in its place, says that makes no sense: an outage, and nothing is known."""

from __future__ import annotations

import socketserver
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from site_spider.adapters.redis.stores import RedisDone, client_of
from site_spider.contracts.done_store import DoneUnavailable
from tests.adapters.raw_server import serving
from tests.authority import Authority, TlsFront

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
    "error": b"-ERR \x1b[2J" + b"x" * 5_000 + b"\r\n",
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


CALLS: list[Callable[[RedisDone], object]] = [
    lambda done: done.known([b"a", b"b"]),
    lambda done: done.add([b"a", b"b"]),
]


@pytest.mark.parametrize("bloom", [False, True])
@pytest.mark.parametrize("call", CALLS, ids=["known", "add"])
@pytest.mark.parametrize("name", ODD)
def test_an_odd_answer_is_an_outage(
    name: str, call: Callable[[RedisDone], object], bloom: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never a link that counts as done, or a page as kept, without the server saying so of each."""
    monkeypatch.setattr("site_spider.adapters.redis.stores._ANSWER_SECONDS", 0.2)
    with answering(ODD[name]) as url:
        done = RedisDone.from_settings(
            {
                "SITE_REDIS_URL": url,
                "SITE_CONSUMER_GROUP": "group",
                "SITE_REDIS_DUPEFILTER_TTL_SECONDS": 60,
                "SITE_REDIS_DUPEFILTER_BLOOM": bloom,
                "SITE_BLOOM_CAPACITY": 100,
                "SITE_BLOOM_ERROR_RATE": 0.01,
            }
        )
        try:
            with pytest.raises(DoneUnavailable) as caught:
                call(done)
        finally:
            done.close()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


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
