"""A wrong certificate is a failure of its own, and no reason to try again."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tools.deployment.deployment import Deployment, opened, wait_until


def write_certificate(file: Path) -> None:
    """For another host, signed by itself; with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "other.test")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    now = datetime.now(UTC)
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    certificate = builder.sign(key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))


class Server:
    """Greets whoever connects, and counts them."""

    def __init__(self, folder: Path) -> None:
        write_certificate(folder / "server.pem")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "server.pem")
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection = self._socket.accept()[0]
                self.connections += 1
                with suppress(OSError), self._context.wrap_socket(connection, server_side=True) as secured:
                    secured.recv(1000)
                connection.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.close()


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    yield from opened(tmp_path, {})


def test_a_wrong_certificate_is_not_tried_again(deployment: Deployment, server: Server) -> None:
    """One connection, and a description that names the host and the remedy."""
    seed = {"url": f"https://127.0.0.1:{server.port}/", "meta": {"url_id": "x"}}
    deployment.produce([(b"k", json.dumps(seed).encode())])
    deployment.start().wait_assigned()
    wait_until(deployment.is_done, 300, "no lag")
    document = deployment.documents()["x"]
    assert document["description"].startswith(
        "CertificateError: the certificate of 127.0.0.1 cannot be verified"
    )
    assert (document["status"], document["retries"], server.connections) == (None, 0, 1)
