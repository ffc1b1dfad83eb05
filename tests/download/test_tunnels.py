"""Requests through proxies, against real ones on loopback: what each side is told, and what becomes of its answer."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from scrapy import Request

from site_spider.download import connection_pool
from tests.download.handler_trials import download, handling, listening
from tests.download.raw_answers import Case, RawServer
from tools.site.certificate import Signed, authority, server_context, signed

ROOT = authority()
HERE = [x509.DNSName("localhost"), x509.DNSName("other.test")]
REFUSED = (
    "CertificateError: the certificate of localhost cannot be verified; "
    "set DOWNLOAD_VERIFY_CERTIFICATES=false to take any"
)
SECRET = "Basic b3BlcmF0b3I6aHVzaA=="


class Proxy:
    """Opens a tunnel to whichever port of loopback is asked for, or answers with given bytes."""

    def __init__(self, says: bytes | None = None, *, closes: bool = True) -> None:
        self._says, self._closes = says, closes
        self.asked: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append(await reader.readuntil(b"\r\n\r\n"))
        if self._says is not None:
            writer.write(self._says)
            await (asyncio.sleep(0) if self._closes else reader.read())
            writer.close()
            return
        port = int(self.asked[-1].split(b" ")[1].rpartition(b":")[2])
        site_reader, site_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HTTP/1.1 200 Connection established\r\nX-Proxy: 1\r\n\r\n")
        await asyncio.gather(pipe(reader, site_writer), pipe(site_reader, writer))


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
    except OSError:
        pass
    finally:
        writer.close()


class Site(RawServer):
    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.resumed: list[bool] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.resumed.append(writer.get_extra_info("ssl_object").session_reused)
        await super().serve(reader, writer)


async def fetched(proxy: Any, *urls: str, seconds: float = 300, **settings: Any) -> list[dict[str, Any]]:
    """One after the other by one handler; PORT is that of the proxy. Nothing stays open."""
    async with listening(proxy.serve) as port, handling("plain", **settings) as handler:
        meta = {"proxy": f"http://127.0.0.1:{port}", "download_timeout": seconds}
        headers = {"Proxy-Authorization": SECRET}
        outcomes = [await download(handler, Request(url, headers=headers, meta=meta)) for url in urls]
    assert handler._wires.places._taken == 0
    return [
        {key: value.replace(str(port), "PORT") if isinstance(value, str) else value for key, value in outcome.items()}
        for outcome in outcomes
    ]


CHAINS: dict[str, tuple[Callable[[], list[Signed]], bool, bool]] = {
    "good": (lambda: [signed(ROOT, names=HERE)], True, True),
    "expired": (lambda: [signed(ROOT, names=HERE, ends=-0.5)], True, False),
    "another name": (lambda: [signed(ROOT, names=[x509.DNSName("g.test")])], True, False),
    "an unknown authority": (lambda: [signed(authority("another"), names=HERE)], True, False),
    "expired, unverified": (lambda: [signed(ROOT, names=HERE, ends=-0.5)], False, True),
}


@pytest.mark.parametrize("case", CHAINS)
async def test_certificates_count_as_without_a_proxy_and_sessions_stay_apart(
    case: str, trust: Callable[[Signed], None], tmp_path: Path
) -> None:
    """Directly, directly, through the proxy, directly: a session would show that two ways are of one client."""
    make, verifies, is_good = CHAINS[case]
    trust(ROOT)
    context = server_context(tmp_path, *make())
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    site, proxy = Site(Case()), Proxy()
    outcomes = []
    async with (
        listening(site.serve, context) as port,
        listening(proxy.serve) as at,
        handling("plain", DOWNLOAD_VERIFY_CERTIFICATES=verifies) as handler,
    ):
        for meta in ({}, {}, {"proxy": f"http://127.0.0.1:{at}"}, {}):
            outcome = await download(handler, Request(f"https://localhost:{port}/", meta=meta))
            outcomes.append(outcome.get("body") or f"{outcome['error']}: {outcome['message']}")
    assert outcomes == ["<p>page" if is_good else REFUSED] * 4
    assert site.resumed == ([False, True, False, True] if is_good else [])
    assert len(proxy.asked) == 1


async def test_a_tunnel_is_one_for_each_site_and_the_site_is_not_told_the_secret(tmp_path: Path) -> None:
    """It is kept for the next request; a body goes through it, too."""
    site, proxy = Site(Case(closes=False)), Proxy()
    async with listening(site.serve, server_context(tmp_path, signed(ROOT, names=HERE))) as port:
        urls = [f"https://{host}:{port}/page" for host in ("127.0.0.1", "127.0.0.1", "other.test")]
        outcomes = await fetched(proxy, *urls, DOWNLOAD_VERIFY_CERTIFICATES=False)
    assert [(one["body"], one["has_certificate"], one["ip_address"]) for one in outcomes] == [
        ("<p>page", True, "127.0.0.1")
    ] * 3
    place = b"127.0.0.1:%d" % port
    lines = b"Host: %s\r\nProxy-Authorization: %s\r\n\r\n" % (place, SECRET.encode())
    assert proxy.asked[0] == b"CONNECT %s HTTP/1.1\r\n%s" % (place, lines)
    assert [asked.split()[1] for asked in proxy.asked] == [place, b"other.test:%d" % port]
    assert [sent.split(b"\r\n")[:2] for sent in site.received[:2]] == [[b"GET /page HTTP/1.1", b"Host: %s" % place]] * 2
    assert b"roxy" not in b"".join(site.received)


async def test_plain_requests_share_a_connection_to_the_proxy() -> None:
    """Whatever their site: their first line has the whole URL."""
    proxy = RawServer(Case(closes=False))
    outcomes = await fetched(proxy, "http://one.test/a?b#c", "http://two.test:81")
    assert [(outcome["body"], outcome["url"]) for outcome in outcomes] == [
        ("<p>page", "http://one.test/a?b"), ("<p>page", "http://two.test:81"),
    ]  # fmt: skip
    secret = b"\r\nProxy-Authorization: %s\r\n\r\n" % SECRET.encode()
    assert proxy.received == [
        b"GET http://one.test/a?b HTTP/1.1\r\nHost: one.test" + secret,
        b"GET http://two.test:81/ HTTP/1.1\r\nHost: two.test:81" + secret,
    ]
    assert proxy.connections == 1


REFUSALS = {
    "credentials": (
        b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 5\r\n\r\nno no",
        "{'status': 407, 'reason': b'Proxy Authentication Required'}",
    ),
    "another status": (b"HTTP/1.0 204 \r\n\r\n", "{'status': 204, 'reason': b''}"),
    "no HTTP": (b"SSH-2.0-OpenSSH\r\n\r\n", r"b'SSH-2.0-OpenSSH\r\n\r\n'"),
    "half a head": (b"HTTP/1.1 200 OK\r\n", r"b'HTTP/1.1 200 OK\r\n'"),
    "nothing": (b"", "b''"),
    "a head without an end": (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000, "{'status': 200, 'reason': b'OK'}"),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_a_proxy_that_opens_no_tunnel_is_told_as_scrapy_tells_it(case: str) -> None:
    """The proxy's health goes by the words."""
    says, shown = REFUSALS[case]
    proxy = Proxy(says, closes=case != "a head without an end")
    (outcome,) = await fetched(proxy, "https://h.test/")
    assert outcome == {
        "error": "TunnelError",
        "message": f"Could not open CONNECT tunnel with proxy 127.0.0.1:PORT [{shown}]",
    }
    assert len(proxy.asked) == 1


