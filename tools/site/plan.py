"""A mix of good seeds over all kinds of page, with what must come of each."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from tools.site.exchange import host_name
from tools.site.expected import REFUSED_PORT, Expectation, expected
from tools.site.pages import ODD_LINES, PACKERS, TYPES, VARIANTS

Fields = dict[str, Any]
Kind = Callable[[random.Random, int, str], tuple[str, Fields]]
NOT_EXTRACT = {"meta": {"NotExtract": True}}
ECHO_BODIES = [
    ("utf-8", "name=Größe&city=東京"),
    ("latin-1", "name=Größe&city=Köln"),
    ("gb18030", "城市=北京"),
    ("utf-8", '{"json": [1, 2, 3]}'),
    ("ascii", "a=1&b=2"),
]


def _fixed(*templates: str, **fields: Any) -> Kind:
    return lambda rng, hosts, identity: (rng.choice(templates).format(identity), fields)


def _chain(rng: random.Random, hosts: int, identity: str) -> tuple[str, Fields]:
    hops = rng.randint(1, 5)
    codes = "-".join(str(rng.choice([301, 302, 303, 307, 308])) for _ in range(hops))
    ways = "-".join(rng.choice(["r", str(rng.randrange(hosts))]) for _ in range(hops))
    return f"/chain/{codes}/{ways}/{identity}", {}


def _slow(rng: random.Random, hosts: int, identity: str) -> tuple[str, Fields]:
    return f"/slow/{rng.randrange(500, 2001, 100)}/{identity}", {}


def _echo(rng: random.Random, hosts: int, identity: str) -> tuple[str, Fields]:
    encoding, body = rng.choice(ECHO_BODIES)
    headers = {"Content-Type": "application/x-www-form-urlencoded", "X-Order": identity}
    method = rng.choice(["POST", "POST", "POST", "PUT"])
    return f"/echo/{identity}", {"method": method, "body": body, "_encoding": encoding, "headers": headers}


def _posted(code: int) -> Kind:
    """POST to a redirect that keeps the method and body, or does not, and ends at an echo."""
    fields = {"method": "POST", "body": "kept=perhaps", "headers": {"X-Order": "posted"}}
    return lambda rng, hosts, identity: (f"/to-echo/{code}/{identity}", fields)


def _style(rng: random.Random, hosts: int, identity: str) -> tuple[str, Fields]:
    """A seed as `Request.to_dict()` writes it, or with fields that nobody knows."""
    as_dict: Fields = {"callback": None, "errback": None, "cb_kwargs": {}, "flags": [], "cookies": {}}
    usual: Fields = {"method": "GET", "headers": {}, "body": None, "_encoding": "utf-8", "priority": 0}
    unknown: Fields = {"produced_by": "billing", "version": 3, "nested": {"a": [1, None]}}
    urgent: Fields = {"priority": rng.choice([5, -3, 1]), "dont_filter": True}
    return f"/page/{identity}", rng.choice([as_dict | usual | {"dont_filter": False}, unknown, urgent])


KINDS: dict[str, Kind] = {
    "page": _fixed("/page/{}"),
    "style": _style,
    "odd-url": _fixed(
        "/page/größe/{}", "/page/{}?a=1&b=%2Fx", "/page/%C3%BC/{}#part", "/page/a%20b;c,d/{}", "/page/~x(1)/{}?q=ä"
    ),
    "head": _fixed("/page/{}", "/compressed/gzip/{}", "/large/{}", "/chunked/{}", method="HEAD"),
    "head-missing": _fixed("/status/404/{}", method="HEAD"),
    "head-redirect": _fixed("/chain/302-301/r-r/{}", method="HEAD"),
    "no-content": _fixed("/status/204/{}"),
    "other-success": _fixed("/status/201/{}", "/status/203/{}", "/status/206/{}"),
    "chain": _chain,
    "countdown": _fixed("/countdown/20/{}"),
    "too-many-redirects": _fixed("/countdown/25/{}"),
    "loop": _fixed("/loop/a/{}", "/loop/self/{}"),
    "gate": _fixed("/gate/{}"),
    "leads-to": _fixed("/leads-to/file/{}", "/leads-to/ftp/{}", "/leads-to/data/{}"),
    "leads-to-refused": _fixed("/leads-to/refused/{}"),
    "nowhere": _fixed("/nowhere/302/{}", "/nowhere/300/{}", "/status/304/{}"),
    "missing": _fixed("/status/404/{}"),
    "client-error": _fixed(*(f"/status/{code}/{{}}" for code in (400, 401, 403, 405, 410, 418, 451))),
    "server-error": _fixed(*(f"/status/{code}/{{}}" for code in (500, 502, 503, 504))),
    "other-error": _fixed("/status/501/{}", "/status/599/{}", "/status/429/{}"),
    "flaky": _fixed("/flaky/500/1/{}", "/flaky/500/2/{}", "/flaky/503/1/{}", "/flaky/503/2/{}"),
    "too-flaky": _fixed("/flaky/503/3/{}"),
    "retry-after": _fixed("/flaky/429/1/{}"),
    "slow": _slow,
    "reset": _fixed("/fault/reset/0/{}"),
    "reset-once": _fixed("/fault/reset/1/{}"),
    "short": _fixed("/fault/short/0/{}"),
    "short-once": _fixed("/fault/short/2/{}"),
    "no-answer": _fixed("/fault/no-answer/0/{}"),
    "garbage": _fixed("/fault/garbage/0/{}"),
    "cut-off-close": _fixed("/cut-off/close/{}"),
    "cut-off-keep": _fixed("/cut-off/keep/{}"),
    "compressed": _fixed(*(f"/compressed/{name}/{{}}" for name in PACKERS)),
    "cut-gzip": _fixed("/cut-gzip/{}"),
    **{f"encoded-{name}": _fixed(f"/encoded/{name}/{{}}") for name in VARIANTS},
    "binary": _fixed("/binary/png/{}", "/binary/bytes/{}"),
    "empty": _fixed("/empty/{}"),
    "large": _fixed("/large/{}"),
    "untyped-html": _fixed("/untyped/html/{}"),
    "untyped-binary": _fixed("/untyped/binary/{}"),
    "typed": _fixed(*(f"/typed/{name}/{{}}" for name in TYPES)),
    "cookie": _fixed("/cookie/start/{}"),
    "repeated": _fixed("/repeated/{}"),
    "odd-headers": _fixed(*(f"/odd/{name}/{{}}" for name in [*ODD_LINES, "reason"])),
    "graph": _fixed("/graph/{}/0/0"),
    "graph-not-extract": _fixed("/graph/{}/0/0", **NOT_EXTRACT),
    "graph-at-depth": _fixed("/graph/{}/2/0", meta={"depth": 2}),
    "traps": _fixed("/traps/{}"),
    "based": _fixed("/based/{}"),
    "echo": _echo,
    **{f"posted-{code}": _posted(code) for code in (301, 302, 303, 307, 308)},
    "chunked": _fixed("/chunked/{}"),
    "until-close": _fixed("/until-close/{}"),
    "early-hints": _fixed("/early-hints/{}"),
}
# Not in the mix, to be asked for by name: they take as long as DOWNLOAD_TIMEOUT says, or
# need ROBOTSTXT_OBEY, or have no server behind them.
EXTRA_KINDS: dict[str, Kind] = {
    "hang": _fixed("/fault/hang/0/{}"),
    "hang-once": _fixed("/fault/hang/1/{}"),
    "refused": _fixed("/page/{}"),
    "disallowed": _fixed("/disallowed/{}"),
}


BOM = b"\xef\xbb\xbf"
SHARE_OF_A_KIND = 250  # one seed in so many is of any given kind
FEWEST_OF_A_KIND = 3
COSTLY = {"large": 4, "too-many-redirects": 4, "countdown": 4}  # at most
_EXTRA_META: list[dict[str, Any]] = [
    {"customer": "Müller & Söhne", "tags": ["a", "b"]},
    {"source": {"feed": 7}},
    {"note": None, "weight": 1.5},
]


@dataclass(frozen=True)
class PlannedSeed:
    seed: Mapping[str, Any]
    kind: str
    has_bom: bool = False

    @property
    def url(self) -> str:
        return str(self.seed["url"])

    @property
    def url_id(self) -> str | None:
        """The key of the result document; None: the hash of the canonical URL."""
        return self.seed.get("meta", {}).get("url_id")  # type: ignore[no-any-return]

    @property
    def key(self) -> bytes:
        return (urlsplit(self.url).hostname or "").encode()

    @property
    def value(self) -> bytes:
        return (BOM if self.has_bom else b"") + json.dumps(self.seed, ensure_ascii=False).encode()

    @cached_property
    def expectation(self) -> Expectation:
        """What must be stored; worked out when first asked for."""
        meta = self.seed.get("meta", {})
        headers = {name.lower(): [value] for name, value in self.seed.get("headers", {}).items()}
        body = (self.seed.get("body") or "").encode(self.seed.get("_encoding", "utf-8"))
        return expected(
            sent_url(self.url),
            self.seed.get("method", "GET"),
            headers=headers,
            body=body,
            extract=not meta.get("NotExtract"),
            depth=meta.get("depth", 0),
        )


def sent_url(url: str) -> str:
    """The URL as a client must send it: scheme in lower case, other than ASCII percent-encoded."""
    scheme, _, rest = url.partition("://")
    encoded = "".join(c if c.isascii() else "".join(f"%{byte:02X}" for byte in c.encode()) for c in rest)
    return f"{scheme.lower()}://{encoded}"


def _seed_of(kind: str, index: int, port: int, n_hosts: int, rng: random.Random) -> PlannedSeed:
    identity = f"{kind}-{index:06d}"
    path, fields = (KINDS | EXTRA_KINDS)[kind](rng, n_hosts, identity)
    host = host_name(rng.randrange(n_hosts))
    scheme = "HTTP" if rng.random() < 0.02 else "http"
    meta: dict[str, Any] = {"url_id": f"seed-{index:06d}", "task_id": f"task-{index % 7}"}
    meta |= fields.get("meta", {})
    if index % 13 == 0:
        meta |= rng.choice(_EXTRA_META)
    if index % 17 == 0:
        del meta["url_id"]
    url = f"{scheme}://{host}:{REFUSED_PORT if kind == 'refused' else port}{path}"
    return PlannedSeed({"url": url, **fields, "meta": meta}, kind, has_bom=rng.random() < 0.01)


def plan(
    port: int, n_seeds: int = 5000, n_hosts: int = 60, rng_seed: int = 0, only: frozenset[str] | None = None
) -> list[PlannedSeed]:
    """So many seeds in mixed order, the same for the same arguments.

    Every kind is there at least three times when there is room for that, the plain page
    makes up the rest. With `only` (names of `KINDS` or `EXTRA_KINDS`) all are of these kinds.
    """
    rng = random.Random(rng_seed)
    names = sorted(only or KINDS)
    share = max(FEWEST_OF_A_KIND, n_seeds // SHARE_OF_A_KIND)
    kinds = [name for turn in range(share) for name in names if turn < COSTLY.get(name, share)]
    filler = ["page"] if only is None else names
    kinds += [filler[index % len(filler)] for index in range(n_seeds - len(kinds))]
    kinds = kinds[:n_seeds]
    rng.shuffle(kinds)
    return [_seed_of(kind, index, port, n_hosts, rng) for index, kind in enumerate(kinds)]
