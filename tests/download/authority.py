"""A certificate authority of a test's own: it signs whatever a test wants, good and bad."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


@dataclass
class Signed:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: Any

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


@dataclass
class Wish:
    """What a certificate has in it. `starts` and `ends` are days from now."""

    names: Sequence[x509.GeneralName] = ()
    common_name: str = "of a test"
    starts: float = -1
    ends: float = 1
    is_authority: bool = False
    more: Sequence[x509.ExtensionType] = ()
    hash: hashes.HashAlgorithm = field(default_factory=hashes.SHA256)
    key: Any = None


def signed(wish: Wish, by: Signed | None = None) -> Signed:
    """By itself if by nobody else."""
    key = wish.key or ec.generate_private_key(ec.SECP256R1())
    name = _name(wish.common_name)
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(by.certificate.subject if by else name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + wish.starts * DAY)
        .not_valid_after(now + wish.ends * DAY)
        .add_extension(x509.BasicConstraints(ca=wish.is_authority, path_length=None), critical=True)
    )
    if wish.names:
        builder = builder.add_extension(x509.SubjectAlternativeName(wish.names), critical=False)
    for extension in wish.more:
        builder = builder.add_extension(extension, critical=False)
    return Signed(builder.sign(by.key if by else key, wish.hash), key)


def authority(name: str = "root of a test", by: Signed | None = None, **wish: Any) -> Signed:
    return signed(Wish(common_name=name, is_authority=True, **wish), by)


def server_context(folder: Path, *chain: Signed) -> ssl.SSLContext:
    """The leaf comes first."""
    file = folder / "chain.pem"
    file.write_bytes(chain[0].key_pem + b"".join(one.pem for one in chain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    context.load_cert_chain(file)
    return context


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
