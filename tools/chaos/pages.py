"""The pages of a run: each answers after 20 to 300 ms, the same time for the same URL.

A seed alone is a `/slow/` page of the site. With trees each seed is the root of `/tree/SIZE/SEED/0`,
whose pages are numbered breadth first; none is deeper than the spider follows links.
"""

from __future__ import annotations

from collections.abc import Iterator

from tools.site.exchange import Answer, Ask, host_name, page
from tools.site.expected import DEPTH_LIMIT
from tools.site.pages import HTML
from tools.site.text import html, number, paragraphs

WIDEST = 9
LARGEST_TREE = sum(WIDEST**level for level in range(DEPTH_LIMIT + 1))
SHORTEST_MS, LONGEST_MS = 20, 300


def delay_ms(word: str) -> int:
    """How long the page of that name takes."""
    return SHORTEST_MS + number(word) % (LONGEST_MS - SHORTEST_MS + 1)


def branches(size: int) -> int:
    """How many links a page needs so that a tree of so many pages is not too deep."""
    return next(n for n in range(1, WIDEST + 1) if sum(n**level for level in range(DEPTH_LIMIT + 1)) >= size)


def children(size: int, index: int) -> range:
    """The numbers of the pages that a page of the tree links to."""
    width = branches(size)
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
    return Answer(
        headers=HTML,
        body=text.encode(),
        text=text,
        links=frozenset(ask.url(path) for path in paths),
        delay_seconds=delay_ms(ask.target) / 1000,
    )


def seed_path(seed: int, size: int) -> str:
    """The path of a seed's page."""
    name = f"s{seed:06d}"
    return f"/slow/{delay_ms(name)}/{name}" if size == 1 else f"/tree/{size}/{name}/0"


def paths_of(seed: int, size: int) -> Iterator[str]:
    """The paths of all pages of a seed, its own first."""
    if size == 1:
        yield seed_path(seed, 1)
    else:
        yield from (f"/tree/{size}/s{seed:06d}/{index}" for index in range(size))


def seed_host(seed: int, hosts: int) -> str:
    """Where a seed's pages are; spread, so that no partition holds one stretch of the seeds."""
    return host_name(number(f"host {seed}") % hosts)
