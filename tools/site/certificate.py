"""A certificate authority for one test run, and a certificate of its for loopback addresses."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def tls_for(address: str, folder: Path) -> tuple[ssl.SSLContext, Path]:
    """The server's side of TLS at an address, and the file of the authority that clients have to trust."""
    trusted, chain = make(folder, [address])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    return context, trusted


def make(folder: Path, addresses: Sequence[str]) -> tuple[Path, Path]:
    """Writes two PEM files: the authority, for clients, and the server's certificate with its key."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _name("authority of a test")
    root = _builder(authority, authority, authority_key).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    leaf = _builder(_name(addresses[0]), authority, key).add_extension(
        x509.SubjectAlternativeName([x509.IPAddress(ip_address(one)) for one in addresses]), critical=False
    )
    trusted, chain = folder / "authority.pem", folder / "server.pem"
    trusted.write_bytes(_pem(root.sign(authority_key, hashes.SHA256())))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    chain.write_bytes(private + _pem(leaf.sign(authority_key, hashes.SHA256())))
    return trusted, chain


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
