"""Which TLS sessions are kept, and for how long."""

from __future__ import annotations

from typing import Any

from site_spider.download.tls import KeptSession, TlsPeer, TlsSessions

PEER = TlsPeer(b"h.test", 443, "127.0.0.1")


def sessions() -> TlsSessions:
    return TlsSessions(most=10, most_of_peer=3, seconds=60)


def kept(name: Any, verified_at: float = 0) -> KeptSession:
    return KeptSession(name, verified_at)


def taken(store: TlsSessions, peer: TlsPeer = PEER, now: float = 0) -> Any:
    found = store.take(peer, now)
    return None if found is None else found.session


def test_each_is_taken_once_and_the_newest_first() -> None:
    store = sessions()
    for name in "abc":
        store.keep(PEER, kept(name))
    assert [taken(store) for _ in range(4)] == ["c", "b", "a", None]
    assert len(store) == 0


def test_of_one_server_the_oldest_goes_first() -> None:
    store = sessions()
    for number in range(5):
        store.keep(PEER, kept(str(number)))
    assert [taken(store) for _ in range(4)] == ["4", "3", "2", None]


def test_of_all_servers_the_oldest_goes_first() -> None:
    store = sessions()
    peers = [PEER._replace(port=port) for port in range(30)]
    for peer in peers:
        store.keep(peer, kept("a"))
    assert len(store) == 10
    assert [taken(store, peer) for peer in peers] == [None] * 20 + ["a"] * 10
    assert len(store) == 0


def test_its_age_is_that_of_the_last_verification() -> None:
    store = sessions()
    for verified_at in (10, 20):
        store.keep(PEER, kept("a", verified_at))
    assert taken(store, now=79) == "a"
    assert taken(store, now=79) is None
    assert len(store) == 0


def test_all_of_a_server_are_forgotten_together() -> None:
    store = sessions()
    other = PEER._replace(port=1)
    for peer in (PEER, PEER, other):
        store.keep(peer, kept("a"))
    store.forget(PEER)
    store.forget(PEER)
    assert taken(store) is None
    assert taken(store, other) == "a"
