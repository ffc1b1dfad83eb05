"""robots.txt: what is kept of it, how it is fetched, and how crawls keep to it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from protego import Protego
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import CannotResolveHostError, DownloadConnectionRefusedError
from scrapy.http import Response
from scrapy.robotstxt import RobotParser

from site_spider.download.names import PrivateHostError
from site_spider.frontier.robots import LARGEST_BYTES, RobotsCache, State, bounded
from site_spider.ledger import completion
from site_spider.service.service import SeedService
from site_spider.spiders.crawl_spider import SeedSpider
from tests.growth import assert_grows
from tests.in_process import engine
from tests.in_process.engine import Crawled, crawl, page

FORBIDS = "User-agent: *\nDisallow: /private\nDisallow: /*?secret=\n"


class Hosts:
    def __init__(self) -> None:
        self.robots: dict[str, Any] = {}  # host and port -> text, status or exception, or a list of such
        self.asked: list[tuple[float, str, str]] = []  # when, host and port, path
        self.jobs: list[completion.Job | None] = []  # for which robots.txt was asked for

    async def answer(self, request: Request) -> Response:
        url = urlsplit(request.url)
        self.asked.append((asyncio.get_running_loop().time(), url.netloc, url.path))
        if url.path == "/robots.txt":
            self.jobs.append(completion.current_job())
        else:
            await asyncio.sleep(0.01)
            return page(request, "<a href=/private/link><a href=/public/link>")
        said = self.robots.get(url.netloc, 404)
        if isinstance(said, list):
            said = said.pop(0) if len(said) > 1 else said[0]
        if callable(said):
            said = await said(request)
        return self._said(request, said)

    def _said(self, request: Request, said: Any) -> Response:
        if isinstance(said, Exception):
            raise said
        if isinstance(said, Response):
            return said
        return page(request, "", said) if isinstance(said, int) else page(request, said)

    def count(self, path: str) -> Counter[str]:
        return Counter(host for _, host, asked in self.asked if asked == path)

    def times(self, host: str) -> list[float]:
        return [moment for moment, asked, _ in self.asked if asked == host]


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    made = Hosts()
    for path in ("/robots.txt", "/public", "/private", "/moved", "/elsewhere/robots", "/public/link"):
        monkeypatch.setitem(engine.ANSWERS, path, made.answer)
    for number in range(50):
        monkeypatch.setitem(engine.ANSWERS, f"/public/{number}", made.answer)
    return made


def seed(url: str, **fields: Any) -> dict[str, Any]:
    return {"url": url, "meta": {"url_id": url, "NotExtract": True}, **fields}


def obeying(folder: Path, *urls: str, **overrides: Any) -> Crawled:
    settings = {"ROBOTSTXT_OBEY": True, **overrides}
    return crawl(folder, [seed(url) for url in urls], **settings)


def said(crawled: Crawled) -> dict[str, str | None]:
    return {name: document["description"] for name, document in crawled.documents.items()}


MOST, AGE_SECONDS, WAIT_SECONDS = 3, 1000, 20
LIMITS = MOST, AGE_SECONDS, WAIT_SECONDS, 2, 50, 1000
ORIGINS = [f"http://h{number}" for number in range(6)]
origins = st.sampled_from(ORIGINS)


class Model(RuleBasedStateMachine):
    """Fetches as `Robots` of frontier.robots does: whoever finds an origin unknown begins."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: RobotsCache[str] = RobotsCache(*LIMITS)
        self.now = 0.0
        self.pending: set[str] = set()
        self.rules: dict[str, tuple[str, float]] = {}  # what was found last, and when

    @rule(seconds=st.sampled_from([0.5, 3.0, 30.0, 600.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(origin=origins)
    def look(self, origin: str) -> None:
        look = self.cache.look(origin, self.now)
        assert (look.state is State.PENDING) == (origin in self.pending)
        if look.state is State.UNKNOWN:
            self.cache.begin(origin)
            self.pending.add(origin)
        elif look.state is State.KNOWN:
            assert look.rules == self.rules[origin][0]
        elif look.state is State.LATER:
            assert self.now < look.until <= self.now + WAIT_SECONDS
            assert look.reason

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), size=st.sampled_from([0, 10, 600]))
    def found(self, data: st.DataObject, size: int) -> None:
        origin = data.draw(st.sampled_from(sorted(self.pending)))
        self.pending.discard(origin)
        self.rules[origin] = (f"{origin} at {self.now}", self.now)
        self.cache.found(origin, self.rules[origin][0], size, self.now)
        look = self.cache.look(origin, self.now)
        assert (look.state, look.rules) == (State.KNOWN, self.rules[origin][0])
        late = self.cache.look(origin, self.now + AGE_SECONDS)
        assert late.state is State.UNKNOWN

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), may_pass=st.booleans())
    def failed(self, data: st.DataObject, may_pass: bool) -> None:
        origin = data.draw(st.sampled_from(sorted(self.pending)))
        self.pending.discard(origin)
        self.cache.failed(origin, "HTTP 503", self.now, 0.5, may_pass=may_pass)
        look = self.cache.look(origin, self.now)
        assert look.state in (State.KNOWN, State.LATER, State.UNREACHABLE, State.UNKNOWN)
        if not may_pass:
            assert look.state is not State.LATER

    @invariant()
    def it_stays_small(self) -> None:
        assert len(self.cache._origins) <= MOST + len(self.pending)


