"""Keeps TLS sessions, so that the next connection to a server needs no whole handshake.

A session is taken once: a ticket of TLS 1.3 that were sent twice would show that two connections are of
one client, and servers may refuse it. Where a session is resumed, no certificate is sent or verified. So
each has the time of the handshake that verified it, and what follows from it inherits that time: a
certificate counts no longer than `seconds` without being looked at again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, NamedTuple, TypeVar

Session = TypeVar("Session")


class TlsPeer(NamedTuple):
    """Whom a session belongs to."""

    host: bytes
    port: int
    address: str


class KeptSession(Generic[Session]):
    """A session, and when the certificate behind it was verified."""

    __slots__ = ("session", "verified_at")

    def __init__(self, session: Session, verified_at: float) -> None:
        self.session = session
        self.verified_at = verified_at


class TlsSessions(Generic[Session]):
    """At most `most` of them, of which `most_of_peer` of one peer; the one kept longest ago goes first."""

    def __init__(self, most: int, most_of_peer: int, seconds: float) -> None:
        self._most = most
        self._most_of_peer = most_of_peer
        self._seconds = seconds
        self._of_peer: dict[TlsPeer, list[KeptSession[Session]]] = {}
        self._order: OrderedDict[KeptSession[Session], TlsPeer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def take(self, peer: TlsPeer, now: float) -> KeptSession[Session] | None:
        """The newest one, which is not kept any more."""
        kept = self._of_peer.get(peer)
        if not kept:
            return None
        newest = kept[-1]
        if newest.verified_at + self._seconds <= now:
            self.forget(peer)
            return None
        self._drop(newest)
        return newest

    def keep(self, peer: TlsPeer, kept: KeptSession[Session]) -> None:
        """For the next connection."""
        of_peer = self._of_peer.setdefault(peer, [])
        of_peer.append(kept)
        self._order[kept] = peer
        if len(of_peer) > self._most_of_peer:
            self._drop(of_peer[0])
        if len(self._order) > self._most:
            self._drop(next(iter(self._order)))

    def forget(self, peer: TlsPeer) -> None:
        """All of one peer."""
        for kept in self._of_peer.pop(peer, ()):
            del self._order[kept]

    def _drop(self, kept: KeptSession[Session]) -> None:
        peer = self._order.pop(kept)
        of_peer = self._of_peer[peer]
        of_peer.remove(kept)
        if not of_peer:
            del self._of_peer[peer]
