"""A scripted network: sites, and proxies that lead to them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response

from site_spider.download.proxies import service as proxy_service
from tests.in_process import engine
from tests.in_process.engine import Crawled, crawl, page

HOST = "http://h.test"
ONE, TWO = "http://one.test:3128", "http://two.test:3128"
SECRETS = ("operator", "hush%3Ahush", "hush:hush", b64encode(b"operator:hush:hush").decode())
WITH_CREDENTIALS = "http://operator:hush%3Ahush@one.test:3128"


class Network:
    """What was asked for, and through which proxy; what is answered follows from both."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.headers: list[bytes | None] = []

    def has(self, path: str, direct: Any, through: Any = "<p>fine", **by_proxy: Any) -> None:
        """An answer is a status, a body or an exception; `one` and `two` stand for the proxies."""

        def answer(request: Request) -> Response:
            proxy = request.meta.get("proxy")
            self.asked.append((path, proxy))
            self.headers.append(request.headers.get("Proxy-Authorization"))
            chosen = direct if proxy is None else by_proxy.get("one" if proxy == ONE else "two", through)
            if callable(chosen) and not isinstance(chosen, type):
                chosen = chosen(request)
            if isinstance(chosen, Response):
                return chosen
            if isinstance(chosen, Exception):
                raise chosen
            status, body = (chosen, f"<p>{chosen}") if isinstance(chosen, int) else (200, chosen)
            return page(request, body, status)

        engine.ANSWERS[f"/{path}"] = answer

    def ways(self, path: str) -> list[str | None]:
        return [proxy for asked, proxy in self.asked if asked == path]


@pytest.fixture
def network() -> Iterator[Network]:
    engine.ANSWERS.clear()
    yield Network()
    engine.ANSWERS.clear()


@pytest.fixture(autouse=True)
def _short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = proxy_service.ProxyPool
    monkeypatch.setattr(proxy_service, "ProxyPool", lambda proxies: pool(proxies, 0.1, 0.4, 0.2))
    monkeypatch.setattr("site_spider.download.proxies.pool._SOONEST_SECONDS", 0.05)


def run(folder: Path, *paths: str | dict[str, Any], **overrides: Any) -> Crawled:
    seeds = [
        path if isinstance(path, dict) else {"url": f"{HOST}/{path}", "meta": {"url_id": path}}
        for path in paths
    ]
    settings = {"SITE_PROXIES": ONE, "SITE_ALLOW_PRIVATE_HOSTS": True, "RETRY_TIMES": 1} | overrides
    return crawl(folder, seeds, **settings)