Model.TestCase.settings = settings(stateful_step_count=50)
test_the_cache_keeps_its_rules_whatever_happens = Model.TestCase


def test_a_file_that_cannot_be_fetched_is_tried_again_for_a_time_and_then_all_is_forbidden() -> None:
    cache: RobotsCache[str] = RobotsCache(*LIMITS)
    now, attempts, states = 0.0, [], []
    while now < 200:
        look = cache.look("http://h", now)
        if look.state is State.UNKNOWN:
            cache.begin("http://h")
            cache.failed("http://h", "HTTP 503", now, 0.0, may_pass=True)
            attempts.append(now)
            states.append(cache.look("http://h", now).state)
        now += 0.5
    assert attempts == [0, 2, 6, 14, 20, 52, 102, 152]
    assert states == [State.LATER] * 4 + [State.UNREACHABLE] * 4


def test_rules_that_cannot_be_fetched_anew_stay_in_use() -> None:
    """RFC 9309, 2.4; with attempts in between."""
    cache: RobotsCache[str] = RobotsCache(*LIMITS)
    cache.begin("http://h")
    cache.found("http://h", "old", 10, 0.0)
    cache.begin("http://h")
    cache.failed("http://h", "HTTP 503", 1000.0, 0.0, may_pass=True)
    assert cache.look("http://h", 1001.0).rules == "old"
    assert cache.look("http://h", 1002.0).state is State.UNKNOWN
    cache.begin("http://h")
    cache.found("http://h", "new", 10, 1002.0)
    assert cache.look("http://h", 1003.0).rules == "new"


def test_the_one_asked_for_least_recently_is_forgotten_first() -> None:
    cache: RobotsCache[str] = RobotsCache(*LIMITS)
    for name in "abc":
        cache.begin(name)
        cache.found(name, name, 10, 0.0)
    cache.look("a", 1.0)
    cache.begin("d")
    cache.found("d", "d", 900, 1.0)
    states = {name: cache.look(name, 2.0).state for name in "abcd"}
    assert [name for name, state in states.items() if state is State.KNOWN] == ["a", "c", "d"]
    cache.begin("a")
    cache.found("a", "a", 200, 3.0)
    assert [name for name in "abcd" if cache.look(name, 4.0).state is State.KNOWN] == ["a"]


# --- a robots.txt is cut before it costs too much --------------------------------------------------------

AGENTS = [b"user-agent: a%d\n" % number for number in range(16_000)]


@given(st.binary(max_size=300))
def test_whatever_the_bytes_are_it_is_utf_8(body: bytes) -> None:
    Protego.parse(bounded(body)[0].decode())


def test_an_ordinary_file_stays_as_it_is() -> None:
    """Also one in which every agent has a group of its own, with a sitemap between."""
    body = b"".join(b"user-agent: %d\nDisallow: /x\nsitemap: http://x/\n" % n for n in range(8_000))
    assert bounded(body)[0].splitlines() == body.splitlines()


