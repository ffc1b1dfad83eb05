"""Which TLS sessions are kept, and for how long."""

from __future__ import annotations

from site_spider.download.tls import KeptSession, TlsPeer, TlsSessions

PEER = TlsPeer(b"h.test", 443, "127.0.0.1")


def sessions(most: int = 10, most_of_peer: int = 3) -> TlsSessions[str]:
    return TlsSessions(most, most_of_peer, seconds=60)


def taken(store: TlsSessions[str], peer: TlsPeer = PEER, now: float = 0) -> str | None:
    kept = store.take(peer, now)
    return None if kept is None else kept.session


def test_each_is_taken_once_and_the_newest_first() -> None:
    store = sessions()
    for name in "abc":
        store.keep(PEER, KeptSession(name, 0))
    assert [taken(store) for _ in range(4)] == ["c", "b", "a", None]
    assert len(store) == 0


def test_of_one_server_the_oldest_goes_first() -> None:
    store = sessions()
    for number in range(5):
        store.keep(PEER, KeptSession(str(number), 0))
    assert [taken(store) for _ in range(4)] == ["4", "3", "2", None]


def test_of_all_servers_the_oldest_goes_first() -> None:
    store = sessions()
    peers = [PEER._replace(port=port) for port in range(30)]
    for peer in peers:
        store.keep(peer, KeptSession("a", 0))
    assert len(store) == 10
    assert [taken(store, peer) for peer in peers] == [None] * 20 + ["a"] * 10
    assert len(store) == 0


def test_its_age_is_that_of_the_last_verification() -> None:
    store = sessions()
    for verified_at in (10, 20):
        store.keep(PEER, KeptSession("a", verified_at))
    assert taken(store, now=79) == "a"
    assert taken(store, now=79) is None
    assert len(store) == 0


def test_all_of_a_server_are_forgotten_together() -> None:
    store = sessions()
    other = PEER._replace(port=1)
    for peer in (PEER, PEER, other):
        store.keep(peer, KeptSession("a", 0))
    store.forget(PEER)
    store.forget(PEER)
    assert taken(store) is None
    assert taken(store, other) == "a"
