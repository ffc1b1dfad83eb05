"""Prints what a push and a pop take, by the number of hosts, beside Scrapy's own priority queues.

    python -m tools.measure.frontier [--rounds N] [--hosts N,N,...] [--tasks N,N,...]

Each queue holds at least 20,000 requests, spread over the hosts, and is asked for 5,000 of them: a pop
and, for the host that it was for, the end of that download and a new push, as in a crawl that goes on. All
queues are in memory, in one process, and measured in turn in each round; the table has the median round.
Ours is measured as the crawl uses it (the waiting room: compact links, limits of hosts, weights, building
the Request), and the bare frontier besides. The DownloaderAwarePriorityQueue looks at all hosts for each
pop; beyond 10,000 hosts it is asked for 200.

With --tasks the frontier alone is measured, with so many tasks: each on all hosts, and all on one busy host.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
from collections.abc import Callable
from statistics import median
from time import process_time
from types import SimpleNamespace
from typing import Any, Protocol

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue
from scrapy.settings import Settings
from scrapy.squeues import FifoMemoryQueue

from site_spider import meta_keys
from site_spider.frontier.frontier import Frontier
from site_spider.frontier.waiter import WaitingLink, as_request
from site_spider.ledger.completion import Job
from site_spider.spiders.crawl_spider import SeedSpider
from tools.measure.frontier_memory import page_root
from tools.measure.rooms import bare_room

HOSTS = (1, 100, 10_000, 100_000)
LEAST_WAITING = 20_000
POPS = 5_000
FEW_POPS = 200
MANY_HOSTS = 10_000


class Queue(Protocol):
    """What is measured."""

    def push(self, request: Request) -> None: ...

    def pop(self) -> Request: ...

    def ended(self, request: Request) -> None:
        """Its download, so that the host is free again; not measured."""


class Room:
    """The waiting room of a crawl."""

    def __init__(self) -> None:
        self._room = bare_room()

    def push(self, request: Request) -> None:
        assert self._room.put_link(request, request.meta[meta_keys.JOB])

    def pop(self) -> Request:
        request = self._room.next(self)
        assert request is not None
        return request

    def ended(self, request: Request) -> None:
        self._room.came_back(request)

    def build_seed(self, waiting: Any) -> Request | None:
        raise NotImplementedError

    def build_link(self, link: WaitingLink) -> Request:
        return as_request(link)[0]


class Bare:
    """The frontier alone."""

    def __init__(self) -> None:
        self._frontier: Frontier[Request] = Frontier()
        self._now = 0.0

    def push(self, request: Request) -> None:
        self._now += 0.001
        self._frontier.push(-1, request.meta["host"], request, self._now)

    def pop(self) -> Request:
        request = self._frontier.pop(self._now)
        assert request is not None
        return request

    def ended(self, request: Request) -> None:
        self._frontier.release(request.meta["host"], self._now)


class Stock:
    """One of Scrapy's, as its scheduler makes it."""

    def __init__(self, kind: type[Any]) -> None:
        crawler = Crawler(SeedSpider, Settings({"CONCURRENT_REQUESTS_PER_IP": 0}))
        self._slots: dict[str, Any] = {}
        downloader = SimpleNamespace(slots=self._slots, get_slot_key=lambda request: request.meta["host"])
        crawler.engine = SimpleNamespace(downloader=downloader)  # type: ignore[assignment]
        self._queue = kind.from_crawler(crawler, FifoMemoryQueue, "")

    def push(self, request: Request) -> None:
        self._queue.push(request)

    def pop(self) -> Request:
        request: Request = self._queue.pop()
        return request

    def ended(self, request: Request) -> None:
        """Nobody downloads: each host has none out, and is as good as any."""


QUEUES: dict[str, Callable[[], Queue]] = {
    "waiting room": Room,
    "frontier alone": Bare,
    "ScrapyPriorityQueue": lambda: Stock(ScrapyPriorityQueue),
    "DownloaderAwarePriorityQueue": lambda: Stock(DownloaderAwarePriorityQueue),
}


