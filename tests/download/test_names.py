"""HostNames are looked up once at a time, and each look-up ends."""

from __future__ import annotations

import asyncio
import errno
import socket
from unittest.mock import Mock

import pytest

from site_spider.download import descriptors, names
from site_spider.download.names import HostNames, look_up


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


async def test_an_end_leaves_no_lookup_behind(resolver: Resolver) -> None:
    made = HostNames(resolver.look_up)
    waiting = asyncio.create_task(made.addresses("a.test"))
    while not resolver.asked:
        await asyncio.sleep(0)
    made.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert resolver.asked == ["a.test"]


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.ENOENT, errno.EMFILE])
def test_a_lookup_that_fails_ends_also_when_descriptors_cannot_be_counted(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Twisted waits for ever after any error but gaierror."""
    monkeypatch.setattr(descriptors, "_OWN", Mock(iterdir=Mock(side_effect=OSError(number, "no list"))))
    monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=socket.gaierror(socket.EAI_NONAME, "unknown")))
    with pytest.raises(socket.gaierror):
        look_up("a.test")
