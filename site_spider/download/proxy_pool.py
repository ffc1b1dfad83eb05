"""The list of proxies, and the choice of the next one by health.

Theory of operation. A proxy has a health: how many of its recent attempts failed, and how
fast the others were. `take` chooses among those that do not rest, by chance, the healthy and
idle ones more often. An attempt ends in one of three ways:

- ANSWERED: something came through, whatever the site said; a rest is over;
- FAILED: the proxy itself is at fault (refuses the connection, the credentials or the
  tunnel). It rests, and twice as long each further time;
- SILENT: no answer in time, or half of one. Site or proxy, nobody knows: it rests after
  three in a row.

After a rest one attempt is a trial. Until it has ended, or its time is over, the proxy rests
for all others, so that a dead one does not use up the attempts of everything that waits. What
began before a rest does not make it longer: of many attempts at a time all fail at once.

Credentials are part of a proxy's identity, and of nothing that is ever shown.
Time comes in as an argument, in seconds of any clock that does not go backwards.
"""

from __future__ import annotations

from base64 import b64encode
from bisect import bisect
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate
from math import inf
from urllib.parse import unquote_to_bytes, urlsplit

_SHARE = 0.2  # of the newest attempt in the averages
_SILENT_IN_A_ROW = 3
_FIRST_REST_SECONDS, _LONGEST_REST_SECONDS, _MOST_DOUBLINGS = 5.0, 300.0, 30
_TRIAL_SECONDS = 30.0
_MOST_CANDIDATES = 32  # that are weighed against each other
_SOONEST_SECONDS = 1.0  # what waits for a proxy waits at least so long


class ProxyError(ValueError):
    """A text is no proxy. Says what is wrong without the text, which may hold a password."""