def test_no_more_than_500_kib_in_whole_lines_are_kept() -> None:
    """RFC 9309 wants at least so much to be parsed."""
    kept, _ = bounded(b"# some words\n" * 100_000)
    assert LARGEST_BYTES - 20 < len(kept) <= LARGEST_BYTES
    assert kept.endswith(b"# some words")


def test_plain_rules_behind_too_many_wildcards_are_kept() -> None:
    """A group whose only rule is left out stays one of its own."""
    body = b"user-agent: a\n" + b"allow: /*y\n" * 2_500 + b"disallow: /x\n"
    body += b"user-agent: b\ndisallow: /*z\nuser-agent: c\ndisallow: /z\n"
    kept, _ = bounded(body)
    assert kept.count(b"/*y") == 2_000
    rules = Protego.parse(kept.decode())
    asked = [("/x", "a"), ("/ay", "a"), ("/z", "b"), ("/z", "c")]
    assert [rules.can_fetch(f"http://h{path}", agent) for path, agent in asked] == [False, True, True, False]


@pytest.mark.parametrize("rule", ["/%d", "/%d$", "/%d/index.html", "/%d$/index.html"])
def test_what_is_kept_of_a_file_is_weighed(rule: str) -> None:
    """300 agents with 300 rules stand in 9 KB, and take 8 to 75 MB: a site with 2,000 subdomains took all memory."""
    body = b"".join(AGENTS[:100]) + "".join(f"allow: {rule % number}\n" for number in range(100)).encode()
    text, size_bytes = bounded(body)
    tracemalloc.start()
    try:
        kept = Protego.parse(text.decode())
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept.can_fetch("http://h/", "a1")
    assert held / 2 < size_bytes < held * 8


def test_the_cache_counts_that_weight(tmp_path: Path, hosts: Hosts) -> None:
    hosts.robots["h.test"] = FORBIDS
    with patch.object(RobotsCache, "found", autospec=True, side_effect=RobotsCache.found) as found:
        obeying(tmp_path, "http://h.test/public")
    assert [call.args[3] for call in found.call_args_list] == [bounded(FORBIDS.encode())[1]]


def agents(part: int) -> list[bytes]:
    return AGENTS[: part * len(AGENTS) // 16]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "made",
    [
        lambda n: b"".join(agents(n)) + b"allow:/a\n" * (1_200 * n),
        lambda n: b"\nsitemap:x\n".join(agents(n)) + b"allow:/a\n" * (430 * n),
        lambda n: b"\ngarbage\n".join(agents(n)) + b"allow:/a\n" * (430 * n),
        lambda n: b"\xc2\xa0".join(agents(n)) + b"allow:/a\n" * (430 * n),
        lambda n: "\u2028".join(line.decode().strip() for line in agents(n)).encode() + b"\nallow:/a\n" * (430 * n),
        lambda n: b"user-agent:*\n" + b"".join(b"allow:/*a%d*b\n" % m for m in range(1_900 * n)),
    ],
    ids=["agents", "sitemaps", "garbage", "blanks", "separators", "wildcards"],
)
def test_a_hostile_file_costs_no_more_than_its_length(made: Callable[[int], bytes]) -> None:
    """The second took four minutes to parse, and gigabytes."""

    def reading(part: int) -> Callable[[], object]:
        body = made(part)
        return lambda: Protego.parse(bounded(body)[0].decode()).can_fetch("http://h/" + "a1" * 4_000, "me")

    assert_grows(reading, 1)


