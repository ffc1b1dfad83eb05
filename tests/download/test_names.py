"""HostNames are looked up once at a time, and that of the next host before its turn."""

from __future__ import annotations

import asyncio
import threading
import weakref
from pathlib import Path

import pytest
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler

from site_spider.download import names
from site_spider.download.names import HostNames
from site_spider.ledger import completion
from tests.download.test_many_servers import serving
from tests.in_process.engine import crawl

PLAIN = "site_spider.download.handler.PlainDownloadHandler"


class Resolver:
    """Answers when it is let, with the host's name for an address."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go = asyncio.Event()

    async def look_up(self, host: str) -> list[str]:
        self.asked.append(host)
        await self.go.wait()
        if host == "bad.test":
            raise OSError("no descriptor")
        return [host]


@pytest.fixture
def resolver() -> Resolver:
    return Resolver()


async def test_downloads_of_one_host_share_its_lookup(resolver: Resolver) -> None:
    """Also its failure; and who gives up takes nothing from the others."""
    made = HostNames(resolver.look_up)
    waiting = [asyncio.create_task(made.addresses(host)) for host in ["a.test"] * 3 + ["bad.test"] * 2]
    await asyncio.sleep(0)
    waiting[0].cancel()
    resolver.go.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert found[1:3] == [["a.test"]] * 2
    assert [str(each) for each in found[3:]] == ["no descriptor"] * 2
    assert await made.addresses("a.test") == ["a.test"]  # asked anew: the resolver has the cache
    assert resolver.asked == ["a.test", "bad.test", "a.test"]


async def test_what_was_looked_up_ahead_is_for_who_comes_next(resolver: Resolver) -> None:
    made = HostNames(resolver.look_up)
    resolver.go.set()
    for host in ("a.test", "a.test", "127.0.0.1", "::1", "metadata.google.internal", "", None):
        made.look_ahead(host)
    assert await made.addresses("a.test") == ["a.test"]
    made.look_ahead("bad.test")
    await asyncio.sleep(0.01)
    with pytest.raises(OSError, match="no descriptor"):  # its own: the other one may be over
        await made.addresses("bad.test")
    assert resolver.asked == ["a.test", "bad.test", "bad.test"]


async def test_a_lookup_that_never_ends_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, resolver: Resolver
) -> None:
    """A resolver that gets no thread says nothing; the next download asks anew."""
    monkeypatch.setattr(names, "_LOOKUP_SECONDS", 0.02)
    made = HostNames(resolver.look_up)
    with pytest.raises(TimeoutError):
        await made.addresses("a.test")
    resolver.go.set()
    assert await made.addresses("a.test") == ["a.test"]
    assert resolver.asked == ["a.test", "a.test"]


async def test_a_lookup_keeps_no_request_alive(resolver: Resolver) -> None:
    """What was looked up ahead is kept for who comes next, which may be long."""
    made = HostNames(resolver.look_up)
    resolver.go.set()
    request = Request("http://a.test/")
    completion.work_on(request)
    made.look_ahead("b.test")
    completion.work_on(None)
    left = weakref.ref(request)
    del request
    await asyncio.sleep(0.01)
    assert left() is None
    assert resolver.asked == ["b.test"]


async def test_nothing_is_looked_up_ahead_beside_another_lookup(resolver: Resolver) -> None:
    made = HostNames(resolver.look_up)
    waiting = asyncio.create_task(made.addresses("a.test"))
    await asyncio.sleep(0)
    made.look_ahead("b.test")
    resolver.go.set()
    await waiting
    made.close()
    assert resolver.asked == ["a.test"]


async def test_what_was_found_long_ago_is_looked_up_again(
    monkeypatch: pytest.MonkeyPatch, resolver: Resolver
) -> None:
    """The one lookup that is still under way is not."""
    monkeypatch.setattr(names, "_AHEAD_SECONDS", -1.0)
    made = HostNames(resolver.look_up)
    made.look_ahead("a.test")
    waiting = asyncio.create_task(made.addresses("a.test"))
    await asyncio.sleep(0)
    resolver.go.set()
    await waiting
    made.look_ahead("a.test")
    await asyncio.sleep(0.01)
    await made.addresses("a.test")
    assert resolver.asked == ["a.test"] * 3


async def test_an_end_leaves_no_lookup_behind(resolver: Resolver) -> None:
    made = HostNames(resolver.look_up)
    made.look_ahead("a.test")
    await asyncio.sleep(0)
    made.close()
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1
    assert resolver.asked == ["a.test"]


def test_all_handlers_of_a_crawl_share_them() -> None:
    """There is one for each scheme: what has a proxy concerns the other, too."""
    crawler = get_crawler(Spider)
    assert HostNames.of(crawler) is HostNames.of(crawler)
    assert HostNames.of(crawler) is not HostNames.of(get_crawler(Spider))


class ProxyForFirst:
    """A middleware of a user's."""

    def process_request(self, request: Request) -> None:
        if "a.test" in request.url:
            request.meta["proxy"] = "http://127.0.0.1:9"


@pytest.mark.parametrize("proxied", [False, True])
def test_a_crawl_looks_up_the_next_host_while_it_waits_for_a_page(
    proxied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each name once. When a request had a proxy, that is to look up names, and we know none in advance."""
    asked: list[str] = []
    is_ahead = {"b.test": threading.Event(), "c.test": threading.Event()}

    async def look_up(host: str) -> list[str]:
        asked.append(host)
        if host in is_ahead:
            is_ahead[host].set()
        return ["127.0.0.1"]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        following = is_ahead["b.test" if b"Host: a" in head else "c.test"]
        body = b"yes" if await asyncio.to_thread(following.wait, 0.3 if proxied else 10) else b"no"
        writer.write(
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )

    monkeypatch.setattr(names, "addresses_of", look_up)
    with serving(answer) as (port,):
        found = crawl(
            tmp_path,
            [{"url": f"http://{name}.test:{port}/", "meta": {"url_id": name}} for name in "abc"],
            DOWNLOAD_HANDLERS={"http": PLAIN},
            DOWNLOADER_MIDDLEWARES={ProxyForFirst: 1} if proxied else {},
            SITE_ALLOW_PRIVATE_HOSTS=True,
            CONCURRENT_REQUESTS=1,
            RETRY_TIMES=0,
        )
    assert [found.documents[name]["body"] for name in "ab"] == ([None, "no"] if proxied else ["yes", "yes"])
    assert asked == (["b.test", "c.test"] if proxied else ["a.test", "b.test", "c.test"])
