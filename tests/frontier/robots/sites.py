"""Sites by host, each with its robots.txt."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from scrapy import Request
from scrapy.http import Response

from site_spider.ledger import completion
from tests.in_process import engine
from tests.in_process.engine import Crawled, crawl, page

FORBIDS = "User-agent: *\nDisallow: /private\nDisallow: /*?secret=\n"


class Hosts:
    """Sites by host, and the requests in the order in which they came."""

    def __init__(self) -> None:
        self.robots: dict[str, Any] = {}  # host and port -> text, status or exception, or a list of such
        self.asked: list[tuple[float, str, str]] = []  # when, host and port, path
        self.jobs: list[completion.Job | None] = []  # for which robots.txt was asked for

    async def answer(self, request: Request) -> Response:
        url = urlsplit(request.url)
        self.asked.append((asyncio.get_running_loop().time(), url.netloc, url.path))
        if url.path == "/robots.txt":
            self.jobs.append(completion.current_job())
        else:
            await asyncio.sleep(0.01)
            return page(request, "<a href=/private/link><a href=/public/link>")
        said = self.robots.get(url.netloc, 404)
        if isinstance(said, list):
            said = said.pop(0) if len(said) > 1 else said[0]
        if callable(said):
            said = await said(request)
        return self._said(request, said)

    def _said(self, request: Request, said: Any) -> Response:
        if isinstance(said, Exception):
            raise said
        if isinstance(said, Response):
            return said
        return page(request, "", said) if isinstance(said, int) else page(request, said)

    def count(self, path: str) -> Counter[str]:
        return Counter(host for _, host, asked in self.asked if asked == path)

    def times(self, host: str) -> list[float]:
        return [moment for moment, asked, _ in self.asked if asked == host]


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    made = Hosts()
    for path in ("/robots.txt", "/public", "/private", "/moved", "/elsewhere/robots", "/public/link"):
        monkeypatch.setitem(engine.ANSWERS, path, made.answer)
    for number in range(50):
        monkeypatch.setitem(engine.ANSWERS, f"/public/{number}", made.answer)
    return made


def seed(url: str, **fields: Any) -> dict[str, Any]:
    return {"url": url, "meta": {"url_id": url, "NotExtract": True}, **fields}


def obeying(folder: Path, *urls: str, **overrides: Any) -> Crawled:
    settings = {"ROBOTSTXT_OBEY": True, **overrides}
    return crawl(folder, [seed(url) for url in urls], **settings)


def said(crawled: Crawled) -> dict[str, str | None]:
    return {name: document["description"] for name, document in crawled.documents.items()}