def test_what_is_forbidden_ends_as_a_failure_and_is_not_asked_for(tmp_path: Path, hosts: Hosts) -> None:
    """Links have documents of their own; their seed is complete. The file belongs to none and is fetched once."""
    hosts.robots["h.test"] = FORBIDS
    seeds = [seed("http://h.test/private"), seed("http://h.test/public/1?secret=1")]
    found = crawl(tmp_path, [*seeds, {"url": "http://h.test/public"}], ROBOTSTXT_OBEY=True)
    by_url = {document["url"].removeprefix("http://h.test"): document for document in found.documents.values()}
    failed = {url for url, document in by_url.items() if document["description"] == "Forbidden by robots.txt"}
    assert failed == {"/private", "/public/1?secret=1", "/private/link"}
    assert by_url.keys() - failed == {"/public", "/public/link"}
    assert [path for _, _, path in hosts.asked] == ["/robots.txt", "/public", "/public/link"]
    assert (found.lag, found.seeds["completed_with_failure"], found.seeds["in_flight"]) == (0, 2, 0)
    assert found.stats["robotstxt/forbidden"] == 3


class MeasuringSpider(SeedSpider):
    """Keeps what metrics say."""

    name = "measuring"
    running: ClassVar[MeasuringSpider]
    measured: ClassVar[list[dict[str, Any]]]

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> MeasuringSpider:
        cls.running, cls.measured = super().from_crawler(crawler, *args, **kwargs), []
        return cls.running

    @classmethod
    async def measure(cls, _request: object = None) -> str:
        cls.measured.append(await SeedService.of(cls.running.crawler).parts.measurements.measured())
        return FORBIDS

    async def parse(self, response: Response) -> Any:  # type: ignore[override]
        if response.url == "http://h.test/public":
            await asyncio.sleep(5)  # all others have ended
            await self.measure()
        return []


def test_each_robots_txt_counts_once_by_how_it_ended_and_its_redirects_are_no_pages(
    tmp_path: Path, hosts: Hosts
) -> None:
    """One under way counted as unanswered until its answer came, and a counter that falls is wrong for ever."""
    moved = {"Location": "http://moved.test/elsewhere/robots"}
    hosts.robots = {
        "moved.test": Response("http://moved.test/robots.txt", 301, moved),
        "away.test": CannotResolveHostError("no address"),
        "h.test": MeasuringSpider.measure,
    }
    seeds = [seed(f"http://{host}.test/public") for host in ("h", "moved", "away")]
    crawl(tmp_path, seeds, MeasuringSpider, ROBOTSTXT_OBEY=True, SITE_ROBOTS_WAIT_SECONDS=0)
    under_way, ended = MeasuringSpider.measured
    assert under_way["measurements"]["robots_fetches"]["unanswered"] == 0
    assert ended["measurements"]["robots_fetches"] == {"answered": 2, "unanswered": 1}
    kinds = ended["downloads"]
    assert {name: kinds[name]["attempts"] for name in ("page", "robots")} == {"page": 2, "robots": 4}
    assert [path for _, _, path in hosts.asked].count("/public") == 2


def test_one_fetch_serves_all_requests_of_an_origin(tmp_path: Path, hosts: Hosts) -> None:
    async def slow(_request: Request) -> str:
        await asyncio.sleep(0.3)
        return FORBIDS

    hosts.robots["h.test"] = slow
    urls = [f"http://h.test/public/{number}" for number in range(50)]
    found = obeying(tmp_path, *urls, "https://h.test/public", "http://h.test:81/public")
    assert len(found.documents) == 52
    assert set(said(found).values()) == {None}
    assert hosts.count("/robots.txt") == {"h.test": 2, "h.test:81": 1}  # http and https


def test_a_slow_robots_txt_holds_up_its_host_alone_and_takes_one_place(tmp_path: Path, hosts: Hosts) -> None:
    """With two places, and four hosts whose file takes its time, the fast host is served meanwhile."""
    order: list[str] = []

    async def slow(_request: Request) -> str:
        await asyncio.sleep(0.6)
        order.append("slow robots.txt is there")
        return ""

    hosts.robots["slow.test"] = slow
    views: list[str] = []

    def until(crawler: Crawler) -> bool:
        service = SeedService.of(crawler)
        now = asyncio.get_running_loop().time()
        views.extend(v.reason for v in service.parts.room.frontier.hosts(now) if v.host == "slow.test")
        return service.parts.completion.ledger.consumed == 30 and service.parts.completion.ledger.in_flight == 0

    slow_urls = [f"http://slow.test/public/{number}" for number in range(20)]
    fast_urls = [f"http://fast.test/public/{number}" for number in range(10)]
    seeds = [seed(url) for url in slow_urls + fast_urls]
    found = crawl(tmp_path, seeds, until=until, ROBOTSTXT_OBEY=True, CONCURRENT_REQUESTS=2)
    assert len(found.documents) == 30
    first_slow = min(t for t, host, path in hosts.asked if host == "slow.test" and path != "/robots.txt")
    assert max(hosts.times("fast.test")) < first_slow
    assert "robots" in views


