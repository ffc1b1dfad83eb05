"""Which certificates a download takes, name by name and chain by chain."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from scrapy import Request

from site_spider.download import names
from tests.download.handler_trials import handler_of
from tests.download.raw_answers import Case, RawServer
from tools.site.certificate import Signed, authority, server_context, signed

REFUSED = (
    "CertificateError: the certificate of {} cannot be verified; set DOWNLOAD_VERIFY_CERTIFICATES=false to take any"
)
ROOT, OTHER_ROOT = authority(), authority("another root")


def dns(*names: str) -> list[x509.GeneralName]:
    return [x509.DNSName(name) for name in names]


def ip(*addresses: str) -> list[x509.GeneralName]:
    return [x509.IPAddress(ip_address(address)) for address in addresses]


def resolve(patch: pytest.MonkeyPatch, address: str = "127.0.0.1") -> None:
    """Every name leads to the test's server."""

    async def found(_host: str) -> list[str]:
        return [address]

    patch.setattr(names, "addresses_of", found)


def outcome(tls: ssl.SSLContext, host: str, **settings: Any) -> str:
    """The body of the page, or the error as it is stored."""
    return asyncio.run(_outcome(tls, host, settings))


async def _outcome(tls: ssl.SSLContext, host: str, settings: dict[str, Any]) -> str:
    at = "::1" if host == "[::1]" else "127.0.0.1"
    listening = await asyncio.start_server(RawServer(Case()).serve, at, 0, ssl=tls)
    port = listening.sockets[0].getsockname()[1]
    handler = handler_of("plain", {"DOWNLOAD_VERIFY_CERTIFICATES": True} | settings)
    try:
        response = await handler.download_request(Request(f"https://{host}:{port}/"))
    except Exception as error:  # noqa: BLE001 - its words are the outcome
        return f"{type(error).__name__}: {error}"
    finally:
        await handler.close()
        listening.close()
    return str(response.text)


@pytest.fixture
def trusted(trust: Callable[[Signed], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The root of this module is trusted, and every name resolves."""
    trust(ROOT)
    resolve(monkeypatch)


NAMES = {
    "its name": ("h.test", dns("h.test"), True),
    "another name": ("h.test", dns("g.test"), False),
    "a trailing dot in the URL": ("h.test.", dns("h.test"), True),
    "a wildcard": ("a.h.test", dns("*.h.test"), True),
    "a part of a label": ("foo.h.test", dns("f*.h.test"), False),
    "an IDN": ("xn--bcher-kva.test", dns("xn--bcher-kva.test"), True),
    "an underscore": ("a_b.h.test", dns("a_b.h.test"), True),
    "an address": ("127.0.0.1", ip("127.0.0.1"), True),
    "another address": ("127.0.0.1", ip("127.0.0.2"), False),
    "an address in IPv6": ("[::1]", ip("::1"), True),
    "an address as a name": ("127.0.0.1", dns("127.0.0.1"), False),
    "an address for a name": ("h.test", ip("127.0.0.1"), False),
    "a NUL in a name": ("h.test", dns("h.test\0.evil.test"), False),
}


@pytest.mark.parametrize("case", NAMES)
def test_a_certificate_is_for_the_host_of_the_url(case: str, trusted: None, tmp_path: Path) -> None:
    host, names, is_good = NAMES[case]
    leaf = signed(ROOT, names=names, common_name="of a test")
    found = outcome(server_context(tmp_path, leaf), host)
    assert found == ("<p>page" if is_good else REFUSED.format(host.strip("[]")))


COMMON_NAMES = {
    "no other name": ("h.test", "h.test", [], True),
    "beside another name": ("h.test", "h.test", dns("g.test"), False),
    "an address": ("127.0.0.1", "127.0.0.1", [], False),
}


@pytest.mark.parametrize("case", COMMON_NAMES)
def test_the_common_name_counts_where_there_is_no_other(case: str, trusted: None, tmp_path: Path) -> None:
    host, common_name, names, is_good = COMMON_NAMES[case]
    leaf = signed(ROOT, names=names, common_name=common_name)
    found = outcome(server_context(tmp_path, leaf), host)
    assert found == ("<p>page" if is_good else REFUSED.format(host))


def _leaf(by: Signed | None = ROOT, **wish: Any) -> Signed:
    return signed(by, names=dns("h.test"), **wish)


def _through(middle: Signed) -> tuple[Signed, ...]:
    return (_leaf(middle), middle)


MIDDLE = authority("middle", ROOT)


CHAINS: dict[str, tuple[Callable[[], Sequence[Signed]], bool]] = {
    "expired": (lambda: [_leaf(ends=-0.5)], False),
    "signed by itself": (lambda: [_leaf(None)], False),
    "an unknown authority": (lambda: [_leaf(OTHER_ROOT)], False),
    "an authority of the same name": (lambda: [_leaf(authority()), authority()], False),
    "a middle": (lambda: _through(MIDDLE), True),
    "no middle": (lambda: [_leaf(MIDDLE)], False),
    "a middle that is no authority": (
        lambda: _through(signed(ROOT, common_name="no authority")), False,
    ),
    "for clients only": (
        lambda: [_leaf(more=[x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])])], False,
    ),
    "a key of 1024 bits": (lambda: [_leaf(key=rsa.generate_private_key(65537, 1024))], False),
    "a key of 2048 bits": (lambda: [_leaf(key=rsa.generate_private_key(65537, 2048))], True),
}  # fmt: skip


@pytest.mark.parametrize("case", CHAINS)
def test_a_chain_leads_to_an_authority(case: str, trusted: None, tmp_path: Path) -> None:
    make, is_good = CHAINS[case]
    found = outcome(server_context(tmp_path, *make()), "h.test")
    assert found == ("<p>page" if is_good else REFUSED.format("h.test"))


@pytest.mark.parametrize(
    "make", [lambda: _leaf(ends=-0.5), lambda: _leaf(OTHER_ROOT), lambda: signed(names=dns("g.test"))]
)
def test_any_certificate_will_do_without_verification(
    make: Callable[[], Signed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve(monkeypatch)
    found = outcome(server_context(tmp_path, make()), "h.test", DOWNLOAD_VERIFY_CERTIFICATES=False)
    assert found == "<p>page"


def test_authorities_of_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SSL_CERT_DIR, which OpenSSL looks into by hashes of names."""
    resolve(monkeypatch)
    folder = tmp_path / "roots"
    folder.mkdir()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("SSL_CERT_DIR", str(folder))
    context = server_context(tmp_path, _leaf())
    assert outcome(context, "h.test") == REFUSED.format("h.test")
    from OpenSSL import crypto

    number = crypto.X509.from_cryptography(ROOT.certificate).subject_name_hash()
    (folder / f"{number:08x}.0").write_bytes(ROOT.pem)
    assert outcome(context, "h.test") == "<p>page"
