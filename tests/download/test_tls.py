"""The client's side of TLS against Python's server, both in memory, and the sessions that are kept."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import pytest
from cryptography import x509
from OpenSSL import SSL
from scrapy.settings import Settings

from site_spider import runtime
from site_spider.download import tls
from site_spider.download.tls import KeptSession, TlsClient, TlsPeer, TlsSessions, TlsStream, tls_context
from tools.site.certificate import Signed, authority, server_context, signed

ROOT = authority()
LEAF = signed(ROOT, names=[x509.DNSName("h.test"), x509.DNSName("g.test")])
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture(autouse=True)
def trusted(trust: Callable[[Signed], None]) -> None:
    trust(ROOT)


@pytest.fixture(params=VERSIONS, ids=["1.2", "1.3"])
def context(request: pytest.FixtureRequest, tmp_path: Path) -> ssl.SSLContext:
    return context_of(tmp_path, request.param)


def context_of(folder: Path, version: ssl.TLSVersion, *chain: Signed) -> ssl.SSLContext:
    context = server_context(folder, *(chain or (LEAF,)))
    context.maximum_version = version
    return context


def client(**settings: Any) -> TlsClient:
    return TlsClient(tls_context(Settings({"DOWNLOAD_VERIFY_CERTIFICATES": True} | settings)), 4)


class Server:
    """One connection of Python's server."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.incoming, self.sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.sent, server_side=True)
        self.flights = 0

    def answer(self, data: bytes) -> bytes:
        """To a flight of the handshake."""
        self.flights += 1
        self.incoming.write(data)
        with suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self.sent.read()

    def says(self, page: bytes) -> bytes:
        self.tls.write(page)
        return self.sent.read()


def connect(stream: TlsStream, context: ssl.SSLContext, address: str = "127.0.0.1") -> Server:
    server = Server(context)
    sent = stream.begin(address)
    while not stream.is_ready:
        assert stream.error is None, stream.error
        stream.feed(server.answer(sent))
        sent = b"" if stream.is_ready else stream.outgoing()
    assert stream.feed(server.answer(stream.encrypt(b"request"))) == b""  # tickets, of TLS 1.3
    assert server.tls.read() == b"request"
    return server


def visit(made: TlsClient, context: ssl.SSLContext, host: str = "h.test", port: int = 443,
          address: str = "127.0.0.1", **how: Any) -> bool:  # fmt: skip
    """Whether the session of an earlier visit was taken up."""
    stream = made.stream(host, port, **how)
    server = connect(stream, context, address)
    assert stream.feed(server.says(b"page")) == b"page"
    certificate = stream.certificate
    assert certificate is not None
    assert certificate.to_cryptography() == LEAF.certificate
    stream.end()
    return server.tls.session_reused


@pytest.mark.parametrize("verifies", [True, False])
def test_a_server_without_secure_renegotiation_will_do_without_verification(verifies: bool) -> None:
    """Where nothing is secured, as for Scrapy's client."""
    context = tls_context(Settings({"DOWNLOAD_VERIFY_CERTIFICATES": verifies}))
    assert bool(context.set_options(0) & SSL.OP_LEGACY_SERVER_CONNECT) is not verifies


def test_a_session_is_taken_up(context: ssl.SSLContext) -> None:
    made = client()
    assert [visit(made, context) for _ in range(4)] == [False, True, True, True]


@pytest.mark.parametrize("other", [{"host": "g.test"}, {"port": 8443}, {"address": "127.0.0.2"}, {"resumes": False}])
def test_a_session_is_of_one_server(other: dict[str, Any], context: ssl.SSLContext) -> None:
    made = client()
    visit(made, context)
    assert not visit(made, context, **other)
    assert visit(made, context)


def test_a_session_is_of_one_setting(context: ssl.SSLContext) -> None:
    """What was not verified is not taken up where it has to be."""
    without = client(DOWNLOAD_VERIFY_CERTIFICATES=False)
    visit(without, context)
    assert visit(without, context)
    assert not visit(client(), context)