def test_fetching_respects_the_limit_of_downloads(tmp_path: Path, hosts: Hosts) -> None:
    running, most = [0], [0]

    async def counted(_request: Request) -> str:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(0.02)
        running[0] -= 1
        return ""

    urls = [f"http://h{number}.test/public" for number in range(50)]
    hosts.robots = dict.fromkeys((urlsplit(url).netloc for url in urls), counted)
    found = obeying(tmp_path, *urls, CONCURRENT_REQUESTS=4)
    assert len(found.documents) == 50
    assert 2 <= most[0] <= 4


FAILURES = {
    "a.test": (503, "HTTP 503 Service Unavailable"),
    "b.test": (429, "HTTP 429 Too Many Requests"),
    "c.test": (DownloadConnectionRefusedError(), "ConnectionRefusedError: c.test refuses connections"),
    "d.test": (CannotResolveHostError(), "DNSLookupError: no address for host d.test"),
    "e.test": (PrivateHostError("e.test has no public address"), "PrivateHostError: e.test has no public address"),
}


def test_a_file_that_cannot_be_fetched_is_tried_again_and_then_its_seeds_fail(tmp_path: Path, hosts: Hosts) -> None:
    """After SITE_ROBOTS_WAIT_SECONDS; pages are not asked for. For a private host waiting cannot help."""
    hosts.robots = {host: failure for host, (failure, _) in FAILURES.items()}
    parts = {f"http://{host}/public{more}": part for host, (_, part) in FAILURES.items() for more in ("", "/1")}
    found = obeying(tmp_path, *parts, SITE_ROBOTS_WAIT_SECONDS=0.3)
    assert said(found) == {url: f"robots.txt could not be fetched: {part}" for url, part in parts.items()}
    asked = hosts.count("/robots.txt")
    assert asked.pop("e.test") == 1
    assert all(4 <= asked[host] <= 7 for host in FAILURES if host != "e.test")
    assert hosts.count("/public") == {}
    assert found.lag == 0


def test_without_pauses_seeds_of_a_file_that_cannot_be_fetched_fail_as_well(tmp_path: Path, hosts: Hosts) -> None:
    """SITE_RETRY_PAUSE_SECONDS=0 is about pages: the file is asked for now and then, and not for ever."""
    hosts.robots["h.test"] = 503
    urls = [f"http://h.test/public/{number}" for number in range(5)]
    found = obeying(tmp_path, *urls, SITE_ROBOTS_WAIT_SECONDS=3, SITE_RETRY_PAUSE_SECONDS=0, timeout_seconds=60)
    assert set(said(found).values()) == {"robots.txt could not be fetched: HTTP 503 Service Unavailable"}
    assert hosts.count("/robots.txt")["h.test"] <= 6


def test_a_site_that_comes_back_in_time_is_crawled(tmp_path: Path, hosts: Hosts) -> None:
    hosts.robots["h.test"] = [503, DownloadConnectionRefusedError(), 503, FORBIDS]
    urls = ["http://h.test/public", "http://h.test/private", "http://other.test/public"]
    found = obeying(tmp_path, *urls)
    assert list(said(found).values()).count(None) == 2
    assert said(found)["http://h.test/private"] == "Forbidden by robots.txt"
    assert hosts.count("/robots.txt") == {"h.test": 4, "other.test": 1}


