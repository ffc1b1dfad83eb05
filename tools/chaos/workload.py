"""Which seeds a run has: of which task, in which topic, and what pages and items each leads to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from site_spider.page.url import url_id
from tools.chaos.options import Options
from tools.chaos.pages import paths_of, seed_host
from tools.site.text import number

HOSTS = 60
ITEMS_OF_A_PAGE = 2
SEEDS_OF_A_TASK = 300  # in a soak, whose seeds have no end
_SEED = re.compile(r"/s(\d{6,})(?:/|$)")


class Page(NamedTuple):
    """One page that must be stored."""

    seed: int
    is_root: bool
    url: str
    task: str

    @property
    def key(self) -> str:
        """The url_id of its document."""
        return root_id(self.seed) if self.is_root else url_id(self.url, self.task)

    @property
    def key_of_link(self) -> str:
        """The url_id that it has as a link."""
        return url_id(self.url, self.task)


class SeedMessage(NamedTuple):
    """A seed as it is produced."""

    topic: str
    key: bytes
    value: bytes


def root_id(seed: int) -> str:
    """The url_id that a seed asks for."""
    return f"seed-{seed:06d}"


def seed_of(path: str) -> int | None:
    """The seed that the page at this path belongs to."""
    match = _SEED.search(path)
    return int(match[1]) if match else None


def item_text(url: str, place: int) -> str:
    """What an item says; its place on the page counts from 1."""
    return f"{url} {place}"


class Workload:
    """All seeds of a run. A task has seeds that follow one another, so that tasks end all along."""

    def __init__(self, options: Options, port: int, topics: Sequence[str]) -> None:
        self._options = options
        self._port = port
        self._topics = topics

    def task_of(self, seed: int) -> str:
        """Its task_id."""
        options = self._options
        if not options.tasks:
            return "chaos"
        place = seed // SEEDS_OF_A_TASK if options.soak else seed * options.tasks // options.seeds
        return f"chaos-{place:03d}"

    def pages_of(self, seed: int) -> Iterator[Page]:
        """A seed's own page, then those that it leads to."""
        task = self.task_of(seed)
        for place, url in enumerate(self._urls(seed)):
            yield Page(seed, place == 0, url, task)

    def message(self, seed: int) -> SeedMessage:
        """What is produced of it. All seeds of a host go to one topic."""
        host = seed_host(seed, HOSTS)
        topic = self._topics[number(f"topic {host}") % len(self._topics)]
        value = b'{"url": "%b", "meta": {"url_id": "%b", "task_id": "%b"}}' % (
            next(self._urls(seed)).encode(),
            root_id(seed).encode(),
            self.task_of(seed).encode(),
        )
        return SeedMessage(topic, host.encode(), value)

    def _urls(self, seed: int) -> Iterator[str]:
        host = seed_host(seed, HOSTS)
        return (f"http://{host}:{self._port}{path}" for path in paths_of(seed, self._options.tree))
