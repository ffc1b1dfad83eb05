"""The client's side of TLS against Python's server, both in memory: certificates, and the sessions that are kept."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from OpenSSL import SSL, crypto
from scrapy.settings import Settings

from site_spider import runtime
from site_spider.download import tls
from site_spider.download.tls import KeptSession, TlsClient, TlsPeer, TlsSessions, TlsStream, tls_context
from site_spider.engine import openssl
from tools.site.certificate import Signed, addresses, authority, server_context, signed

ROOT, OTHER_ROOT = authority(), authority("another root")
LEAF = signed(ROOT, names=[x509.DNSName("h.test"), x509.DNSName("g.test")])
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


@pytest.fixture(autouse=True)
def trusted(trust: Callable[[Signed], None]) -> None:
    trust(ROOT)


@pytest.fixture(params=VERSIONS)
def context(request: pytest.FixtureRequest, tmp_path: Path) -> ssl.SSLContext:
    return context_of(tmp_path, request.param)


def context_of(folder: Path, version: str = "1.3", *chain: Signed) -> ssl.SSLContext:
    context = server_context(folder, *(chain or (LEAF,)))
    context.maximum_version = VERSIONS[version]
    return context


def client(**settings: Any) -> TlsClient:
    return TlsClient(tls_context(Settings({"DOWNLOAD_VERIFY_CERTIFICATES": True} | settings)), 4)


class Server:
    def __init__(self, context: ssl.SSLContext) -> None:
        self.incoming, self.sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.sent, server_side=True)
        self.flights = 0
        self.asked = b""

    def answer(self, data: bytes) -> bytes:
        """To a flight of the handshake, and to the request."""
        self.flights += 1
        self.incoming.write(data)
        with suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
            self.asked += self.tls.read(10_000)
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
    assert server.asked == b"request"
    return server


def visit(made: TlsClient, context: ssl.SSLContext, host: str = "h.test", port: int = 443,
          address: str = "127.0.0.1", **how: Any) -> bool:  # fmt: skip
    stream = TlsStream(made, host, port, **how)
    server = connect(stream, context, address)
    assert stream.feed(server.says(b"page")) == b"page"
    certificate = stream.certificate
    assert certificate is not None
    assert certificate.to_cryptography() == LEAF.certificate
    stream.end()
    return server.tls.session_reused


# --- certificates ----------------------------------------------------------------------------------------


def is_taken(host: str, folder: Path, *chain: Signed, **settings: Any) -> bool:
    """Whether a client shakes hands with a server of this chain; else because of the chain."""
    stream, server = TlsStream(client(**settings), host, 443), Server(server_context(folder, *chain))
    sent = stream.begin("127.0.0.1")
    with suppress(ssl.SSLError):  # it is told
        while sent and not stream.is_ready:
            stream.feed(server.answer(sent))
            sent = stream.outgoing()
    assert stream.is_ready or isinstance(stream.error, ssl.SSLCertVerificationError)
    return stream.is_ready


def dns(*names: str) -> list[x509.GeneralName]:
    return [x509.DNSName(name) for name in names]


NAMES: dict[str, tuple[str, Sequence[x509.GeneralName], str, bool]] = {
    "its name": ("h.test", dns("h.test"), "", True),
    "another name": ("h.test", dns("g.test"), "", False),
    "a trailing dot in the URL": ("h.test.", dns("h.test"), "", True),
    "a wildcard": ("a.h.test", dns("*.h.test"), "", True),
    "a part of a label": ("foo.h.test", dns("f*.h.test"), "", False),
    "an IDN": ("xn--bcher-kva.test", dns("xn--bcher-kva.test"), "", True),
    "an underscore": ("a_b.h.test", dns("a_b.h.test"), "", True),
    "an address": ("127.0.0.1", addresses("127.0.0.1"), "", True),
    "another address": ("127.0.0.1", addresses("127.0.0.2"), "", False),
    "an address in IPv6": ("::1", addresses("::1"), "", True),
    "an address as a name": ("127.0.0.1", dns("127.0.0.1"), "", False),
    "an address for a name": ("h.test", addresses("127.0.0.1"), "", False),
    "a NUL in a name": ("h.test", dns("h.test\0.evil.test"), "", False),
    "a common name alone": ("h.test", [], "h.test", True),
    "a common name beside another name": ("h.test", dns("g.test"), "h.test", False),
    "an address as the common name": ("127.0.0.1", [], "127.0.0.1", False),
}


@pytest.mark.parametrize("case", NAMES)
def test_a_certificate_is_for_the_host_of_the_url(case: str, tmp_path: Path) -> None:
    host, names, common_name, is_good = NAMES[case]
    leaf = signed(ROOT, names=names, common_name=common_name or "of a test")
    assert is_taken(host, tmp_path, leaf) is is_good


leaf = partial(signed, names=dns("h.test"))
MIDDLE, NO_AUTHORITY = authority("middle", ROOT), signed(ROOT, common_name="no authority")
FOR_CLIENTS = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
CHAINS: dict[str, tuple[Callable[[], Sequence[Signed]], bool]] = {
    "expired": (lambda: [leaf(ROOT, ends=-0.5)], False),
    "signed by itself": (lambda: [leaf()], False),
    "an unknown authority": (lambda: [leaf(OTHER_ROOT)], False),
    "an authority of the same name": (lambda: [leaf(authority()), authority()], False),
    "a middle": (lambda: [leaf(MIDDLE), MIDDLE], True),
    "no middle": (lambda: [leaf(MIDDLE)], False),
    "a middle that is no authority": (lambda: [leaf(NO_AUTHORITY), NO_AUTHORITY], False),
    "for clients only": (lambda: [leaf(ROOT, more=[FOR_CLIENTS])], False),
    "a key of 1024 bits": (lambda: [leaf(ROOT, key=rsa.generate_private_key(65537, 1024))], False),
    "a key of 2048 bits": (lambda: [leaf(ROOT, key=rsa.generate_private_key(65537, 2048))], True),
}


@pytest.mark.parametrize("case", CHAINS)
def test_a_chain_leads_to_an_authority(case: str, tmp_path: Path) -> None:
    make, is_good = CHAINS[case]
    assert is_taken("h.test", tmp_path, *make()) is is_good


def test_any_certificate_will_do_without_verification(tmp_path: Path) -> None:
    for chain in (leaf(ROOT, ends=-0.5), leaf(OTHER_ROOT), signed(names=dns("g.test"))):
        assert is_taken("h.test", tmp_path, chain, DOWNLOAD_VERIFY_CERTIFICATES=False)


def test_authorities_of_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SSL_CERT_DIR, which OpenSSL looks into by hashes of names."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    assert not is_taken("h.test", tmp_path, LEAF)
    number = crypto.X509.from_cryptography(ROOT.certificate).subject_name_hash()
    (tmp_path / f"{number:08x}.0").write_bytes(ROOT.pem)
    assert is_taken("h.test", tmp_path, LEAF)


@pytest.mark.parametrize("host", ["", ".", "h..test", "a" * 64 + ".test", "-h.test"])
def test_a_host_that_no_certificate_can_be_for(host: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        TlsStream(client(), host, 443)


# --- settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verifies", [True, False])
def test_a_server_without_secure_renegotiation_will_do_without_verification(verifies: bool) -> None:
    """Where nothing is secured, as for Scrapy's client."""
    context = tls_context(Settings({"DOWNLOAD_VERIFY_CERTIFICATES": verifies}))
    assert bool(context.set_options(0) & SSL.OP_LEGACY_SERVER_CONNECT) is not verifies


