"""Credentials and certificates, against a loopback server that looks at nothing else.

Basic auth is tested with the real one too, in test_elasticsearch.py. The slim distribution of the tests
makes no API keys: its security index needs a filter, pattern_capture, that is not in it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import ssl
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from site_spider.adapters.elasticsearch.sink import ElasticsearchSink
from site_spider.contracts.sink import ACKNOWLEDGED
from site_spider.errors import ConfigError
from site_spider.results.delivery import Delivery
from tests.contracts.sinks import record

BASIC = "Basic " + b64encode(b"crawler:opensesame").decode()
API_KEY = "ApiKey " + b64encode(b"id:secret").decode()
LONG_WAIT_SECONDS = 600.0  # a mistake that is taken for an outage is waited for so long


class Authority(NamedTuple):
    """A CA of one's own, and a certificate for 127.0.0.1 that it signed."""

    ca: Path
    chain: Path


def make_authority(folder: Path) -> Authority:
    """Keys, and certificates that are valid for an hour."""
    folder.mkdir()
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name, name = (
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)]) for text in ("CA", "node")
    )
    now = datetime.now(UTC)

    def signed(subject: x509.Name, public: Any, *extensions: x509.ExtensionType) -> bytes:
        builder = (
            x509.CertificateBuilder(ca_name, subject, public, x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
            )
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    usage = x509.KeyUsage(
        True, False, False, False, False, key_cert_sign=True, crl_sign=True, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    ca, chain = folder / "ca.pem", folder / "node.pem"
    ca.write_bytes(signed(ca_name, ca_key.public_key(), x509.BasicConstraints(True, None), usage))
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    chain.write_bytes(signed(name, key.public_key(), address) + secret)
    return Authority(ca, chain)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("tls") / "ours")


def application(credentials: str) -> web.Application:
    """As much of Elasticsearch as a sink needs, for whoever sends these credentials."""

    async def answer(request: web.Request) -> web.Response:
        headers = {"X-Elastic-Product": "Elasticsearch"}
        if request.headers.get("Authorization") != credentials:
            error = {"type": "security_exception", "reason": "unable to authenticate"}
            return web.json_response({"error": error, "status": 401}, status=401, headers=headers)
        actions = [json.loads(line) for line in (await request.text()).splitlines()[::2]]
        items = [
            {"update": {"_id": one["update"]["_id"], "status": 200}} for one in actions if "update" in one
        ]
        return web.json_response({"errors": False, "items": items}, headers=headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return app


def with_server(authority: Authority, credentials: str, scenario: Callable[[str], Awaitable[None]]) -> None:
    """Run the scenario with the address of a server, over TLS."""

    async def run() -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(authority.chain)
        runner = web.AppRunner(application(credentials))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        try:
            await scenario(f"https://127.0.0.1:{runner.addresses[0][1]}")
        finally:
            await runner.cleanup()

    asyncio.run(run())


def sink(address: str, **options: Any) -> ElasticsearchSink:
    return ElasticsearchSink.from_settings(
        {
            "SITE_ELASTICSEARCH_HOSTS": address,
            "SITE_ELASTICSEARCH_OPTIONS": json.dumps(options),
            "SITE_RESULTS_INDEX": "results",
        }
    )


@pytest.mark.parametrize(
    ("expected", "options"),
    [
        (BASIC, {"basic_auth": ["crawler", "opensesame"]}),
        (API_KEY, {"api_key": ["id", "secret"]}),
        (API_KEY, {"api_key": API_KEY.removeprefix("ApiKey ")}),
    ],
)
def test_who_has_the_credentials_and_the_ca_gets_in(
    authority: Authority, expected: str, options: dict[str, Any]
) -> None:
    """The header is the one that Elasticsearch documents; the certificate is checked against our own CA."""

    async def scenario(address: str) -> None:
        allowed = sink(address, ca_certs=str(authority.ca), **options)
        await allowed.open()
        assert await allowed.write([record("a", {"status": 200})]) == [ACKNOWLEDGED]
        await allowed.close()

    with_server(authority, expected, scenario)


@pytest.mark.parametrize("options", [{}, {"basic_auth": ["crawler", "wrong"]}, {"api_key": ["id", "wrong"]}])
def test_wrong_credentials_end_the_start_at_once(authority: Authority, options: dict[str, Any]) -> None:
    """Waiting would not help; the message names the setting and what to put there."""

    async def scenario(address: str) -> None:
        began = time.monotonic()
        with pytest.raises(ConfigError) as caught:
            await Delivery(sink(address, ca_certs=str(authority.ca), **options)).open(LONG_WAIT_SECONDS)
        assert time.monotonic() - began < LONG_WAIT_SECONDS / 2
        told = str(caught.value)
        for words in (address, "HTTP 401", "SITE_ELASTICSEARCH_OPTIONS", "basic_auth", "api_key"):
            assert words in told
        assert "wrong" not in told

    with_server(authority, BASIC, scenario)


def test_a_certificate_of_an_unknown_ca_ends_the_start_at_once(authority: Authority, tmp_path: Path) -> None:
    """Neither the system's CAs nor another one of our own have signed it; the message names ca_certs."""
    other = make_authority(tmp_path / "other")

    async def scenario(address: str) -> None:
        for options in ({}, {"ca_certs": str(other.ca)}):
            began = time.monotonic()
            with pytest.raises(ConfigError) as caught:
                await Delivery(sink(address, **options)).open(LONG_WAIT_SECONDS)
            assert time.monotonic() - began < LONG_WAIT_SECONDS / 2
            told = str(caught.value)
            for words in (address, "certificate", "SITE_ELASTICSEARCH_OPTIONS", "ca_certs"):
                assert words in told

    with_server(authority, BASIC, scenario)
