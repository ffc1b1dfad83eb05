"""Who takes part, by the name that `--peers` knows, and what each needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.benchmarks.race.contestant import Contestant
from tests.benchmarks.race.ours import Ours
from tests.benchmarks.race.others import Bare, QuietStock, Stock


@dataclass(frozen=True)
class Entry:
    """One contestant."""

    kind: type[Contestant]
    servers: tuple[str, ...] = ()
    requirements: str = ""  # the file of an environment of its own


CONTESTANTS: Mapping[str, Entry] = {
    "ours": Entry(Ours, ("kafka",)),
    "stock": Entry(Stock),
    "stock-quiet": Entry(QuietStock),
    "bare": Entry(Bare),
}
BASE = "stock"  # whose CPU is divided by the others', for the ratio
