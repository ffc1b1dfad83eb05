"""Asks both download handlers for hosts whose names lead to private addresses, and prints what came of it."""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

from scrapy import Request

from site_spider.download.names import PublicHostResolver
from tests.download.guarded_site import PRIVATE, PUBLIC, Names, Sites, make_public
from tests.download.handler_trials import download, handler_of, run_with_reactor

NAMES = {
    "mixed.test": lambda _: [PRIVATE, PUBLIC, "10.0.0.1"],
    "many.test": lambda _: [PUBLIC] * 10_000,
    "many-private.test": lambda _: [PRIVATE] * 10_000,
    "public.test": lambda _: [PUBLIC],
    "private.test": lambda _: [PRIVATE],
}
ODD = {
    "empty label": "a..test",
    "long label": "a" * 64 + ".test",
    "long name": "a." * 2000 + "test",
    "nobody": "no.test",
}
SPELLED = (
    *("127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0", "[::1]"),
    *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "10.0.0.1", "192.168.1.1", "169.254.169.254", "[fe80::1]"),
    *("[64:ff9b::7f00:1]", "①②⑦.0.0.1", "127.0.0.1.", "LOCALHOST", "100.64.0.1", "[fc00::1]"),
)


def reactor() -> Any:
    from twisted.internet import reactor as installed

    return installed


async def fetch(handler: Any, url: str) -> str | None:
    seconds = 4 if url.startswith("http:") else 0.5  # nobody there speaks TLS
    outcome = await download(handler, Request(url, meta={"download_timeout": seconds}))
    return outcome.get("error")


async def trial(sites: Sites, handler: Any, url: str, times: int = 1, *, forgets: bool = False) -> Any:
    sites.reached.clear()
    errors = []
    for number in range(times):
        if forgets and number == times // 2:
            reactor().nameResolver._known.clear()
        errors.append(await fetch(handler, url))
    return {"reached": list(sites.reached), "errors": errors}


async def trials_of(sites: Sites, name: str, names: Names) -> dict[str, Any]:
    handler = handler_of(name, {"SITE_ALLOW_PRIVATE_HOSTS": False})
    found: dict[str, Any] = {}
    for scheme in ("http", "https"):
        host = f"turns-{name}-{scheme}.test"
        names.names[host] = lambda times: [PUBLIC if times == 0 else PRIVATE]
        url = f"{scheme}://{host}:{sites.port}/"
        found[f"{name} {scheme} turns"] = await trial(sites, handler, url, 4, forgets=True)
    for host in ("mixed", "many", "many-private"):
        found[f"{name} http {host}"] = await trial(sites, handler, f"http://{host}.test:{sites.port}/")
    found[f"{name} spelled"] = [await trial(sites, handler, f"http://{host}:{sites.port}/") for host in SPELLED]
    for title, host in ODD.items():
        found[f"{name} {title}"] = [await fetch(handler, f"http://{host}:{sites.port}/")]
    asked = len(names.asked)
    found["metadata"] = [await fetch(handler, f"http://{host}/") for host in ("metadata.google.internal", "METADATA")]
    assert len(names.asked) == asked
    await handler.close()
    return found


async def main() -> None:
    make_public(setattr)
    names = Names(dict(NAMES))
    socket.getaddrinfo = names
    PublicHostResolver(reactor(), allow_private=False).install_on_reactor()
    with Sites({}) as sites:
        found = await trials_of(sites, "stock", names) | await trials_of(sites, "plain", names)
        json.dump(found, sys.stdout)


if __name__ == "__main__":
    run_with_reactor(lambda _: main())
