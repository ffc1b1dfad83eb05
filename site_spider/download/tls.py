"""TLS for our own connections, by Scrapy's settings and the trusted roots of Python's ssl."""

from __future__ import annotations

import ssl
from collections import OrderedDict
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address
from typing import NamedTuple, Self

from OpenSSL import SSL
from OpenSSL.crypto import X509
from scrapy.settings import BaseSettings

from site_spider import options, runtime
from site_spider.download.address import is_address
from site_spider.engine.openssl import (
    expect_address,
    expect_name,
    has_unread,
    log_connection,
    outgoing,
    put,
    read,
    refuse_partial_wildcards,
    set_groups,
    write,
)
from site_spider.errors import ConfigError, SiteSpiderError

_VERSIONS = {
    "TLSv1.0": SSL.TLS1_VERSION,
    "TLSv1.1": SSL.TLS1_1_VERSION,
    "TLSv1.2": SSL.TLS1_2_VERSION,
    "TLSv1.3": SSL.TLS1_3_VERSION,
}
# Python's, for a setting that is empty
_CIPHERS = "@SECLEVEL=2:ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:DHE+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"
# OpenSSL's own list begins with ML-KEM, a share of which costs 100 µs; the last three are for odd servers
_GROUPS = b"X25519:P-256:P-384:P-521:X448:ffdhe2048:ffdhe3072"


class CertificateError(SiteSpiderError):
    """The host's certificate is wrong. Never retried: another attempt finds the same."""

    @classmethod
    def of(cls, host: str) -> Self:
        return cls(f"the certificate of {host} cannot be verified; set DOWNLOAD_VERIFY_CERTIFICATES=false to take any")


def tls_context(settings: BaseSettings) -> SSL.Context:
    """As DOWNLOAD_VERIFY_CERTIFICATES, DOWNLOAD_TLS_MIN_VERSION, DOWNLOAD_TLS_MAX_VERSION and
    DOWNLOADER_CLIENT_TLS_CIPHERS say. Raises ConfigError.
    """
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_options(SSL.OP_ALL & ~SSL.OP_DONT_INSERT_EMPTY_FRAGMENTS | SSL.OP_NO_COMPRESSION)
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)  # an idle connection needs none
    set_groups(context, _GROUPS)
    if options.boolean(settings, "DOWNLOAD_VERIFY_CERTIFICATES"):
        context.set_verify(SSL.VERIFY_PEER)
        refuse_partial_wildcards(context)
        _trust(context)
    else:
        context.set_options(SSL.OP_LEGACY_SERVER_CONNECT)  # without RFC 5746, as Scrapy's: nothing is secured here
    context.set_min_proto_version(_version(settings, "DOWNLOAD_TLS_MIN_VERSION", SSL.TLS1_2_VERSION))
    context.set_max_proto_version(_version(settings, "DOWNLOAD_TLS_MAX_VERSION", 0))
    ciphers = settings.get("DOWNLOADER_CLIENT_TLS_CIPHERS") or _CIPHERS
    try:
        context.set_cipher_list(str(ciphers).encode())
    except SSL.Error as error:
        raise ConfigError(
            f"DOWNLOADER_CLIENT_TLS_CIPHERS is {ciphers!r}, which OpenSSL does not know: no cipher can be selected."
        ) from error
    return context


def _trust(context: SSL.Context) -> None:
    """What Python trusts: SSL_CERT_FILE and SSL_CERT_DIR, or the system's. An empty file adds nothing."""
    paths = ssl.get_default_verify_paths()
    for file, folder in ((paths.cafile, None), (None, paths.capath)):
        if file or folder:
            with suppress(SSL.Error):
                context.load_verify_locations(file, folder)


def _version(settings: BaseSettings, name: str, default: int) -> int:
    value = settings.get(name)
    if value is None or value == "":
        return default
    if value not in _VERSIONS:
        raise ConfigError(f"{name} is {value!r}, but must be one of {', '.join(_VERSIONS)}.")
    return _VERSIONS[value]


# --- tls sessions: keeps TLS sessions, so that the next connection to a server needs no whole handshake --
# A session is taken once: a ticket of TLS 1.3 that were sent twice would show that two connections are of
# one client, and servers may refuse it. Where a session is resumed, no certificate is sent or verified. So
# each has the time of the handshake that verified it, and what follows from it inherits that time: a
# certificate counts no longer than `seconds` without being looked at again.


class TlsPeer(NamedTuple):
    """Whom a session belongs to."""

    host: bytes
    port: int
    address: str


class KeptSession(NamedTuple):
    """A session, and when the certificate behind it was verified."""

    session: SSL.Session
    verified_at: float


