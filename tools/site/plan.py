"""A mix of good seeds over all kinds of page, with what must come of each."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from tools.site.exchange import host_name
from tools.site.expectation import Expectation
from tools.site.expected import REFUSED_PORT, expected
from tools.site.kinds import EXTRA_KINDS, KINDS

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
    """A seed and what it must come to."""

    seed: Mapping[str, Any]
    kind: str
    has_bom: bool = False

    @property
    def url(self) -> str:
        """The URL as the seed writes it."""
        return str(self.seed["url"])

    @property
    def url_id(self) -> str | None:
        """The key of the result document; None: the hash of the canonical URL."""
        return self.seed.get("meta", {}).get("url_id")  # type: ignore[no-any-return]

    @property
    def key(self) -> bytes:
        """The message's key: the host."""
        return (urlsplit(self.url).hostname or "").encode()

    @property
    def value(self) -> bytes:
        """The message's value."""
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
