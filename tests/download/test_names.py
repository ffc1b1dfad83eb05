"""HostNames are looked up once at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from site_spider.download import names
from site_spider.download.names import HostNames

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


def trial(test: Callable[[HostNames, Resolver], Awaitable[None]]) -> list[str]:
    """What was looked up."""

    async def main() -> list[str]:
        resolver = Resolver()
        await test(HostNames(resolver.look_up), resolver)
        return resolver.asked

    return asyncio.run(main())


def test_downloads_of_one_host_share_its_lookup() -> None:
    """Also its failure; and who gives up takes nothing from the others."""

    async def test(made: HostNames, resolver: Resolver) -> None:
        waiting = [asyncio.create_task(made.addresses(host)) for host in ["a.test"] * 3 + ["bad.test"] * 2]
        await asyncio.sleep(0)
        waiting[0].cancel()
        resolver.go.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert found[1:3] == [["a.test"]] * 2
        assert [str(each) for each in found[3:]] == ["no descriptor"] * 2
        assert await made.addresses("a.test") == ["a.test"]  # asked anew: the resolver has the cache

    assert trial(test) == ["a.test", "bad.test", "a.test"]


def test_a_lookup_that_never_ends_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that gets no thread says nothing; the next download asks anew."""
    monkeypatch.setattr(names, "_LOOKUP_SECONDS", 0.02)

    async def test(made: HostNames, resolver: Resolver) -> None:
        with pytest.raises(TimeoutError):
            await made.addresses("a.test")
        resolver.go.set()
        assert await made.addresses("a.test") == ["a.test"]

    assert trial(test) == ["a.test", "a.test"]


def test_an_end_leaves_no_lookup_behind() -> None:
    async def test(made: HostNames, resolver: Resolver) -> None:
        waiting = asyncio.create_task(made.addresses("a.test"))
        while not resolver.asked:
            await asyncio.sleep(0)
        made.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert asyncio.all_tasks() == {asyncio.current_task()}

    assert trial(test) == ["a.test"]
