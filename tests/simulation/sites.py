"""The web of a run, and the stores of results: what processes reach over the network."""

from __future__ import annotations

import asyncio
import contextvars
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tests.simulation.virtual import EPOCH, NETWORK, PROCESS, Machine, sleep

from scrapy import Request
from scrapy.core.downloader.handlers.base import BaseDownloadHandler
from scrapy.exceptions import DownloadFailedError, DownloadTimeoutError
from scrapy.http import HtmlResponse, Response, XmlResponse

from site_spider.contracts.done_store import DoneStore, DoneUnavailable
from site_spider.contracts.sink import ACKNOWLEDGED, Answer, Record, Verdict
from site_spider.dupefilter.filters import BloomDone, RollingDone
from site_spider.errors import SinkUnavailable
from site_spider.ledger.completion import Job, job_of
from site_spider.meta_keys import AGAIN
from site_spider.page.url import host_of
from site_spider.sources import extraction_process
from tests.in_process import extraction

if TYPE_CHECKING:
    from tests.simulation.world import Plan, Process, World

TROUBLED_SHARE = 0.15  # of the pages
SCOPE = "SITE_DUPEFILTER_SCOPE"
SOURCES = str(Path(__file__).parent / "sources")
LIST_PAGE, MOST_ENTRIES = 5, 60
RATE_SECONDS, EXPIRY_SECONDS = 20.0, 10.0  # over which it is counted; in which all hear of it
ROBOTS, DELAY = "/robots.txt", "User-agent: *\nCrawl-delay: 1"
DAYS = [f"http://cal.test/day/{number}" for number in range(240)]  # of a calendar: a trap
OTHER_SINK = "other"  # and the group that writes to it
GONE = ["http://gone.test/1", "http://gone.test/2"]


@dataclass
class Page:
    url: str
    links: list[str]
    status: int | None = 200
    trouble: str = ""
    bad_answers: int = 0  # before it answers well
    target: str = ""  # of a redirect
    version: int = 0
    changed_at: str = ""  # as in documents
    is_file: bool = False  # a sitemap
    canonical: str = ""  # the page that this one is a copy of
    text: str = ""  # of what is like no other
    padding: int = 0
    asked: int = 0  # pages of a list
    most_asked: float = math.inf

    @property
    def etag(self) -> str:
        return f'"{self.version}"' if len(self.url) % 2 else ""  # half of the pages have none

    @property
    def body(self) -> str | None:
        if self.status is None or self.text:
            return self.text or None
        if self.is_file:
            named = "".join(f"<url><loc>{link}</loc></url>" for link in self.links)
            return f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"><!--{self.version}-->{named}</urlset>'
        head = f'<link rel="canonical" href="{self.canonical}">' if self.canonical else ""
        links = "".join(f'<a href="{link}">x</a>' for link in self.links)
        return f"<html>{head}{links}<p>{self.canonical or self.url} {self.version}</p>{' x' * self.padding}</html>"

    def may_leave(self, document: Mapping[str, Any]) -> bool:
        """Whether it may be so in the end: a check that fails leaves the content of a version before, or none."""
        body = document.get("body")
        if self.status == 200:
            return body == self.body
        versions = [replace(self, status=200, version=version).body for version in range(self.version + 1)]
        return body in versions or (body is None and (self.status is None or "body" not in document))


@dataclass
class Listing(Page):
    """The first page of a list, the newest entry first: items, or links. Some come above while it is crawled."""

    count: int = 0

    def entry(self, number: int) -> str:
        return f"{self.url}/{number}"

    def shown(self, url: str, rng: random.Random) -> Page:
        if self.most_asked == math.inf and rng.random() < 0.3:
            self.count = min(self.count + rng.randrange(1, 8), MOST_ENTRIES)
        self.asked += 1
        number = int(url.partition("?page=")[2] or 1)
        newest = self.count - LIST_PAGE * (number - 1)
        shown = map(self.entry, range(newest, max(0, newest - LIST_PAGE), -1))
        said = "<b><i>{}</i></b>" if "items" in self.url else "<p><a href={}>x</a></p>"
        following = f'<a class="next" href="{self.url}?page={number + 1}">x</a>' if newest > LIST_PAGE else ""
        return Page(url, [], text=f"<html>{''.join(map(said.format, shown))}{following}</html>")

    def may_leave(self, document: Mapping[str, Any]) -> bool:
        return True