def test_what_is_fetched_of_robots_txt_is_no_link_downloaded(tmp_path: Path, hosts: Hosts) -> None:
    engine.ANSWERS["/elsewhere/robots"] = lambda r: page(r, "")
    hosts.robots["one.test"] = Response(
        "http://one.test/robots.txt", 301, {"Location": "http://one.test/elsewhere/robots"}
    )
    found = obeying(tmp_path, "http://one.test/public", "http://two.test/public")
    last = last_statistics(tmp_path)
    assert (last["total_num"], last["responses"]) == (2, {"200": 2})
    assert last["robots"]["num"] == 3
    for name in ("response", "request"):
        parts = last[f"total_{name}_size"], last["robots"][f"{name}_size"]
        assert min(parts) > 0
        assert sum(parts) == found.stats[f"downloader/{name}_bytes"]


def last_statistics(folder: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(folder / "results.sqlite")) as store:
        rows = [json.loads(text) for (text,) in store.execute("SELECT document FROM statistics")]
    return dict(max(rows, key=lambda row: row["interval"]))


def test_when_it_is_too_old_it_is_fetched_anew_once(tmp_path: Path, hosts: Hosts) -> None:
    hosts.robots["h.test"] = ["", FORBIDS]
    urls = [f"http://h.test/public/{number}" for number in range(5)] + ["http://h.test/private"]
    delay = {"DOWNLOAD_DELAY": 0.2, "DOWNLOAD_DELAY_JITTER": 0, "CONCURRENT_REQUESTS_PER_DOMAIN": 4}
    found = obeying(tmp_path, *urls, SITE_ROBOTS_MAX_AGE_SECONDS=1, **delay)
    assert said(found)["http://h.test/private"] == "Forbidden by robots.txt"
    assert hosts.count("/robots.txt") == {"h.test": 2}


class FailingParser(RobotParser):
    @classmethod
    def from_crawler(cls, crawler: Crawler, robotstxt_body: bytes) -> FailingParser:
        if robotstxt_body == b"unreadable":
            raise ValueError("unreadable")
        return cls()

    def allowed(self, url: str | bytes, user_agent: str | bytes) -> bool:
        raise ValueError("allowed")

    def crawl_delay(self, user_agent: str | bytes) -> float | None:
        raise ValueError("crawl_delay")


@pytest.mark.parametrize("body", ["unreadable", "readable"])
def test_a_parser_that_fails_allows_all(tmp_path: Path, hosts: Hosts, body: str) -> None:
    hosts.robots["h.test"] = body
    parser = f"{__name__}.FailingParser"
    found = obeying(tmp_path, "http://h.test/public", ROBOTSTXT_PARSER=parser)
    assert said(found) == {"http://h.test/public": None}


def gaps(moments: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(moments)]


def test_without_a_file_all_is_allowed_and_redirects_are_followed(tmp_path: Path, hosts: Hosts) -> None:
    """RFC 9309: unavailable, or none that can be read, or behind more than five redirects.

    A request that is redirected is checked where it goes, by the file of that host.
    """

    async def hop(request: Request) -> Response:
        url = urlsplit(request.url)
        left = int(url.query or {"five.test": 5, "six.test": 6}[url.netloc])
        if left == 0:
            return page(request, FORBIDS)
        return page(request, "", 301, Location=f"/elsewhere/robots?{left - 1}")

    engine.ANSWERS |= {
        "/elsewhere/robots": hop,
        "/moved": lambda r: page(r, "", 302, Location="http://to.test/private"),
    }
    files = (301, 401, 403, 404, 410, "\x00\xff\xfe", "Disallow", "<html>no", "User-agent\nDisallow: [", "")
    hosts.robots = {f"h{number}.test": file for number, file in enumerate(files)}
    allowed = [f"http://{host}/private" for host in [*hosts.robots, "six.test"]]
    hosts.robots |= {"five.test": hop, "six.test": hop, "to.test": FORBIDS}
    forbidden = ["http://five.test/private", "http://from.test/moved"]
    found = said(obeying(tmp_path, *allowed, *forbidden))
    assert found == dict.fromkeys(allowed) | dict.fromkeys(forbidden, "Forbidden by robots.txt")
    assert hosts.count("/robots.txt") == dict.fromkeys([*hosts.robots, "from.test"], 1)
    assert hosts.count("/private").keys() == {urlsplit(url).netloc for url in allowed}


