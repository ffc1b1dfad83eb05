"""Measures the client's CPU for a TLS connection: handshake, a request, a page of 1 KB, and its end.

    python -m tools.measure.handshakes [--count N] [--rounds N]

Everything is in memory and in one process; the server is Python's, and its time is not counted. `ssl` is
Python's client, the other is that of the crawl, with and without the session of the connection before.
"""

from __future__ import annotations

import argparse
import os
import ssl
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from scrapy.settings import Settings

from site_spider.download.tls import TlsClient, tls_context
from tools.site.certificate import tls_for

_HOST = "127.0.0.1"
_REQUEST, _PAGE = b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", b"x" * 1_000


class Peer:
    """Python's TLS, in memory: of the server, and of the client that is compared."""

    def __init__(self, context: ssl.SSLContext, *, is_server: bool) -> None:
        self.incoming, self.sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        name = None if is_server else _HOST
        self.tls = context.wrap_bio(self.incoming, self.sent, server_side=is_server, server_hostname=name)
        self.is_ready = False

    def feed(self, data: bytes) -> bytes:
        self.incoming.write(data)
        with suppress(ssl.SSLWantReadError):
            if not self.is_ready:
                self.tls.do_handshake()
                self.is_ready = True
            return self.tls.read(10_000)
        return b""

    def outgoing(self) -> bytes:
        return self.sent.read()

    def end(self) -> None:
        """Nothing is kept."""

    def encrypt(self, page: bytes) -> bytes:
        self.tls.write(page)
        return self.sent.read()


class Clock:
    """CPU of the client alone."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def of(self, step: Callable[..., Any], *arguments: Any) -> Any:
        began = time.thread_time()
        made = step(*arguments)
        self.seconds += time.thread_time() - began
        return made


def connection(context: ssl.SSLContext, begin: Callable[[], tuple[Any, bytes]]) -> tuple[float, bool]:
    """CPU seconds of one connection, and whether it took a session up."""
    clock, server = Clock(), Peer(context, is_server=True)
    client, sent = clock.of(begin)
    while not client.is_ready:
        server.feed(sent)
        clock.of(client.feed, server.outgoing())
        sent = b"" if client.is_ready else clock.of(client.outgoing)
    server.feed(clock.of(client.encrypt, _REQUEST))
    assert clock.of(client.feed, server.outgoing() + server.encrypt(_PAGE)) == _PAGE
    clock.of(client.end)
    return clock.seconds, bool(server.tls.session_reused)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="connections of each kind in a round (200)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, alternating (5)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        server, trusted = tls_for(_HOST, Path(name))
        os.environ["SSL_CERT_FILE"] = str(trusted)
        python = ssl.create_default_context(cafile=str(trusted))
        ours = TlsClient(tls_context(Settings({"DOWNLOAD_VERIFY_CERTIFICATES": True})), 8)

    def of_python() -> tuple[Any, bytes]:
        client = Peer(python, is_server=False)
        client.feed(b"")
        return client, client.outgoing()

    def of_ours(resumes: bool) -> tuple[Any, bytes]:
        client = ours.stream(_HOST, 443, resumes=resumes)
        return client, client.begin(_HOST)

    kinds = {"ssl": of_python, "ours": lambda: of_ours(False), "ours, session": lambda: of_ours(True)}
    print(f"{'TLS':4} {'client':14} {'µs, median (least)':>20} {'sessions':>9}")
    for version in (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2):
        server.maximum_version = version
        found: dict[str, list[tuple[float, bool]]] = {kind: [] for kind in kinds}
        for _ in range(options.rounds):
            for kind, begin in kinds.items():
                found[kind] += [connection(server, begin) for _ in range(options.count)]
        for kind, all_of_kind in found.items():
            micros = [seconds * 1e6 for seconds, _ in all_of_kind]
            shown = f"{statistics.median(micros):,.0f} ({min(micros):,.0f})"
            name = version.name[4:].replace("_", ".")
            print(f"{name:4} {kind:14} {shown:>20} {sum(taken for _, taken in all_of_kind):9,}")


if __name__ == "__main__":
    main()
