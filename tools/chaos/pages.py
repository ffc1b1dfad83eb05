"""The pages of a run, the site that serves them, and the spider that yields items of them.

The site is a child process, `python -m tools.chaos.pages`. Each page answers after 20 to 300 ms, the same
time for the same URL. A seed alone is a `/slow/` page of the site. With trees each seed is the root of
`/tree/SIZE/SEED/0`, whose pages are numbered breadth first; none is deeper than the spider follows links.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from scrapy.http import Response

from site_spider import SeedSpider
from tools.deployment.processes import LEASH
from tools.site import handle
from tools.site.__main__ import main
from tools.site.exchange import Answer, Ask, page
from tools.site.expected import DEPTH_LIMIT
from tools.site.pages import html, number, of_text, paragraphs

ITEMS_OF_A_PAGE = 2
WIDEST = 9
LARGEST_TREE = sum(WIDEST**level for level in range(DEPTH_LIMIT + 1))
SHORTEST_MS, LONGEST_MS = 20, 300
_SEED = re.compile(r"/s(\d{6,})(?:/|$)")


def delay_ms(word: str) -> int:
    return SHORTEST_MS + number(word) % (LONGEST_MS - SHORTEST_MS + 1)


def children(size: int, index: int) -> range:
    """The numbers of the pages that a page of the tree links to; no tree of so many pages is too deep."""
    wide = range(1, WIDEST + 1)
    width = next(n for n in wide if sum(n**level for level in range(DEPTH_LIMIT + 1)) >= size)
    return range(index * width + 1, min(index * width + width + 1, size))


@page("tree")
def tree(ask: Ask) -> Answer:
    """/tree/SIZE/SEED/INDEX links to its children, and back to the root."""
    size, seed, index = int(ask.parts[1]), ask.parts[2], int(ask.parts[3])
    if not 0 <= index < size:
        raise ValueError(index)
    paths = [f"/tree/{size}/{seed}/{child}" for child in [*children(size, index), 0]]
    links = "\n".join(f'<a href="{path}">{path}</a>' for path in paths)
    text = html(f"Tree {ask.target}", f"{paragraphs(ask.target, 4)}\n{links}")
    urls = frozenset(ask.url(path) for path in paths)
    return of_text(text, links=urls, delay_seconds=delay_ms(ask.target) / 1000)


def paths_of(seed: int, size: int) -> list[str]:
    name = f"s{seed:06d}"
    if size == 1:
        return [f"/slow/{delay_ms(name)}/{name}"]
    return [f"/tree/{size}/{name}/{index}" for index in range(size)]


class ChaosSite(handle.Site):
    """As its parent, but the child knows more pages, and its record is read as it grows."""

    command = (*LEASH, sys.executable, "-m", "tools.chaos.pages")

    def start(self) -> None:
        self.asked: Counter[str] = Counter()
        self.of_seed: Counter[int] = Counter()  # different pages of each seed
        self.first: dict[str, float] = {}  # when each URL was answered first
        self._offset = 0
        super().start()

    def read_on(self) -> Counter[str]:
        """How often each URL was answered so far; reads only what is new."""
        if self.record.exists():
            with self.record.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._offset += len(whole)
            for line in whole.splitlines():
                entry = handle.Entry(**json.loads(line))
                self.asked[entry.url] += 1
                self.first[entry.url] = min(entry.sent, self.first.get(entry.url, entry.sent))
                if self.asked[entry.url] == 1 and (match := _SEED.search(entry.path)):
                    self.of_seed[int(match[1])] += 1
        return self.asked


def item_text(url: str, place: int) -> str:
    """What an item says; its place on the page counts from 1."""
    return f"{url} {place}"


class ChaosSpider(SeedSpider):
    """crawl_spider, and items of each page: SPIDER_MODULES names this module."""

    name = "chaos"

    async def parse(self, response: Response) -> AsyncIterator[Any]:
        """The items, the result of the page, and its links."""
        for place in range(1, ITEMS_OF_A_PAGE + 1):
            yield {"text": item_text(response.url, place)}
        for output in await super().parse(response):
            yield output


if __name__ == "__main__":
    main(sys.argv[1:])
