"""A certificate authority of the race's own, and a certificate of it for the site's addresses."""

from __future__ import annotations

import datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


def make(folder: Path, addresses: list[str]) -> tuple[Path, Path]:
    """Writes two PEM files: the authority, for clients, and the site's certificate with its key."""
    authority_key, site_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "The race's own authority")])
    authority = (
        _builder(name, name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address(one)) for one in addresses])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "The race's site")])
    certificate = (
        _builder(subject, name, site_key)
        .add_extension(names, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    key = site_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    authority_file, site_file = folder / "authority.pem", folder / "site.pem"
    authority_file.write_bytes(authority.public_bytes(pem))
    site_file.write_bytes(key + certificate.public_bytes(pem))
    return authority_file, site_file


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + 30 * _DAY)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