class DisobeyingSpider(SeedSpider):
    """Its links do not obey; and it downloads one page past the scheduler."""

    async def parse(self, response: Response) -> Any:  # type: ignore[override]
        output = await super().parse(response)
        links = [item for item in output if isinstance(item, Request)]
        for link in links:
            link.meta["dont_obey_robotstxt"] = True
        if links:
            try:
                await self.crawler.engine.download_async(Request("http://other.test/private"))
            except Exception as error:  # noqa: BLE001
                self.crawler.stats.set_value("said", str(error))
        return output


def test_a_spider_may_disobey_and_what_passes_the_scheduler_by_is_checked(tmp_path: Path, hosts: Hosts) -> None:
    """`dont_obey_robotstxt` as in Scrapy; a download of the spider's own waits for the file."""
    hosts.robots = {"h.test": FORBIDS, "other.test": FORBIDS}
    engine.ANSWERS["/private/link"] = page
    seeds = [{"url": "http://h.test/public", "meta": {"url_id": "x"}}]
    found = crawl(tmp_path, seeds, DisobeyingSpider, ROBOTSTXT_OBEY=True)
    assert {document["description"] for document in found.documents.values()} == {None}
    assert found.stats["said"] == "Forbidden by robots.txt"
    assert hosts.jobs == [None, None]  # the files belong to no seed
    assert hosts.count("/robots.txt") == {"h.test": 1, "other.test": 1}


def test_rules_go_by_the_user_agent(tmp_path: Path, hosts: Hosts) -> None:
    hosts.robots["h.test"] = "User-agent: mine\nDisallow: /\n"
    seeds = [seed("http://h.test/public"), seed("http://h.test/public/1", headers={"User-Agent": "mine"})]
    found = crawl(tmp_path / "1", seeds, ROBOTSTXT_OBEY=True)
    assert list(said(found).values()).count("Forbidden by robots.txt") == 1
    found = crawl(tmp_path / "2", seeds, ROBOTSTXT_OBEY=True, ROBOTSTXT_USER_AGENT="mine")
    assert set(said(found).values()) == {"Forbidden by robots.txt"}


def test_crawl_delay_becomes_the_delay_of_the_host(tmp_path: Path, hosts: Hosts) -> None:
    hosts.robots = {
        "slow.test": "User-agent: *\nCrawl-delay: 3\nDisallow: /private\n",
        "snail.test": "User-agent: *\nCrawl-delay: 3000\n",
    }
    names = ("slow.test", "snail.test", "fast.test")
    urls = [f"http://{name}/public/{number}" for number in range(3) for name in names]
    found = obeying(tmp_path, *urls, "http://slow.test/private", SITE_CRAWL_DELAY_MAX_SECONDS=5)
    assert len(found.documents) == 10
    slow, snail, fast = map(hosts.times, names)
    assert len(slow) == len(snail) == len(fast) == 4
    assert min(gaps(slow)) > 2.7
    assert min(gaps(snail)) > 4.7
    assert sum(gaps(slow)) < 30
    assert fast[-1] < slow[2]


def test_the_larger_of_crawl_delay_and_download_delay_counts(tmp_path: Path, hosts: Hosts) -> None:
    hosts.robots["h.test"] = "User-agent: *\nCrawl-delay: 0.5\n"
    urls = [f"http://h.test/public/{number}" for number in range(3)]
    obeying(tmp_path, *urls, DOWNLOAD_DELAY=3, DOWNLOAD_DELAY_JITTER=0)
    moments = hosts.times("h.test")
    assert len(moments) == 4
    assert min(gaps(moments)) > 2.7


def test_what_is_forbidden_takes_no_turn_of_its_host(tmp_path: Path, hosts: Hosts) -> None:
    hosts.robots["h.test"] = "User-agent: *\nDisallow: /public/\n"
    urls = [f"http://h.test/public/{number}" for number in range(20)]
    found = obeying(tmp_path, *urls, "http://h.test/public", DOWNLOAD_DELAY=0.5, CONCURRENT_REQUESTS_PER_DOMAIN=1)
    assert len(found.documents) == 21
    (between,) = gaps(hosts.times("h.test"))
    assert between < 4  # not ten seconds
