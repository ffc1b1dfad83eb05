"""Asks for pages over TLS through a proxy (CONNECT), after one without it, and prints what came of it."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
import tempfile
from pathlib import Path
from typing import Any

from cryptography import x509
from scrapy import Request

from tests.download.handler_trials import download, handler_of, run_with_reactor
from tests.download.raw_answers import WHOLE, listening
from tools.site.certificate import Signed, authority, server_context, signed

ROOT = authority()
HERE = [x509.DNSName("localhost")]


def chains() -> dict[str, list[Signed]]:
    """Of the site, by case."""
    middle = authority("middle", ROOT)
    return {
        "good": [signed(ROOT, names=HERE)],
        "with a middle": [signed(middle, names=HERE), middle],
        "expired": [signed(ROOT, names=HERE, ends=-0.5)],
        "another name": [signed(ROOT, names=[x509.DNSName("g.test")])],
        "an unknown authority": [signed(authority("another"), names=HERE)],
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


if __name__ == "__main__":
    run_with_reactor(lambda _: main())
