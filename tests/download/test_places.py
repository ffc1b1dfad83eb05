"""How many connections may be open, and what happens when descriptors run out."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
from pathlib import Path

import pytest
from scrapy import Request, Spider
from scrapy.exceptions import DownloadFailedError
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler
from twisted.internet.error import ConnectBindError

from site_spider.download import connections as wires
from site_spider.download import names
from site_spider.download.connections import Places
from site_spider.download.handler import PlainDownloadHandler
from site_spider.download.names import check_limit, is_shortage, raise_limit
from site_spider.errors import ConfigError
from tests.download.handler_trials import certificate, said_by
from tests.download.raw_answers import Case, RawServer

EMFILE = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class Kept:
    """Connections that are kept; each has a place until it is closed."""

    def __init__(self, most: int) -> None:
        self.places = Places(lambda: most, self.close_one)
        self.count = 0

    async def keep(self, count: int) -> None:
        for _ in range(count):
            await self.places.take()
        self.count += count

    def close_one(self) -> bool:
        if not self.count:
            return False
        self.count -= 1
        asyncio.get_running_loop().call_soon(self.places.give_back)
        return True


async def test_a_connection_that_is_kept_is_closed_for_the_next() -> None:
    """One for each, and no wait of its own."""
    kept = Kept(10)
    await kept.keep(10)
    assert await kept.places.take() < 10
    await asyncio.gather(*(kept.places.take() for _ in range(4)))
    assert kept.count == 5


async def test_a_download_without_a_place_waits_for_one() -> None:
    """In the order of arrival; who is cancelled meanwhile takes none."""
    places = Places(lambda: 4, lambda: False)
    for _ in range(4):
        assert await places.take() < 0.01
    waiting = [asyncio.create_task(places.take()) for _ in range(3)]
    await asyncio.sleep(0.02)
    assert places.are_wanted
    waiting[0].cancel()
    places.give_back()
    assert await waiting[1] > 0.01
    assert not waiting[2].done()
    waiting[2].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    places.give_back()
    assert await places.take() < 0.01


async def test_a_turn_that_is_not_taken_goes_on() -> None:
    """A task that is cancelled just as a place becomes free does not keep it from others."""
    places = Places(lambda: 4, lambda: False)
    for _ in range(4):
        await places.take()
    first, second = (asyncio.create_task(places.take()) for _ in range(2))
    await asyncio.sleep(0)
    places.give_back()
    first.cancel()
    await second


async def test_a_shortage_closes_what_is_kept_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """The download is made again until it succeeds."""
    with caplog.at_level(logging.WARNING):
        kept = Kept(50)
        await kept.keep(40)
        outcomes = [EMFILE, ConnectBindError(errno.EMFILE, "no more"), None]

        async def download() -> str:
            outcome = outcomes.pop(0)
            if outcome is not None:
                raise outcome
            return "done"

        assert await kept.places.lend(download) == "done"
        assert kept.count == 0
        assert outcomes == []
    assert len(caplog.records) == 1
    assert "ulimit -n" in caplog.text


async def test_another_failure_gives_the_place_back() -> None:
    """Once it is raised."""
    places = Places(lambda: 4, lambda: False)

    async def download() -> None:
        raise DownloadFailedError("Too many open files")

    for _ in range(6):
        with pytest.raises(DownloadFailedError):
            await places.lend(download)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (EMFILE, True),
        (OSError(errno.ENFILE, "in the system"), True),
        (ConnectBindError(errno.EMFILE, "no more"), True),
        (OSError(f"Multiple exceptions: {EMFILE}, [Errno 111] refused"), True),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Too many open files"), False),
        (DownloadFailedError("HTTP/1.1 500 Too many open files"), False),  # a server's own words
        (ConnectBindError(errno.EADDRINUSE, "in use"), False),
        (None, False),
    ],
)
def test_a_shortage_is_told_from_what_a_server_says(error: BaseException | None, expected: bool) -> None:
    """Also as the cause of another error."""
    assert is_shortage(error) is expected
    wrapped = DownloadFailedError("failed")
    wrapped.__cause__ = error
    assert is_shortage(wrapped) is expected


@pytest.mark.parametrize(
    ("possible", "is_refused"), [(64, None), (63, False), (4, False), (3, True), (-9, True)]
)
def test_concurrent_requests_are_checked_against_the_limit(
    possible: int, is_refused: bool | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A line says what to do when some can be had, an error when none can."""
    monkeypatch.setattr(names, "for_connections", lambda: possible)
    settings = Settings({"CONCURRENT_REQUESTS": 64})
    if is_refused:
        with pytest.raises(ConfigError, match=r"CONCURRENT_REQUESTS is 64, .* Raise the hard limit to \d+"):
            check_limit(settings)
    else:
        check_limit(settings)
    assert ("lower CONCURRENT_REQUESTS" in caplog.text) is (is_refused is False)


def test_the_soft_limit_is_raised_towards_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not beyond it, and not to a billion."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    for limits in ((1024, 4096), (1024, 10**9), (1024, resource.RLIM_INFINITY), (4096, 4096)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits)
        raise_limit()
    assert asked == [(4096, 4096), (65_536, 10**9), (65_536, resource.RLIM_INFINITY)]


def test_downloads_wait_while_no_descriptor_is_left() -> None:
    """By both handlers, to an address and to a name, and the wait is no part of DOWNLOAD_TIMEOUT."""
    found, stderr = said_by("shortage_trials")
    assert found == ["200"] * 4
    assert stderr.count("No file descriptor is left") == 1


def test_scrapys_handler_keeps_few_connections_of_all_servers() -> None:
    """The last ones used; and it remembers no server that has none."""
    found, _ = said_by("pool_trial")
    assert max(connections for connections, _ in found["kept"]) == 5
    assert max(servers for _, servers in found["kept"]) <= 11
    assert found["last"] == [f"127.0.0.{number}" for number in range(26, 31)]


async def test_http_and_https_share_the_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapy asks for a handler for each scheme; connections that are kept count for both."""
    monkeypatch.setattr(wires, "for_connections", lambda: 6)

    crawler = get_crawler(Spider, {"SITE_ALLOW_PRIVATE_HOSTS": True, "DOWNLOAD_VERIFY_CERTIFICATES": False})
    handlers = {scheme: PlainDownloadHandler.from_crawler(crawler) for scheme in ("http", "https")}
    server = RawServer(Case(closes=False))
    sites = {
        scheme: await asyncio.start_server(server.serve, "0.0.0.0", 0, ssl=tls)
        for scheme, tls in (("http", None), ("https", certificate(tmp_path)))
    }
    for number in range(1, 7):
        for scheme, site in sites.items():
            port = site.sockets[0].getsockname()[1]
            await handlers[scheme].download_request(Request(f"{scheme}://127.0.0.{number}:{port}/"))
    assert server.connections == 12
    assert sum(len(made) for made in {id(one): one._wires._open for one in handlers.values()}.values()) == 6
    for handler in handlers.values():
        await handler.close()
    for site in sites.values():
        site.close()
    await asyncio.sleep(0.01)
