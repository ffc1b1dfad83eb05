"""The console with a fleet of the test's own, as a browser or a program meets it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import CookieJar
from aiohttp.test_utils import TestClient, TestServer

from site_spider.adapters.local.log import LocalSeedLog
from site_spider.adapters.local.results import LocalResults
from site_spider.console.access import Listening
from site_spider.console.process_state import state_of
from site_spider.console.server import DeadLetterCache, Handlers
from site_spider.console.url_search import UrlSearch
from site_spider.console.watch import FleetWatch
from site_spider.contracts.seed_log import SeedLog
from site_spider.contracts.sink import ANY
from site_spider.redaction import Redaction
from site_spider.seed.topics import CrawlTopics

TOKEN = "0123456789abcdef0123"
PAGES = ("/", "/tasks", "/processes", "/hosts", "/failures", "/sinks", "/url")

TOPICS = CrawlTopics.beside({"SITE_SEED_TOPIC": "seeds"})
Client = TestClient[Any, Any]


def watch_of(log: SeedLog, *seed_topics: str) -> FleetWatch:
    """The fleet of the topic `seeds`, or of these tiers."""
    return FleetWatch(log, "site_spider", TOPICS, seed_topics or TOPICS.tiers, 10.0)


class Console:
    """In a folder; `now` is the time at which its snapshots were taken."""

    def __init__(
        self,
        folder: Path,
        now: float,
        log: SeedLog | None = None,
        secrets: tuple[str, ...] = (),
        check_ends: Callable[[], None] = lambda: None,
        **listening: Any,
    ) -> None:
        self.log = log or LocalSeedLog(folder)
        self.now = now
        self.watch = watch_of(self.log)
        reader = partial(LocalResults, folder)
        search = UrlSearch(self.log, TOPICS.tiers, "site_spider", TOPICS.dead_letters, reader, by_task=True, names=ANY)
        where = Listening(**({"host": "127.0.0.1", "port": 0} | listening))
        letters = DeadLetterCache(self.log, TOPICS)
        self.handlers = Handlers(where, self.watch, letters, search, Redaction(secrets), check_ends)
        self.app = self.handlers.application()

    def hear(self, *snapshots: dict[str, Any]) -> None:
        """Of processes anywhere."""
        for snapshot in snapshots:
            self.watch.fleet.take(state_of(snapshot), self.now)

    def client(self) -> Client:
        """One that meets it, while a block runs."""
        return TestClient(TestServer(self.app, host="127.0.0.1"), cookie_jar=CookieJar(unsafe=True))


async def form_token(client: Client) -> str:
    page = await (await client.get("/failures")).text()
    found = re.search(r'name="form_token" value="([0-9a-f]+)"', page)
    assert found
    return found[1]


async def document(client: Client, path: str, **query: str) -> dict[str, Any]:
    found: dict[str, Any] = await (await client.get(path, params=query | {"format": "json"})).json()
    return found


async def status(client: Client, path: str = "/", **headers: str) -> int:
    async with client.get(path, headers=headers, allow_redirects=False) as response:
        return response.status
