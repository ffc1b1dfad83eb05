"""The pages of a workload, as a site that is alive would write them."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tools.race.workload import Workload

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