AES128, AES256 = "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"


@pytest.mark.parametrize(
    ("version", "refusing", "taking"),
    [
        ("1.2", {"DOWNLOAD_TLS_MIN_VERSION": "TLSv1.3"}, {"DOWNLOAD_TLS_MIN_VERSION": "TLSv1.2"}),
        ("1.3", {"DOWNLOAD_TLS_MAX_VERSION": "TLSv1.2"}, {"DOWNLOAD_TLS_MAX_VERSION": "TLSv1.3"}),
        ("1.2", {"DOWNLOADER_CLIENT_TLS_CIPHERS": AES256}, {"DOWNLOADER_CLIENT_TLS_CIPHERS": AES128}),
    ],
)
def test_versions_and_ciphers_of_the_settings(
    version: str, refusing: dict[str, Any], taking: dict[str, Any], tmp_path: Path
) -> None:
    context = context_of(tmp_path, version)
    context.minimum_version = VERSIONS[version]
    context.set_ciphers(AES128)
    assert not visit(client(), context)
    assert not visit(client(**taking), context)
    with pytest.raises(ssl.SSLError):
        visit(client(**refusing), context)


@pytest.mark.parametrize("group", ["X25519", "prime256v1", "secp384r1", "secp521r1", "X448"])
def test_every_group_that_python_offers_is_offered(group: str, context: ssl.SSLContext) -> None:
    try:
        context.set_ecdh_curve(group)
    except ssl.SSLError:
        pytest.skip("this Python does not offer it")  # X25519 and X448 before 3.11.4
    assert not visit(client(), context)