async def test_a_proxy_that_says_nothing_has_the_time_of_the_download() -> None:
    (outcome,) = await fetched(Proxy(b"", closes=False), "https://h.test/", seconds=0.2)
    assert outcome["error"] == "DownloadTimeoutError"


async def test_few_connections_to_proxies_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies have bounds of their own; those to sites are not counted with them."""
    monkeypatch.setattr(connection_pool, "_MOST_IDLE_OF_PROXIES", 2)
    site = RawServer(Case(closes=False))
    async with listening(site.serve, host="0.0.0.0") as port, handling("plain") as handler:
        for number in range(1, 6):
            await download(handler, Request("http://h.test/", meta={"proxy": f"http://127.0.0.{number}:{port}"}))
            await download(handler, Request(f"http://127.0.0.{number}:{port}/"))
        kept = [server.host for server in handler._wires._open.values() if server.proxy is not None]
        assert kept == ["127.0.0.4", "127.0.0.5"]
        assert len(handler._wires._open) == 7


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_may_have_a_private_address_and_a_name(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has no name has no address. A site of the proxy's name is not let through."""

    async def addresses_of(host: str) -> list[str]:
        return ["127.0.0.1"] if host == "proxy.test" else []

    monkeypatch.setattr("site_spider.download.names.addresses_of", addresses_of)
    proxy = RawServer(Case(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n"))
    private = {"SITE_ALLOW_PRIVATE_HOSTS": False}
    async with listening(proxy.serve) as port, handling("plain", **private) as handler:

        async def outcome(url: str, **meta: Any) -> Any:
            found = await download(handler, Request(url, meta=meta))
            return found.get("error", found.get("status"))

        refused = "TunnelError" if scheme == "https" else 403
        assert await outcome(f"{scheme}://h.test/", proxy=f"http://proxy.test:{port}") == refused
        assert await outcome(f"{scheme}://h.test/", proxy="http://none.test:1") == "CannotResolveHostError"
        assert await outcome(f"{scheme}://proxy.test:{port}/") == "PrivateHostError"
        assert await outcome(f"{scheme}://127.0.0.1:{port}/") == "PrivateHostError"
        assert await outcome(f"{scheme}://h.test/", proxy=f"socks5://proxy.test:{port}") == "UnsupportedURLSchemeError"
    assert proxy.connections == 1
