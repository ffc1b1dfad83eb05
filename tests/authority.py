"""Certificate authorities for tests of TLS, and a server with TLS in front of one without."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from tools.site.certificate import addresses, authority, signed


class Authority:
    """Signs certificates: ca.pem, server.pem, server.key, client.pem and client.key in `folder`."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        folder.mkdir()
        root = authority(name)
        server = signed(root, names=addresses("127.0.0.1"), common_name="server")
        for_clients = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        client = signed(root, common_name="client", more=[for_clients])
        (folder / "ca.pem").write_bytes(root.pem)
        for file, one in (("server", server), ("client", client)):
            (folder / f"{file}.pem").write_bytes(one.pem)
            (folder / f"{file}.key").write_bytes(one.key_pem)

    def context(self) -> ssl.SSLContext:
        """Of a server that asks clients for a certificate of this authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "server.pem", self.folder / "server.key")
        context.load_verify_locations(self.folder / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def give_to_client(self, folder: Path, *names: str) -> None:
        """Put the client's files there, in the place of those that are there."""
        folder.mkdir(exist_ok=True)
        for name in names or ("ca.pem", "client.pem", "client.key"):
            fresh = folder / f"{name}.new"
            fresh.write_bytes((self.folder / name).read_bytes())
            fresh.rename(folder / name)


class TlsFront:
    """Passes connections on to a port of loopback."""

    def __init__(self, target: int, authority: Authority) -> None:
        self._target = target
        self._context = authority.context()
        self._open: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def use(self, authority: Authority) -> None:
        """Have new certificates, and cut connections that were made with others."""
        self._context = authority.context()
        self._cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._listening.close()
        self._cut()

    def _cut(self) -> None:
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with (
            suppress(OSError),
            client,
            self._context.wrap_socket(client, server_side=True) as secured,
            socket.create_connection(("127.0.0.1", self._target)) as server,
        ):
            self._open += [secured, server]
            threading.Thread(target=pass_on, args=(server, secured), daemon=True).start()
            pass_on(secured, server)


def pass_on(source: socket.socket, target: socket.socket) -> None:
    """Until the source ends."""
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
