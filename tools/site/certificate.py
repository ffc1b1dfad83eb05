"""Certificate authorities of a test's own: they sign whatever a test wants, good and bad."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)
_signer = x509.AuthorityKeyIdentifier.from_issuer_public_key
_FOR_SIGNING = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    **dict.fromkeys(("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"), False),
    **dict.fromkeys(("key_agreement", "encipher_only", "decipher_only"), False),
)


@dataclass
class Signed:
    certificate: x509.Certificate
    key: Any

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        found: bytes = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return found


def signed(
    by: Signed | None = None,
    *,
    names: Sequence[x509.GeneralName] = (),
    common_name: str = "of a test",
    ends: float = 1,
    is_authority: bool = False,
    more: Sequence[x509.ExtensionType] = (),
    key: Any = None,
) -> Signed:
    """By itself if by nobody else. It holds from yesterday until so many days from now.

    It says what clients ask for that hold to RFC 5280, as those of Python 3.13: whose key it is, and what for.
    """
    key = key or ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(by.certificate.subject if by else name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + ends * DAY)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_signer((by.key if by else key).public_key()), critical=False)
    )
    if is_authority:
        builder = builder.add_extension(_FOR_SIGNING, critical=True)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    for extension in more:
        builder = builder.add_extension(extension, critical=False)
    return Signed(builder.sign(by.key if by else key, hashes.SHA256()), key)


def authority(name: str = "root of a test", by: Signed | None = None) -> Signed:
    """One that may sign others."""
    return signed(by, common_name=name, is_authority=True)


def addresses(*texts: str) -> list[x509.GeneralName]:
    return [x509.IPAddress(ip_address(text)) for text in texts]


def make(folder: Path, hosts: Sequence[str]) -> tuple[Path, Path]:
    """Two PEM files: an authority, for clients, and the certificate of these addresses with its key."""
    root = authority()
    leaf = signed(root, names=addresses(*hosts), common_name=hosts[0])
    trusted, chain = folder / "authority.pem", folder / "server.pem"
    trusted.write_bytes(root.pem)
    chain.write_bytes(leaf.key_pem + leaf.pem)
    return trusted, chain


def tls_for(address: str, folder: Path) -> tuple[ssl.SSLContext, Path]:
    """The server's side of TLS at an address, and the file of the authority that clients have to trust."""
    trusted, chain = make(folder, [address])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    return context, trusted


def server_context(folder: Path, *chain: Signed) -> ssl.SSLContext:
    """The leaf comes first; algorithms that are no longer safe may be in it."""
    file = folder / "chain.pem"
    file.write_bytes(chain[0].key_pem + b"".join(one.pem for one in chain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    context.load_cert_chain(file)
    return context