def test_a_host_with_a_dot_behind_it_is_the_same(context: ssl.SSLContext) -> None:
    made = client()
    visit(made, context)
    assert visit(made, context, host="h.test.")


def test_no_ticket_is_sent_twice(tmp_path: Path) -> None:
    """Not even by connections at the same time: the second one has a handshake of its own."""
    context = context_of(tmp_path, ssl.TLSVersion.TLSv1_3)
    made = client()
    visit(made, context)
    streams = [made.stream("h.test", 443) for _ in range(2)]
    servers = [connect(stream, context) for stream in streams]
    assert [stream.is_resuming for stream in streams] == [True, False]
    assert [server.tls.session_reused for server in servers] == [True, False]


def test_a_certificate_is_verified_again_after_some_time(
    context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(runtime, "monotonic", lambda: now)
    made = client()
    found = []
    for now in (1000.0, 1300.0, 1599.0, 1601.0, 1700.0):  # noqa: B007 - the clock reads it
        found.append(visit(made, context))
    assert found == [False, True, True, False, True]


def test_a_server_that_does_not_know_the_session_is_verified(tmp_path: Path, context: ssl.SSLContext) -> None:
    """It has a certificate of its own, which may be a wrong one; then no session of it is kept."""
    made = client()
    together = [made.stream("h.test", 443) for _ in range(2)]
    for stream in together:
        connect(stream, context)
    for stream in together:
        stream.end()
    assert len(made.sessions) == 2
    bad = context_of(tmp_path, context.maximum_version, signed(names=[x509.DNSName("h.test")]))
    stream, server = made.stream("h.test", 443), Server(bad)
    sent = stream.begin("127.0.0.1")
    assert stream.is_resuming
    stream.feed(server.answer(sent))
    assert isinstance(stream.error, ssl.SSLCertVerificationError)
    assert not stream.is_ready
    stream.end()
    assert len(made.sessions) == 0


def test_no_session_is_kept_of_a_server_that_sends_much(tmp_path: Path) -> None:
    """Of certificates here: they would stay in memory with the session."""
    more = [authority(f"{'x' * 50} {number}") for number in range(60)]
    context = context_of(tmp_path, ssl.TLSVersion.TLSv1_3, LEAF, *more)
    made = client()
    assert not visit(made, context)
    assert len(made.sessions) == 0


def test_a_session_is_kept_however_large_the_page_is(context: ssl.SSLContext) -> None:
    made = client()
    stream = made.stream("h.test", 443)
    server = connect(stream, context)
    for _ in range(100):
        data = server.says(b"x" * 1000)
        pages = [stream.feed(data[start : start + 100]) for start in range(0, len(data), 100)]
        assert b"".join(pages) == b"x" * 1000
    stream.end()
    assert len(made.sessions) == 1


def test_a_handshake_may_come_byte_by_byte(context: ssl.SSLContext) -> None:
    stream, server = client().stream("h.test", 443), Server(context)
    sent = stream.begin("127.0.0.1")
    while not stream.is_ready:
        for byte in server.answer(sent):
            assert stream.feed(bytes((byte,))) == b""
        sent = b"" if stream.is_ready else stream.outgoing()
    data = server.answer(stream.encrypt(b"request")) + server.says(b"page")
    page = b"".join(stream.feed(bytes((byte,))) for byte in data)
    assert page == b"page"


def test_the_end_of_the_handshake_goes_with_the_request(tmp_path: Path) -> None:
    """Two flights of ours in all."""
    server = connect(client().stream("h.test", 443), context_of(tmp_path, ssl.TLSVersion.TLSv1_3))
    assert server.flights == 2


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


@pytest.mark.parametrize("size", [1, 7, 20_000])
def test_what_came_before_an_error_is_read(size: int, context: ssl.SSLContext) -> None:
    stream = client().stream("h.test", 443)
    server = connect(stream, context)
    data = server.says(b"page") + b"\x17\x03\x03\x00\x40" + b"x" * 64
    assert b"".join(stream.feed(piece) for piece in pieces(data, size)) == b"page"
    assert stream.is_ended
    assert "DECRYPTION_FAILED" in str(stream.error)
    stream.end()
    assert len(client().sessions) == 0


@pytest.mark.parametrize("host", ["", ".", "h..test", "a" * 64 + ".test", "-h.test"])
def test_a_host_that_no_certificate_can_be_for(host: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        client().stream(host, 443)


@pytest.mark.parametrize("group", ["X25519", "prime256v1", "secp384r1", "secp521r1", "X448"])
def test_every_group_that_python_offers_is_offered(group: str, context: ssl.SSLContext) -> None:
    """A server may know one alone."""
    context.set_ecdh_curve(group)
    assert not visit(client(), context)


def test_records_are_counted_however_they_are_cut() -> None:
    lengths = [0, 1, 5, 300, 0, 18_432]
    data = b"".join(b"\x17\x03\x03" + length.to_bytes(2) + b"x" * length for length in lengths)
    ends = [*accumulate(5 + length for length in lengths)]
    for place in [*range(330), len(data) - 1, len(data)]:
        records = tls._TlsRecords()
        assert records.feed(data[:place]) == sum(end <= place for end in ends)
        assert records.is_between == (place in (0, *ends))
        assert records.feed(data[place:]) == sum(end > place for end in ends)
        assert records.is_between


@pytest.mark.parametrize("after_handshake", [False, True])
def test_garbage_is_an_error_or_not_enough(after_handshake: bool, context: ssl.SSLContext) -> None:
    random = Random(18)
    errors = 0
    for _ in range(60):
        stream = client(DOWNLOAD_VERIFY_CERTIFICATES=False).stream("h.test", 443)
        if after_handshake:
            connect(stream, context)
        else:
            stream.begin("127.0.0.1")
        start = random.choice((b"", b"\x16\x03\x03\x00\x20\x02", b"\x17\x03\x03\x00\x20", b"\x15\x03\x03\x00\x02"))
        garbage = start + random.randbytes(random.randrange(1, 300))
        assert not any(stream.feed(piece) for piece in pieces(garbage, random.choice((1, 40, 400))))
        errors += stream.error is not None
        stream.end()
    assert errors > 20


# --- Which TLS sessions are kept, and for how long


PEER = TlsPeer(b"h.test", 443, "127.0.0.1")


def sessions(most: int = 10, most_of_peer: int = 3) -> TlsSessions[str]:
    return TlsSessions(most, most_of_peer, seconds=60)


def taken(store: TlsSessions[str], peer: TlsPeer = PEER, now: float = 0) -> str | None:
    kept = store.take(peer, now)
    return None if kept is None else kept.session


def test_each_is_taken_once_and_the_newest_first() -> None:
    store = sessions()
    for name in "abc":
        store.keep(PEER, KeptSession(name, 0))
    assert [taken(store) for _ in range(4)] == ["c", "b", "a", None]
    assert len(store) == 0


def test_of_one_server_the_oldest_goes_first() -> None:
    store = sessions()
    for number in range(5):
        store.keep(PEER, KeptSession(str(number), 0))
    assert [taken(store) for _ in range(4)] == ["4", "3", "2", None]


def test_of_all_servers_the_oldest_goes_first() -> None:
    store = sessions()
    peers = [PEER._replace(port=port) for port in range(30)]
    for peer in peers:
        store.keep(peer, KeptSession("a", 0))
    assert len(store) == 10
    assert [taken(store, peer) for peer in peers] == [None] * 20 + ["a"] * 10
    assert len(store) == 0


def test_its_age_is_that_of_the_last_verification() -> None:
    store = sessions()
    for verified_at in (10, 20):
        store.keep(PEER, KeptSession("a", verified_at))
    assert taken(store, now=79) == "a"
    assert taken(store, now=79) is None
    assert len(store) == 0


def test_all_of_a_server_are_forgotten_together() -> None:
    store = sessions()
    other = PEER._replace(port=1)
    for peer in (PEER, PEER, other):
        store.keep(peer, KeptSession("a", 0))
    store.forget(PEER)
    store.forget(PEER)
    assert taken(store) is None
    assert taken(store, other) == "a"