class Sites:
    """All pages of a run, as trees; `seeds` are their roots, with their meta. Some links lead across."""

    def __init__(self, plan: Plan, rng: random.Random) -> None:
        self.pages: dict[str, Page] = {}
        self.seeds: dict[str, dict[str, Any]] = {}
        self.sources: dict[str, str] = {}  # of targets of redirects
        self.refused: set[str] = set()  # by the sinks
        self._above: dict[str, list[str]] = {}
        self.parents: dict[str, list[str]] = defaultdict(list)
        for number in range(max(1, plan.pages // plan.tree)):
            host = f"h{rng.randrange(plan.hosts)}.test"
            urls = [f"http://{host}/{number}/{index}" for index in range(plan.tree)]
            self._grow(urls, plan, rng)
            task_id = rng.choice([None, *plan.task_ids])
            self.seeds[urls[0]] = {"task_id": task_id} if task_id else {}
            self.seeds[urls[0]] |= {"url_id": f"id{number}"} if rng.random() < 0.2 else {}
        if plan.tree == 1 or not plan.is_exactly_once:  # there a tree is stored as a whole
            good = [url for url in self.pages if url not in self.sources and not self.pages[url].trouble]
            self.refused = set(rng.sample(good, min(2, len(good))))
        self._join(plan, rng)
        self.lists = [f"http://{kind}.test/list" for kind in ("items", "links") if "lists" in plan.extras]
        self.entries: set[str] = set()
        for url in self.lists:
            self._list(url, plan, random.Random(f"{plan.number}:{url}"))
        self.robots: dict[str, Page] | None = {} if "robots" in plan.extras else None  # as they are asked for
        self.pages |= {url: Page(url, []) for url in GONE if "gone" in plan.extras and plan.sinks}
        if "traps" in plan.extras:
            self._add_calendar(plan)
        if "maps" in plan.extras:
            self._add_maps()

    def _add_calendar(self, plan: Plan) -> None:
        self.seeds[DAYS[0]] = {"task_id": plan.task_ids[0]}
        for number, url in enumerate(DAYS):
            links = DAYS[2 * number + 1 : 2 * number + 3]
            said = "".join(f'<a href="{link}">x</a>' for link in links)
            self._add(Page(url, links, text=f"<html>{said}<p>2031-03-{10 + number % 20}</p></html>"))

    def _add_maps(self) -> None:
        """Of hosts that one task alone asks for."""
        hosts = defaultdict(list)
        for url in sorted(self.seeds.keys() - self.lists):
            hosts[url.split("/")[2]].append(url)
        for page in self.pages.values():  # out of the scope of links, or robots.txt is asked for another task
            for url in (page.url, page.target) if page.trouble == "moved away" else ():
                hosts.pop(url.split("/")[2], None)
        for host, mine in hosts.items():
            if len({self.seeds[url].get("task_id") for url in mine}) == 1:
                listing = Page(f"http://{host}/map", [f"http://{host}/map/{number}" for number in "123"], is_file=True)
                self.pages |= {url: Page(url, []) for url in listing.links}
                self.parents[listing.url] += mine
                self._add(listing)

    def _add(self, page: Page) -> None:
        self.pages[page.url] = page
        for link in page.links:
            self.parents[link].append(page.url)

    def _list(self, url: str, plan: Plan, rng: random.Random) -> None:
        self.pages[url] = listing = Listing(url, [], count=rng.randrange(40))
        task_id = rng.choice([None, *plan.task_ids])
        self.seeds[url] = {"task_id": task_id} if task_id else {}
        self.sources |= {f"{url}?page={number}": url for number in range(2, MOST_ENTRIES)}
        for entry in map(listing.entry, range(1, MOST_ENTRIES + 1)):
            self.pages[entry] = Page(entry, [])
            self.parents[entry].append(url)
            self.entries.add(entry)

    def at(self, url: str, rng: random.Random) -> Page | None:
        if url.endswith(ROBOTS) and self.robots is not None:
            made = Page(url, [], 200, rng.choice(["closes", "breaks", "busy", "many", ""]), 3, text=DELAY)
            return self.robots.setdefault(url, made)
        if url.endswith(ROBOTS) and (listing := url.replace(ROBOTS, "/map")) in self.pages:
            return Page(url, [], text=f"Sitemap: {listing}")
        page = self.pages.get(url.partition("?")[0])
        return page.shown(url, rng) if isinstance(page, Listing) else page

    def _grow(self, urls: list[str], plan: Plan, rng: random.Random) -> None:
        links = {url: urls[2 * index + 1 : 2 * index + 3] for index, url in enumerate(urls)}
        parents = {link: url for url in urls for link in links[url]}
        for url in urls:
            if url == urls[0] or url in getattr(self.pages.get(parents[url]), "links", ()):
                self.pages[url] = page = Page(url, links[url], is_file=bool(links[url]) and rng.random() < 0.1)
                if "SITE_BODIES_MAX_BYTES" in plan.settings and rng.random() < 0.2:
                    page.padding = 100_000
                if rng.random() < TROUBLED_SHARE:
                    self._trouble(page, f"http://h{rng.randrange(plan.hosts)}.test", plan, rng)

    def _join(self, plan: Plan, rng: random.Random) -> None:
        """Links to what another seed of the same task leads to, or one of any; and which pages lead where."""
        pages, is_shared = [one for one in self.pages if one not in self.sources], plan.settings[SCOPE] == "group"
        root = {one: one.rsplit("/", 1)[0] + "/0" for one in pages}
        for url in rng.sample(pages, rng.choice([0, len(pages) // 8, len(pages) // 2])):
            mine, there = self.seeds[root[url]], rng.choice(pages)
            is_near = plan.has_far_links or there.split("/")[2] == url.split("/")[2]
            is_followed = self.pages[url].trouble not in ("gone", "down", "moved away") and there != url
            is_followed = is_followed and "url_id" not in self.seeds.get(there, ())
            theirs = self.seeds[root[there]]
            is_followed &= "forgets" not in plan.extras or int(url.split("/")[3]) < int(there.split("/")[3])  # no rings
            if is_near and is_followed and (is_shared or mine.get("task_id") == theirs.get("task_id")):
                page, original = self.pages[url], self.pages[there]
                is_good = not (original.trouble or original.is_file or there in self.refused)
                if plan.merges and is_good and rng.random() < 0.5:
                    self.pages[f"{there}/copy"] = Page(f"{there}/copy", original.links, canonical=there)
                    there = f"{there}/copy"
                page.links.append(there)
        for url in [one for one in self.pages if one not in self.sources]:
            for link in filter(None, [*self.pages[url].links, self.pages[url].canonical]):
                self.parents[link].append(url)

    def _trouble(self, page: Page, elsewhere: str, plan: Plan, rng: random.Random) -> None:
        kinds = ["hangs", "closes", "breaks", "busy", "many", "gone", "down", "moved", "moved away"]
        page.trouble, page.bad_answers = rng.choice(kinds), plan.bad_answers
        if page.trouble == "gone":
            page.status, page.links = 404, []
        elif page.trouble == "down":
            page.status, page.links, page.bad_answers = None, [], 1_000_000
        elif page.trouble.startswith("moved"):  # links lead on where it went; elsewhere they are out of scope
            is_here, (*host, path) = page.trouble == "moved", page.url.split("/", 3)
            page.target = f"{'/'.join(host) if is_here else elsewhere}/{path}/moved"
            page.links = page.links if is_here or plan.has_far_links else []
            self.pages[page.target] = Page(page.target, page.links, is_file=page.is_file)
            self.sources[page.target] = page.url

    def above(self, url: str) -> list[str]:
        """The page whose result it is, what links to that, and so on: all whose trees it is in."""
        if (found := self._above.get(url)) is None:
            self._above[url] = found = [self.sources.get(url, url)]
            for one in found:
                found += [each for each in dict.fromkeys(self.parents[one]) if each not in found]
        return found

    def tasks_of(self, url: str) -> list[str | None]:
        """Of the seeds that lead to it."""
        seeds = [self.seeds[one] for one in self.above(url) if one in self.seeds]
        return [*dict.fromkeys(seed.get("task_id") for seed in seeds)]


class Web(BaseDownloadHandler):
    async def download_request(self, request: Request) -> Response:
        process: Process = PROCESS.get()
        host = request.url.split("/")[2]
        if request.url.endswith("/file"):
            host += " for files"
        process.downloads[host] += 1
        for kind, what in self._wrong(process, host, request):
            process.world.violation(kind, what)
        try:
            return await self._answer(process.world, request)
        finally:
            process.downloads[host] -= 1

    def _wrong(self, process: Process, host: str, request: Request) -> Iterator[tuple[str, str]]:
        world, plan, job, before = process.world, process.world.plan, job_of(request), process.asked_at.get(host, 0.0)
        if process.downloads[host] > (limit := plan.settings["CONCURRENT_REQUESTS_PER_DOMAIN"]):
            yield "politeness", f"{process.downloads[host]} at {host} at once, not {limit}"
        is_page, has_begun = not request.url.endswith(ROBOTS), job is not None and "if_changed" in job.seed.directives
        is_file, pause_seconds = job is None and is_page, plan.pause_seconds
        if is_file:  # past the frontier: neither robots.txt nor owners count
            pause_seconds = plan.settings["DOWNLOAD_DELAY"] / 2
        is_for_file = is_file or (job is None and "files" in plan.extras)  # or its robots.txt
        if not (has_begun or is_for_file or process.may_ask(host)):  # else it was looked up meanwhile
            yield "politeness", f"{host} is another's"
        if is_page and not has_begun:
            since, process.asked_at[host] = Machine.now() - before, Machine.now()
            if process.lost_at < before and since < pause_seconds - 0.01:
                yield "politeness", f"{host} after {since:.2f} s"
            yield from self._wrong_beside(process, host, job)
        if job is not None and is_page:
            yield from self._beyond_limits(world, job, request)
        if job is not None and is_page and not {"retry_times", "redirect_times", AGAIN} & request.meta.keys():
            world.begun[job.seed.task_id] += 1
            if job.is_link:
                world.linked[job.seed.task_id, host].add(request.url)
            if (count := world.begun[job.seed.task_id]) > (most := world.budgets.get(job.seed.task_id, math.inf)):
                yield "over budget", f"{job.seed.task_id}: {count} pages of {most}"

    def _wrong_beside(self, process: Process, host: str, job: Job | None) -> Iterator[tuple[str, str]]:
        """Its limits hold over all processes: with the key of its host a page is asked for by one of them."""
        is_keyed = process.world.plan.settings["SITE_HOST_OWNERSHIP"] or (job and host_of(job.seed.url) == host)
        if job is None or not (is_keyed and process.is_alone_with_its_own):
            return
        process.keyed_at[host] = Machine.now()
        for other in process.world.alive:
            is_of_group = other is not process and other.is_other == process.is_other
            if is_of_group and other.is_alone_with_its_own and other.keyed_at.get(host, 0.0) > other.lost_at:
                yield "politeness", f"{host} is asked by {other.name}, too"

    def _beyond_limits(self, world: World, job: Job, request: Request) -> Iterator[tuple[str, str]]:
        """Of a task: what it has begun too soon, or too late."""
        if (task := world.declared.get(job.seed.task_id)) is None:
            return
        now, paces = Machine.now(), world.paces[task.task_id]
        if task.rate is not None and "redirect_times" not in request.meta:
            paces.append(now)
            most = 1.1 * RATE_SECONDS * task.rate + (1 + task.rate) * len(world.alive)
            if (count := sum(now - RATE_SECONDS <= at for at in paces)) > most:
                yield "over the rate", f"{task.task_id}: {count} in {RATE_SECONDS} s, at {task.rate} a second"
        seconds = EXPIRY_SECONDS * (6 if world.deaths else 1)
        if task.expires_at is not None and EPOCH + now > task.expires_at.timestamp() + seconds:
            yield "begun too late", f"{request.url} of {task.task_id}"

    async def _answer(self, world: World, request: Request) -> Response:
        url, rng = request.url, world.rng("web")
        page = world.sites.at(url, rng)
        world.fetched += 1
        world.trace("fetch", PROCESS.get().name, url)
        await asyncio.sleep(rng.uniform(0.5, 8) if rng.random() < 0.02 else rng.uniform(0.02, 0.3))
        if page is None:
            return HtmlResponse(url, status=404, body=b"none")
        if page.bad_answers > 0:
            page.bad_answers -= 1
            match page.trouble:
                case "hangs":
                    await asyncio.sleep(30.0)
                    raise DownloadTimeoutError(f"Getting {url} took longer than 30 seconds.")
                case "closes" | "breaks" | "down":
                    await asyncio.sleep(1.0 if page.trouble == "breaks" else 0.0)
                    raise DownloadFailedError(f"the connection {page.trouble}")
                case "busy":
                    return HtmlResponse(url, status=503, headers={"Retry-After": "2"}, body=b"busy")
                case "many":
                    return HtmlResponse(url, status=429, body=b"slow down")
        if page.target:
            return HtmlResponse(url, status=302, headers={"Location": page.target}, body=b"")
        if page.etag and request.headers.get("If-None-Match") == page.etag.encode():
            return Response(url, status=304, headers={"ETag": page.etag})
        if page.links and (job := job_of(request)) is not None and job.seed.task_id is not None:
            world.lead_on.add(job.seed.task_id)
        world.answers[url] += 1
        PROCESS.get().days.update({url}.intersection(DAYS))
        kind, made = ("application/xml", XmlResponse) if page.is_file else ("text/html; charset=utf-8", HtmlResponse)
        headers = {"Content-Type": kind} | ({"ETag": page.etag} if page.etag else {})
        return made(url, status=page.status or 200, headers=headers, body=(page.body or "").encode())


class _Store:
    address = name = "simulated"

    @classmethod
    def from_settings(cls, _settings: Any) -> Any:
        return cls()

    for_items = for_statistics = from_settings

    def close(self) -> Any: ...


class SimSink(_Store):
    """A store of results; what has left its process is written even if that dies."""

    name = "first"
    world: ClassVar[World]  # set for each run

    def __init__(self) -> None:
        self._context = contextvars.copy_context()

    async def open(self) -> None:
        await asyncio.sleep(0.005)
        if "away" in self.world.sinks.get(self.name, ()):
            raise SinkUnavailable("the sink is away")

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        loop, rng, world = Machine.running(), self.world.rng(self.name), self.world
        process, mode = PROCESS.get(), world.sinks.get(self.name, ())
        ended: asyncio.Future[Sequence[Verdict]] = loop.create_future()
        world.truth.writing(process, records)

        def answer(tell: Callable[[Any], None], what: object, seconds: float = 0.01) -> None:
            loop.call_later(seconds, lambda: ended.done() or tell(what), context=self._context)

        def written(record: Record) -> Verdict:
            if "partial" in mode and rng.random() < 0.3:
                return Verdict(Answer.RETRY, "overloaded")
            if world.truth.refuses(record):
                return Verdict(Answer.REJECTED, "refused by the sink")
            if process.is_other:
                world.truth.others.add(str(record.document.get("url")))
            else:
                world.truth.store(self.name, record, process.name)
            return ACKNOWLEDGED

        def apply() -> None:
            is_away = "away" in mode
            verdicts = [] if is_away else list(map(written, records))
            if is_away and rng.random() > 0.2:  # else nobody ever answers
                answer(ended.set_exception, SinkUnavailable("refused"))
            elif not is_away and "mute" in mode and rng.random() < 0.5:  # written, and nobody hears of it
                answer(ended.set_exception, SinkUnavailable("reset by peer"))
            elif not is_away:
                answer(ended.set_result, verdicts, rng.uniform(0, 6) if "slow" in mode else rng.uniform(0.001, 0.02))

        loop.call_later(rng.uniform(0.001, 0.02), apply, context=NETWORK)
        return await ended

    async def close(self) -> None: ...


SecondSink = type("SecondSink", (SimSink,), {"name": "second"})
ThirdSink = type("ThirdSink", (SimSink,), {"name": "third"})
OtherSink = type("OtherSink", (SimSink,), {"name": OTHER_SINK})
LogSink = type("LogSink", (SimSink,), {"name": "kafka"})  # what transactions store
SINKS = (SimSink, SecondSink, ThirdSink)


class SimResults(_Store):
    """Reads back what the first sink has."""

    def known(self, url_ids: Sequence[str], _fields: Sequence[str]) -> dict[str, dict[str, Any]]:
        world = self._ask()
        return {url_id: found for url_id in url_ids if (found := world.truth.in_store(url_id))}

    def search(self, **_which: Any) -> list[dict[str, Any]]:
        truth, sites = self._ask().truth, SimSink.world.sites
        found = ((url, truth.in_store(key) | {"url_id": key}) for url, key in truth.keys.items())
        return [one for url, one in found if "fetched_at" in one and url not in {*sites.lists, *sites.sources}]

    def exchange(self, _name: str, changes: Mapping[str, tuple[str | None, str]]) -> set[str]:
        truth = self._ask().truth
        won = {key: new for key, (old, new) in changes.items() if truth.claims.get(key) == old}
        truth.claims |= won
        truth.claimed |= {
            f"{batch} {key}": check for key, new in won.items() for _, _, batch, check in [new.split(" ")]
        }
        return {*won} if self._ask() else set()  # or it is written, and nobody hears of it

    def _ask(self) -> World:
        world, name = SimSink.world, next(iter(SimSink.world.sinks))
        is_quick = "gone" in world.plan.extras or world.settled_at != math.inf
        sleep(world.rng("look-up").choice([0.02] if is_quick else [0.002, 0.02, 0.2, 3.0]))
        if "away" in world.sinks[name]:
            raise SinkUnavailable("the store is away")
        return world


class SimDone(_Store, DoneStore):
    cache_seconds = 30.0

    def open(self) -> None:
        world = SimSink.world
        sleep(world.rng("marks").choice([0.002, 0.002, 0.02, 1.0]))
        if "marks" in world.away_since:
            raise DoneUnavailable("the store is away")

    def known(self, fingerprints: Sequence[bytes]) -> set[bytes]:
        self.open()
        return SimSink.world.marks[PROCESS.get().is_other].intersection(fingerprints)

    def add(self, fingerprints: Sequence[bytes]) -> None:
        self.open()
        SimSink.world.truth.marking(fingerprints)
        SimSink.world.marks[PROCESS.get().is_other].update(fingerprints)


class _Marks:
    def add(self, fingerprint: bytes, /) -> None:
        SimSink.world.truth.marking([fingerprint])
        super().add(fingerprint)  # type: ignore[misc]


SimBloom = type("SimBloom", (_Marks, BloomDone), {})
SimRolling = type("SimRolling", (_Marks, RollingDone), {})
extraction_process._Worker.start = extraction._started  # type: ignore[method-assign, assignment]
