"""Who takes part, by the name that `--peers` knows, and what each needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tools.race.compiled import BareGo, Colly, Spider
from tools.race.contestant import Contestant
from tools.race.others import Bare, Crawlee, LeanCrawlee, QuietStock, ScrapyRedis, Stock
from tools.race.ours import Ours, Pair, Single, ToElasticsearch, ToLocal


@dataclass(frozen=True)
class Entry:
    """One contestant."""

    kind: type[Contestant]
    servers: tuple[str, ...] = ()


CONTESTANTS: Mapping[str, Entry] = {
    "ours": Entry(Ours, ("kafka",)),
    "stock": Entry(Stock),
    "stock-quiet": Entry(QuietStock),
    "scrapy-redis": Entry(ScrapyRedis, ("redis",)),
    "crawlee": Entry(Crawlee),
    "crawlee-lean": Entry(LeanCrawlee),
    "bare": Entry(Bare),
    "colly": Entry(Colly),
    "spider": Entry(Spider),
    "go": Entry(BareGo),
    "ours-local": Entry(ToLocal, ("kafka",)),
    "ours-elasticsearch": Entry(ToElasticsearch, ("elasticsearch", "kafka")),
    "single": Entry(Single, ("kafka",)),
    "pair": Entry(Pair, ("kafka",)),
}
PAIR = ("single", "pair")
RACERS = ("ours", "stock", "stock-quiet", "scrapy-redis", "crawlee", "crawlee-lean", "bare")
BASE = "stock"  # whose CPU is divided by the others', for the ratio