# --- sessions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        *(({"host": "g.test"}, False), ({"port": 8443}, False), ({"address": "127.0.0.2"}, False)),
        *(({"resumes": False}, False), ({"host": "h.test."}, True)),
    ],
)
def test_a_session_is_of_one_server(other: dict[str, Any], is_same: bool, context: ssl.SSLContext) -> None:
    made = client()
    assert [visit(made, context) for _ in range(4)] == [False, True, True, True]
    assert visit(made, context, **other) is is_same
    assert visit(made, context)


def test_a_session_is_of_one_setting(context: ssl.SSLContext) -> None:
    """What was not verified is not taken up where it has to be."""
    without = client(DOWNLOAD_VERIFY_CERTIFICATES=False)
    visit(without, context)
    assert visit(without, context)
    assert not visit(client(), context)


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


@pytest.mark.parametrize("version", VERSIONS)
def test_a_server_that_does_not_know_the_session_is_verified(version: str, tmp_path: Path) -> None:
    """It has a certificate of its own, which may be a wrong one; then no session of it is kept."""
    made, context = client(), context_of(tmp_path, version)
    together = [TlsStream(made, "h.test", 443) for _ in range(2)]
    for stream in together:
        connect(stream, context)
    for stream in together:
        stream.end()
    assert len(made.sessions) == 2
    stream, server = TlsStream(made, "h.test", 443), Server(context_of(tmp_path, version, leaf()))
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
    made = client()
    assert not visit(made, context_of(tmp_path, "1.3", LEAF, *more))
    assert len(made.sessions) == 0


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


def test_a_session_is_kept_however_large_the_page_is(context: ssl.SSLContext) -> None:
    made = client()
    stream = TlsStream(made, "h.test", 443)
    server = connect(stream, context)
    for _ in range(100):
        data = server.says(b"x" * 1000)
        assert b"".join(map(stream.feed, pieces(data, 100))) == b"x" * 1000
    stream.end()
    assert len(made.sessions) == 1


