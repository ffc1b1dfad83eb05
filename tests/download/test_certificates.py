"""Which certificates a download takes, name by name and chain by chain."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
import tempfile
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
from tests.download.handler_trials import download, handler_of, run_with_reactor, said_by
from tests.download.raw_answers import WHOLE, Case, RawServer, listening
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


async def outcome(tls: ssl.SSLContext, host: str, **settings: Any) -> str:
    """The body of the page, or the error as it is stored."""
    handler = handler_of("plain", {"DOWNLOAD_VERIFY_CERTIFICATES": True} | settings)
    async with listening(RawServer(Case()).serve, tls, "::1" if host == "[::1]" else "127.0.0.1") as port:
        found = await download(handler, Request(f"https://{host}:{port}/"))
        await handler.close()
    return found.get("body") or f"{found['error']}: {found['message']}"


@pytest.fixture
def trusted(trust: Callable[[Signed], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """The root of this module is trusted, and every name resolves."""
    trust(ROOT)
    resolve(monkeypatch)


NAMES = {  # the host of the URL, the names of the certificate, whether it is taken, and its common name
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
    "a common name and no other": ("h.test", [], True, "h.test"),
    "a common name beside another name": ("h.test", dns("g.test"), False, "h.test"),
    "a common name that is an address": ("127.0.0.1", [], False, "127.0.0.1"),
}


@pytest.mark.parametrize("case", NAMES)
async def test_a_certificate_is_for_the_host_of_the_url(case: str, trusted: None, tmp_path: Path) -> None:
    host, names, is_good, *common_name = NAMES[case]
    leaf = signed(ROOT, names=names, common_name=common_name[0] if common_name else "of a test")
    found = await outcome(server_context(tmp_path, leaf), host)
    assert found == ("<p>page" if is_good else REFUSED.format(host.strip("[]")))


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
async def test_a_chain_leads_to_an_authority(case: str, trusted: None, tmp_path: Path) -> None:
    make, is_good = CHAINS[case]
    found = await outcome(server_context(tmp_path, *make()), "h.test")
    assert found == ("<p>page" if is_good else REFUSED.format("h.test"))


@pytest.mark.parametrize(
    "make", [lambda: _leaf(ends=-0.5), lambda: _leaf(OTHER_ROOT), lambda: signed(names=dns("g.test"))]
)
async def test_any_certificate_will_do_without_verification(
    make: Callable[[], Signed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve(monkeypatch)
    found = await outcome(server_context(tmp_path, make()), "h.test", DOWNLOAD_VERIFY_CERTIFICATES=False)
    assert found == "<p>page"


async def test_authorities_of_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SSL_CERT_DIR, which OpenSSL looks into by hashes of names."""
    resolve(monkeypatch)
    folder = tmp_path / "roots"
    folder.mkdir()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("SSL_CERT_DIR", str(folder))
    context = server_context(tmp_path, _leaf())
    assert await outcome(context, "h.test") == REFUSED.format("h.test")
    from OpenSSL import crypto

    number = crypto.X509.from_cryptography(ROOT.certificate).subject_name_hash()
    (folder / f"{number:08x}.0").write_bytes(ROOT.pem)
    assert await outcome(context, "h.test") == "<p>page"


# --- Sites behind a proxy: certificates count as they do without one, and sessions stay apart


HERE = dns("localhost")


def chains() -> dict[str, list[Signed]]:
    """Of the site, by case."""
    return {
        "good": [signed(ROOT, names=HERE)],
        "with a middle": [signed(MIDDLE, names=HERE), MIDDLE],
        "expired": [signed(ROOT, names=HERE, ends=-0.5)],
        "another name": [signed(ROOT, names=dns("g.test"))],
        "an unknown authority": [signed(OTHER_ROOT, names=HERE)],
    }


class Site:
    """Answers over TLS, and notes whether a session was taken up."""

    def __init__(self) -> None:
        self.resumed: list[bool] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.resumed.append(writer.get_extra_info("ssl_object").session_reused)
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(WHOLE)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """To whichever port of loopback is asked for."""
    line = await reader.readuntil(b"\r\n\r\n")
    port = int(line.split(b" ")[1].rpartition(b":")[2])
    site_reader, site_writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    await asyncio.gather(pipe(reader, site_writer), pipe(site_reader, writer))


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
    except OSError:
        pass
    finally:
        writer.close()


async def trial(folder: Path, chain: list[Signed], proxy: str, settings: dict[str, Any]) -> dict[str, Any]:
    site = Site()
    context = server_context(folder, *chain)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    handler, outcomes = handler_of("plain", settings), []
    async with listening(site.serve, context) as port:
        for meta in ({}, {}, {"proxy": proxy}, {}):
            outcome = await download(handler, Request(f"https://localhost:{port}/", meta=meta))
            outcomes.append(outcome.get("body") or f"{outcome['error']}: {outcome['message']}")
        await handler.close()
    await asyncio.sleep(0.05)
    return {"outcomes": outcomes, "resumed": site.resumed}


async def main() -> None:
    """In a process of its own, because a reactor cannot be started twice."""
    proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "trusted.pem").write_bytes(ROOT.pem)
        os.environ["SSL_CERT_FILE"], os.environ["SSL_CERT_DIR"] = str(folder / "trusted.pem"), str(folder)
        verified: dict[str, Any] = {"DOWNLOAD_VERIFY_CERTIFICATES": True}
        found = {case: await trial(folder, chain, address, verified) for case, chain in chains().items()}
        unverified = {"DOWNLOAD_VERIFY_CERTIFICATES": False}
        found["expired, unverified"] = await trial(folder, chains()["expired"], address, unverified)
    proxy.close()
    json.dump(found, sys.stdout)


GOOD = ("good", "with a middle", "expired, unverified")
BAD = ("expired", "another name", "an unknown authority")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return dict(said_by("test_certificates")[0])


@pytest.mark.parametrize("case", GOOD)
def test_a_good_certificate_is_taken_and_sessions_stay_apart(case: str, found: dict[str, Any]) -> None:
    """Directly, directly, through the proxy, directly: each way takes up its own."""
    assert found[case]["outcomes"] == ["<p>page"] * 4
    assert found[case]["resumed"] == [False, True, False, True]


@pytest.mark.parametrize("case", BAD)
def test_a_bad_certificate_is_refused_with_and_without_a_proxy(case: str, found: dict[str, Any]) -> None:
    assert found[case]["outcomes"] == [REFUSED.format("localhost")] * 4


if __name__ == "__main__":
    run_with_reactor(lambda _: main())