class TlsSessions:
    """At most `most` of them, of which `most_of_peer` of one peer; the one kept longest ago goes first."""

    def __init__(self, most: int, most_of_peer: int, seconds: float) -> None:
        self._most = most
        self._most_of_peer = most_of_peer
        self._seconds = seconds
        self._of_peer: dict[TlsPeer, list[KeptSession]] = {}
        self._order: OrderedDict[KeptSession, TlsPeer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def take(self, peer: TlsPeer, now: float) -> KeptSession | None:
        """The newest one, which is not kept any more."""
        kept = self._of_peer.get(peer)
        if not kept:
            return None
        newest = kept[-1]
        if newest.verified_at + self._seconds <= now:
            self.forget(peer)
            return None
        self._drop(newest)
        return newest

    def keep(self, peer: TlsPeer, kept: KeptSession) -> None:
        of_peer = self._of_peer.setdefault(peer, [])
        of_peer.append(kept)
        self._order[kept] = peer
        if len(of_peer) > self._most_of_peer:
            self._drop(of_peer[0])
        if len(self._order) > self._most:
            self._drop(next(iter(self._order)))

    def forget(self, peer: TlsPeer) -> None:
        for kept in self._of_peer.pop(peer, ()):
            del self._order[kept]

    def _drop(self, kept: KeptSession) -> None:
        peer = self._order.pop(kept)
        of_peer = self._of_peer[peer]
        of_peer.remove(kept)
        if not of_peer:
            del self._of_peer[peer]


# --- The client's side of one TLS connection, between bytes of the network and bytes of the page. No I/O -
# Theory of operation. `begin` gives the first bytes to send. What comes goes through `feed`, a piece at a
# time, and what is to be sent is taken with `outgoing` (or with `encrypt`, behind what waits: so the end of
# the handshake goes out together with the request). OpenSSL works in memory, so every call ends at once,
# and its work is bounded by the length of the piece.
#
# - Nothing is given out before the certificate is verified.
# - What came before an error, or before the end, is given out first.
# - `end` is called once, when the connection is of no more use; the session is kept for the next one.

_HEADER_BYTES = 5
_LONGEST_RECORD_BYTES = 18_432
_RECORD_EXTRA_BYTES = 64  # that a record is longer than its content
_MOST_KEPT_BYTES = 16_384  # of certificates and tickets: of a server that sends more, no session is kept
_MOST_SESSIONS = 500  # 10 to 20 KB each, with the certificates
_SESSION_SECONDS = 600.0
_ENDED = SSL.SENT_SHUTDOWN | SSL.RECEIVED_SHUTDOWN


class TlsClient:
    """Settings of TLS, and the sessions under them: of one crawl, whose connections use no proxy."""

    def __init__(self, context: SSL.Context, most_sessions_of_server: int) -> None:
        self.context = context
        self.verifies = context.get_verify_mode() != SSL.VERIFY_NONE
        self.sessions = TlsSessions(_MOST_SESSIONS, most_sessions_of_server, _SESSION_SECONDS)


@lru_cache(maxsize=1024)
def _certificate_name(host: str) -> bytes:
    """Raises ValueError, which UnicodeError is."""
    name = host.removesuffix(".").encode("idna")
    if not name:
        raise ValueError(f"{host!r} cannot be the name of a certificate")
    return name


class TlsStream:
    """One connection. Errors are ssl.SSLError, a wrong certificate ssl.SSLCertVerificationError."""

    def __init__(self, client: TlsClient, host: str, port: int, *, resumes: bool = True) -> None:
        """Raises ValueError when TLS has no name for the host."""
        self.is_ready = False  # the handshake is over
        self.is_ended = False  # no more will come
        self.error: ssl.SSLError | None = None  # why
        self.is_over = False  # `end` was called
        self.is_resuming = False  # with the session of an earlier connection
        self._client = client
        self._name, self._port = _certificate_name(host), port
        self._resumes = resumes
        self._connection = SSL.Connection(client.context, None)
        self._expect(self._name)
        self._peer: TlsPeer | None = None
        self._verified_at = runtime.monotonic()
        self.records = _TlsRecords()
        self._extra_bytes = 0  # that came and were no page

    @property
    def certificate(self) -> X509 | None:
        return self._connection.get_peer_certificate()

    def log(self, host: str) -> None:
        """What was agreed on, as DOWNLOADER_CLIENT_TLS_VERBOSE_LOGGING wants it."""
        log_connection(host, self._connection)

    def begin(self, address: str) -> bytes:
        """The first bytes to send to this address."""
        self._peer = TlsPeer(self._name, self._port, address)
        kept = self._client.sessions.take(self._peer, self._verified_at) if self._resumes else None
        if kept is not None:
            self.is_resuming = True
            self._verified_at = kept.verified_at
            self._connection.set_session(kept.session)
        self._connection.set_connect_state()
        self._shake_hands()
        return self.outgoing()

    def feed(self, data: bytes | memoryview) -> bytes:
        """What comes of some bytes of the network. Look at `is_ended` afterwards."""
        ended = self.records.feed(data)
        put(self._connection, data)
        if not self.is_ready:
            self._shake_hands()
            ended = self.is_ready and has_unread(self._connection) and ended
        page = self._page(ended) if ended else b""
        self._extra_bytes += len(data) - len(page)
        return page

    def encrypt(self, page: bytes) -> bytes:
        """As bytes to send, behind those that wait. Raises ssl.SSLError."""
        try:
            write(self._connection, page)
        except SSL.Error as error:
            raise _as_python_says_it(error) from error
        return self.outgoing()

    def outgoing(self) -> bytes:
        return outgoing(self._connection)

    def end(self) -> None:
        """Keep the session. OpenSSL would spoil that of a connection which was not shut down."""
        peer, self._peer, self.is_over = self._peer, None, True
        if peer is None:
            return
        if not self.is_ready or self.error is not None:
            self._client.sessions.forget(peer)
            return
        self._connection.set_shutdown(_ENDED)
        session = self._connection.get_session()
        most_bytes = _MOST_KEPT_BYTES + _RECORD_EXTRA_BYTES * self.records.count
        if session is not None and self._resumes and self._extra_bytes <= most_bytes:
            self._client.sessions.keep(peer, KeptSession(session, self._verified_at))

    def _expect(self, name: bytes) -> None:
        verifies = self._client.verifies
        if not is_address(host := name.decode()):
            self._connection.set_tlsext_host_name(name)
            if verifies:
                expect_name(self._connection, name)
        elif verifies:
            expect_address(self._connection, ip_address(host).packed)

    def _shake_hands(self) -> None:
        try:
            self._connection.do_handshake()
        except SSL.WantReadError:
            return
        except SSL.Error as error:
            self._fail(error)
        else:
            self.is_ready = True

    def _page(self, ended: int) -> bytes:
        """Of so many records; one more question would only be an error."""
        pieces = []
        try:
            for left in reversed(range(ended)):
                pieces.append(read(self._connection))
                if not (left and has_unread(self._connection)):
                    break
        except SSL.WantReadError:
            pass
        except SSL.Error as error:
            self._fail(error)
        return b"".join(pieces) if len(pieces) != 1 else pieces[0]

    def _fail(self, error: SSL.Error) -> None:
        self.is_ended = True
        if self.is_ready and isinstance(error, SSL.ZeroReturnError):
            return
        self.error = _as_python_says_it(error)


class _TlsRecords:
    """Where a stream of bytes stands between records: each has five bytes, of which two are its length."""

    def __init__(self) -> None:
        self.count = 0
        self._missing = 0  # of the record at hand
        self._header = b""  # as much as has come of one

    @property
    def is_between(self) -> bool:
        return not self._missing and not self._header

    def feed(self, data: bytes | memoryview) -> int:
        """How many ended; one that is too long counts, because OpenSSL refuses it when it is asked."""
        data = self._header + bytes(data) if self._header else data
        place = self._missing
        ended = int(0 < place <= len(data))
        while place + _HEADER_BYTES <= len(data):
            length = data[place + 3] << 8 | data[place + 4]
            place += _HEADER_BYTES + length
            ended += place <= len(data) or length > _LONGEST_RECORD_BYTES
        self._missing = max(0, place - len(data))
        self._header = bytes(data[place:])
        self.count += ended
        return ended


def _as_python_says_it(error: SSL.Error) -> ssl.SSLError:
    if isinstance(error, SSL.ZeroReturnError):
        return ssl.SSLZeroReturnError(ssl.SSL_ERROR_ZERO_RETURN, "TLS/SSL connection has been closed (EOF)")
    reason = _reason_of(error)
    name = reason.upper().replace(" ", "_")
    kind = ssl.SSLCertVerificationError if reason == "certificate verify failed" else ssl.SSLError
    return kind(ssl.SSL_ERROR_SSL, f"[SSL: {name}] {reason}")


def _reason_of(error: SSL.Error) -> str:
    """The last of TLS's own: OpenSSL 4 has the cipher's before it, and "record layer failure" behind it."""
    queue = error.args[0] if error.args and isinstance(error.args[0], list) else []
    reasons = [reason for library, _, reason in queue if library == "SSL routines"]
    found = [reason for reason in reasons if reason != "record layer failure"] or ["internal error"]
    return str(found[-1]).replace("tls alert", "sslv3 alert")  # its name before OpenSSL 4