class ProxyOutcome(Enum):
    """How an attempt through a proxy ended; see the theory of operation."""

    ANSWERED = "answered"
    FAILED = "failed"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Proxy:
    """Where to connect to, and with what header; `url` has no credentials and may be shown."""

    url: str
    authorization: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request through one proxy."""

    proxy: Proxy
    began: float


def parse_proxy(text: str) -> Proxy:
    """`http://user:password@host:port`; user and password may be percent-encoded. Raises ProxyError."""
    if not text.isascii() or any(character.isspace() for character in text):
        raise ProxyError("it has blanks or characters beyond ASCII; percent-encode them")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ProxyError("its host or port cannot be read") from None
    if parts.scheme != "http":
        raise ProxyError("it must begin with http:// (that is how the proxy is spoken to, for https pages too)")
    if not host or not port:
        raise ProxyError("host and port must be given")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ProxyError("nothing may follow the port; percent-encode what is special in a password")
    shown = f"[{host}]" if ":" in host else host
    return Proxy(f"http://{shown}:{port}", authorization_of(parts.username, parts.password))


def authorization_of(user: str | None, password: str | None) -> bytes | None:
    """The header for a proxy, of what stands in its URL."""
    if user is None:
        return None
    return b"Basic " + b64encode(unquote_to_bytes(user) + b":" + unquote_to_bytes(password or ""))


def parse_list(text: str) -> list[Proxy]:
    """A comma list, each once. Raises ProxyError, which counts from 1."""
    return _parsed("number", enumerate((word.strip() for word in text.split(",")), 1))


def parse_lines(text: str) -> list[Proxy]:
    """One a line; `#` begins a comment. Raises ProxyError, which names the line."""
    return _parsed("line", enumerate((line.split("#")[0].strip() for line in text.splitlines()), 1))


def _parsed(what: str, numbered: Iterable[tuple[int, str]]) -> list[Proxy]:
    found: dict[Proxy, None] = {}
    for number, word in numbered:
        if word:
            try:
                found[parse_proxy(word)] = None
            except ProxyError as error:
                raise ProxyError(f"{what} {number} is no proxy: {error}") from None
    if not found:
        raise ProxyError("there is no proxy in it")
    return list(found)


class _Health:
    """What is known of one proxy."""

    __slots__ = ("failing", "latency_seconds", "out", "rest_began", "rests", "rests_until", "silent")

    def __init__(self) -> None:
        self.out = 0
        self.failing = 0.0  # recent share of attempts that failed
        self.latency_seconds = 0.5  # recent average of those that did not
        self.silent = 0  # in a row
        self.rests = 0  # since it last answered
        self.rest_began = -inf
        self.rests_until = -inf

    def weight(self) -> float:
        """How often it is chosen, against others; never 0, so that it can get better."""
        return (1.05 - self.failing) ** 2 / (0.1 + self.latency_seconds) / (1 + self.out)

    def answered(self, latency_seconds: float) -> None:
        self.failing += _SHARE * (0 - self.failing)
        self.latency_seconds += _SHARE * (max(0.0, latency_seconds) - self.latency_seconds)
        self.silent = self.rests = 0
        self.rests_until = -inf

    def rest(self, seconds: float, now: float) -> None:
        self.rests += 1
        self.silent = 0
        self.rest_began = now
        self.rests_until = now + seconds


class ProxyPool:
    """The proxies of a process and their health."""

    def __init__(self, proxies: Iterable[Proxy]) -> None:
        self._health: dict[Proxy, _Health] = {}
        self.replace(proxies)

    def __len__(self) -> int:
        return len(self._health)

    def replace(self, proxies: Iterable[Proxy]) -> None:
        """Other proxies from now on; those that stay keep their health."""
        self._health = {proxy: self._health.get(proxy) or _Health() for proxy in proxies}
        self._order = list(self._health.items())
        self._none_before = -inf  # of all of them the soonest end of a rest, when it was looked for last

    def take(self, now: float, tried: Collection[Proxy], chance: float) -> Attempt | None:
        """A proxy for a request that has `tried` some; None when all rest.

        Those that were not tried come first. `chance` (0 to 1) chooses among them.
        """
        if now < self._none_before:
            return None
        place = chance * len(self._order)
        candidates = self._candidates(now, tried, int(place))
        if not candidates:
            self._none_before = min(health.rests_until for _, health in self._order)
            return None
        sums = list(accumulate(health.weight() for _, health in candidates))
        chosen, health = candidates[bisect(sums, place % 1 * sums[-1], hi=len(sums) - 1)]
        health.out += 1
        if health.rests:  # a trial
            health.rests_until = now + _TRIAL_SECONDS
        return Attempt(chosen, now)

    def _candidates(self, now: float, tried: Collection[Proxy], start: int) -> list[tuple[Proxy, _Health]]:
        """Some that do not rest, from one of them on round: looking at all of a long list takes long."""
        fresh: list[tuple[Proxy, _Health]] = []
        others: list[tuple[Proxy, _Health]] = []
        for number in range(len(self._order)):
            proxy, health = self._order[(start + number) % len(self._order)]
            if health.rests_until <= now:
                (others if proxy in tried else fresh).append((proxy, health))
                if len(fresh) == _MOST_CANDIDATES:
                    break
        return fresh or others

    def end(self, attempt: Attempt, ending: ProxyOutcome, now: float) -> float:
        """An attempt has ended. Returns for how many seconds its proxy rests because of it, or 0."""
        health = self._health.get(attempt.proxy)
        if health is None:
            return 0.0  # it is not on the list any more
        health.out = max(0, health.out - 1)
        if ending is ProxyOutcome.ANSWERED:
            health.answered(now - attempt.began)
            self._none_before = -inf
            return 0.0
        health.failing += _SHARE * (1 - health.failing)
        if attempt.began < health.rest_began:
            return 0.0
        health.silent += 1
        if ending is ProxyOutcome.SILENT and not health.rests and health.silent < _SILENT_IN_A_ROW:
            return 0.0
        doubled = _FIRST_REST_SECONDS * 2.0 ** min(health.rests, _MOST_DOUBLINGS)
        seconds = min(_LONGEST_REST_SECONDS, doubled)
        health.rest(seconds, now)
        self._none_before = min(self._none_before, health.rests_until)
        return seconds

    def next_at(self, now: float) -> float:
        """When `take`, which has found none, may find one; always a little later than now."""
        return max(self._none_before, now + _SOONEST_SECONDS)

    def resting(self, now: float) -> int:
        """How many rest, those on trial included."""
        return sum(health.rests_until > now for health in self._health.values())