def requests(hosts: int, count: int, name: str) -> list[Request]:
    """One host after the other; with what each queue looks at in the meta."""
    roots = [page_root(number) for number in range(min(hosts, 1_000))]
    made = []
    for number in range(count):
        host = f"www.host{number % hosts:06}.example"
        request = Request(f"http://{host}/{number}", priority=1)
        if name == "waiting room":
            request.meta["depth"] = 1
            request.meta[meta_keys.JOB] = Job(request, roots[number % len(roots)])
        else:
            request.meta["host"] = host
        made.append(request)
    return made


def measure(name: str, hosts: int) -> tuple[float, float]:
    """µs for a push and for a pop."""
    pops = FEW_POPS if hosts > MANY_HOSTS and name.startswith("Downloader") else POPS
    queue, waiting = QUEUES[name](), max(LEAST_WAITING, hosts)
    for request in requests(hosts, waiting, name):
        queue.push(request)
    more = requests(hosts, pops, name)
    gc.collect()
    gc.disable()
    pushing = popping = 0.0
    for request in more:
        began = process_time()
        found = queue.pop()
        popped = process_time()
        queue.ended(found)
        ended = process_time()
        queue.push(request)
        pushing += process_time() - ended
        popping += popped - began
    gc.enable()
    overhead = _clock_seconds(pops)
    return (pushing - overhead) / pops * 1e6, (popping - overhead) / pops * 1e6


def _clock_seconds(times: int) -> float:
    """What two readings of the clock take, so many times."""
    total = 0.0
    for _ in range(times):
        began = process_time()
        total += process_time() - began
    return total


def measure_tasks(hosts: int, tasks: int) -> tuple[float, float]:
    """µs for a push and for a pop; each task has items for every host, as far as they go."""
    frontier: Frontier[int] = Frontier()
    waiting = max(LEAST_WAITING, 2 * tasks)
    names = [f"www.host{number:06}.example" for number in range(hosts)]
    flows = [None if tasks == 1 else f"task{number}" for number in range(tasks)]

    def push(number: int) -> None:
        host = names[number // tasks % hosts]
        frontier.push(-1, host, number, number / 1_000, flow=flows[number % tasks])

    for number in range(waiting):
        push(number)
    gc.collect()
    gc.disable()
    pushing = popping = 0.0
    for number in range(waiting, waiting + POPS):
        began = process_time()
        found = frontier.pop(number / 1_000)
        popping += process_time() - began
        assert found is not None
        frontier.release(names[found // tasks % hosts], number / 1_000)
        began = process_time()
        push(number)
        pushing += process_time() - began
    gc.enable()
    overhead = _clock_seconds(POPS)
    return (pushing - overhead) / POPS * 1e6, (popping - overhead) / POPS * 1e6


def run_tasks(rounds: int, numbers: list[int]) -> None:
    print("| tasks | one host: push, pop | 1,000 hosts: push, pop |\n|---|---|---|")
    for tasks in numbers:
        cells = []
        for hosts in (1, 1_000):
            times = [measure_tasks(hosts, tasks) for _ in range(rounds)]
            cells.append(f"{median(one for one, _ in times):.1f}, {median(one for _, one in times):.1f}")
        print(f"| {tasks:,} | {cells[0]} | {cells[1]} |", flush=True)


async def run(rounds: int, sizes: list[int]) -> None:
    print(
        "| hosts | "
        + " | ".join(f"{name}: push, pop" for name in QUEUES)
        + " |\n|"
        + "---|" * (len(QUEUES) + 1)
    )
    for hosts in sizes:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in QUEUES}
        for _ in range(rounds):
            for name, times in found.items():
                times.append(measure(name, hosts))
        cells = [
            f"{median(push for push, _ in times):.1f}, {median(pop for _, pop in times):.1f}"
            for times in found.values()
        ]
        print(f"| {hosts:,} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hosts", default=",".join(map(str, HOSTS)))
    parser.add_argument("--tasks", default="")
    options = parser.parse_args()
    if options.tasks:
        run_tasks(options.rounds, [int(number) for number in options.tasks.split(",")])
        return
    asyncio.run(run(options.rounds, [int(size) for size in options.hosts.split(",")]))


if __name__ == "__main__":
    main()