def test_kept_sessions_have_bounds_and_the_newest_is_taken_first() -> None:
    store: Any = TlsSessions(10, 3, seconds=60)
    peers = [TlsPeer(b"h.test", port, "127.0.0.1") for port in range(30)]

    def taken(peer: TlsPeer, now: float = 0) -> str | None:
        kept = store.take(peer, now)
        return None if kept is None else kept.session

    for name in "abcde":
        store.keep(peers[0], KeptSession(name, 0))
    assert [taken(peers[0]) for _ in range(4)] == ["e", "d", "c", None]
    for peer in peers:
        store.keep(peer, KeptSession(str(peer.port), 0))
    assert len(store) == 10
    assert [taken(peer) for peer in peers] == [None] * 20 + [str(port) for port in range(20, 30)]
    for verified_at in (10, 20):
        store.keep(peers[0], KeptSession("a", verified_at))
    assert [taken(peers[0], now=79) for _ in range(2)] == ["a", None]  # 69 s after the other was verified
    for peer, name in ((peers[0], "a"), (peers[0], "b"), (peers[1], "c")):
        store.keep(peer, KeptSession(name, 0))
    for _ in range(2):
        store.forget(peers[0])
    assert [taken(peer) for peer in peers[:2]] == [None, "c"]
    assert len(store) == 0


# --- bytes -----------------------------------------------------------------------------------------------


def test_a_handshake_may_come_byte_by_byte(context: ssl.SSLContext) -> None:
    stream, server = TlsStream(client(), "h.test", 443), Server(context)
    sent = stream.begin("127.0.0.1")
    while not stream.is_ready:
        assert not any(map(stream.feed, pieces(server.answer(sent), 1)))
        sent = b"" if stream.is_ready else stream.outgoing()
    data = server.answer(stream.encrypt(b"request")) + server.says(b"page")
    assert b"".join(map(stream.feed, pieces(data, 1))) == b"page"


def test_the_end_of_the_handshake_goes_with_the_request(tmp_path: Path) -> None:
    assert connect(TlsStream(client(), "h.test", 443), context_of(tmp_path)).flights == 2


class Counting:
    """OpenSSL, with the names of the functions that are called."""

    def __init__(self, lib: Any) -> None:
        self._lib, self._called = lib, list[str]()

    def __getattr__(self, name: str) -> Any:
        self._called.append(name)
        return getattr(self._lib, name)

    def taken(self) -> list[str]:
        called, self._called = self._called, []
        return called


@pytest.mark.parametrize(("page_bytes", "records"), [(1_000, 1), (40_000, 3)])
def test_a_request_and_a_page_on_a_ready_connection_take_few_records_and_calls(
    page_bytes: int, records: int, context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of OpenSSL: three for a request, two for a page of one record, and two for each further record."""
    stream = TlsStream(client(), "h.test", 443)
    server = connect(stream, context)
    lib = Counting(openssl.lib)
    monkeypatch.setattr(openssl, "lib", lib)
    monkeypatch.setattr(SSL, "_lib", lib)
    request, page = b"GET / HTTP/1.1\r\n" * 30, b"x" * page_bytes
    sent = stream.encrypt(request)
    assert tls._TlsRecords().feed(sent) == 1
    assert lib.taken() == ["SSL_write", "BIO_get_mem_data", "BIO_read"]
    server.answer(sent)
    assert server.asked == b"request" + request
    came = server.says(page)
    assert tls._TlsRecords().feed(came) == records
    assert stream.feed(came) == page
    assert lib.taken() == ["BIO_write", "SSL_read", *["BIO_get_mem_data", "SSL_read"] * (records - 1)]


@pytest.mark.parametrize("size", [1, 7, 20_000])
def test_what_came_before_an_error_is_read(size: int, context: ssl.SSLContext) -> None:
    made = client()
    stream = TlsStream(made, "h.test", 443)
    server = connect(stream, context)
    data = server.says(b"page") + b"\x17\x03\x03\x00\x40" + b"x" * 64
    assert b"".join(map(stream.feed, pieces(data, size))) == b"page"
    assert stream.is_ended
    assert "DECRYPTION_FAILED" in str(stream.error)
    stream.end()
    assert len(made.sessions) == 0


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
        stream = TlsStream(client(DOWNLOAD_VERIFY_CERTIFICATES=False), "h.test", 443)
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
