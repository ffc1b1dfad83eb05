"""What is crawled: which pages there are, and which of them are seeds.

Theory of operation. Half of the pages are seeds, and the other half, the hubs, are found by links. A page
links to hubs of its own host and to nothing else. So whoever extracts, joins and deduplicates the links
fetches every page exactly once, in whatever order it goes. No link leads to a seed: a crawler that does not
filter its seeds would fetch it twice. A hub is linked to from many pages, so nearly all links are known
ones, as they are in every crawl of a site that comes to its end. Without extraction there are seeds alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

_QUERY = "?page=2&sort=new"  # of every tenth hub


@dataclass(frozen=True)
class Workload:
    name: str
    total: int  # pages
    hosts: int
    page_bytes: int  # about
    anchors: int = 0  # links of a page
    targets: int = 0  # how many different hubs these lead to
    tls: bool = False  # and a new connection for each page

    @property
    def extracts(self) -> bool:
        return self.anchors > 0

    @property
    def key(self) -> str:
        """Tells it from all others in one table, and in names of folders."""
        return f"{self.name}-{self.total}-{self.hosts}"

    @property
    def hubs(self) -> int:
        return self.total // (2 * self.hosts) if self.extracts else 0

    @property
    def seeds(self) -> int:
        return self.total - self.hosts * self.hubs

    def scaled(self, total: int) -> Workload:
        """The same with another number of pages; on fewer hosts if there would be too few pages for each."""
        return replace(self, total=total, hosts=max(1, min(self.hosts, total // 6)))

    def host(self, number: int) -> str:
        """A literal address of the loopback network, so no names are looked up."""
        return f"127.{1 + number // 62500}.{number // 250 % 250}.{1 + number % 250}"

    def site(self, host: int) -> str:
        """Stands in every path of a host: no two sites have the same links."""
        return f"{self.name}-{host}"

    def seed_path(self, number: int) -> str:
        return f"/{self.site(number % self.hosts)}/seed/{number}.html"

    def hub_path(self, site: str, number: int) -> str:
        return f"/{site}/hub/{number}.html{_QUERY if number % 10 == 9 else ''}"

    def seed_urls(self, port: int) -> Iterator[str]:
        scheme = "https" if self.tls else "http"
        for number in range(self.seeds):
            yield f"{scheme}://{self.host(number % self.hosts)}:{port}{self.seed_path(number)}"


WORKLOADS = (
    Workload("small", 4000, 8, 1_000),
    Workload("links", 2000, 8, 10_000, anchors=49, targets=49),
    Workload("large", 480, 4, 170_000, anchors=260, targets=60),
    Workload("tls", 1200, 8, 1_000, tls=True),
    Workload("hosts", 4000, 1000, 2_000, anchors=12, targets=2),
)


ORIGIN = "http://ORIGIN"  # stands in a page where the server puts scheme, host and port
SITE = "SITE"  # and here what stands in every path of the host
_RICH_BYTES = 50_000  # pages from here on carry what large pages of today carry
_WORDS = (
    *("water", "market", "quiet", "signal", "harbour", "letter", "winter", "engine", "garden", "silver"),
    *("window", "branch", "stone", "travel", "corner", "measure", "village", "yellow", "paper", "island"),
    *("summer", "number", "kitchen", "morning", "castle", "river", "bridge", "forest", "café", "naïve"),
)


def render(workload: Workload, variant: int) -> str:
    """One page. Its links lead to the hubs that follow each other from `variant * targets` on."""
    rich = workload.page_bytes >= _RICH_BYTES
    chance = random.Random(f"{workload.name} {variant}")
    links = [_item(workload, variant, number, rich) for number in range(workload.anchors)]
    head = _head(chance, rich)
    room = workload.page_bytes - len(head) - sum(map(len, links)) - 200
    paragraphs = list(_paragraphs(chance, room, rich))
    middle = len(paragraphs) // 2
    body = [*links[: len(links) // 2], *paragraphs[:middle], *links[len(links) // 2 :], *paragraphs[middle:]]
    return f"{head}\n<body>\n<ul>\n{''.join(body)}</ul>\n</body>\n</html>\n"


def _item(workload: Workload, variant: int, number: int, rich: bool) -> str:
    hub = (variant * workload.targets + number % workload.targets) % workload.hubs
    href = _spelled(workload.hub_path(SITE, hub), number)
    if not rich:
        return f'<li class="item"><a href="{href}">Read about {_WORDS[hub % len(_WORDS)]} {hub}</a></li>\n'
    return (
        f'<li class="teaser teaser--{number % 7} grid__cell" data-id="{hub}" data-track="list:{number}">'
        f'<a class="teaser__link" href="{href}" title="More of {hub}" aria-label="Article {hub}">'
        f'<img class="teaser__image" src="/static/{hub}-320.jpg" srcset="/static/{hub}-640.jpg 2x" alt="">'
        f'<span class="teaser__title">Read about {_WORDS[hub % len(_WORDS)]}</span></a></li>\n'
    )


def _spelled(path: str, number: int) -> str:
    """As sites spell their links: mostly from the root, some relative, with a fragment, or absolute."""
    path = path.replace("&", "&amp;")
    form = number % 10
    if form in (5, 6):
        return f"../{path.split('/', 2)[2]}"
    if form == 7:
        return f"{path}#comments"
    return f"{ORIGIN}{path}" if form == 8 else path


def _head(chance: random.Random, rich: bool) -> str:
    title = " ".join(chance.choices(_WORDS, k=6))
    head = (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width">\n'
        '<link rel="stylesheet" href="/static/site.css">\n'
    )
    if rich:
        style = "".join(f".c{number}{{margin:{number}px;color:#{number:06x}}}\n" for number in range(600))
        script = ";".join(f'push({{"id":{number},"name":"<b>{number}</b>"}})' for number in range(500))
        head += f"<style>\n{style}</style>\n<script>{script}</script>\n"
    return head + "</head>"


def _paragraphs(chance: random.Random, room: int, rich: bool) -> Iterator[str]:
    while room > 0:
        text = " ".join(chance.choices(_WORDS, k=min(60, 1 + room // 7)))
        block = f"<p>{text}</p>\n"
        if rich:
            inner = f'<div class="block__inner" data-n="{room}"><p class="t">{text}</p></div>'
            block = f'<div class="block">{inner}</div>\n'
        room -= len(block)
        yield block
