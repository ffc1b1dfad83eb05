"""Requests that leave for the seed topic and come back as seeds, in the real engine."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

import confluent_kafka
import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response

from site_spider.adapters.local.log import LocalSeedLog
from site_spider.adapters.local.log_file import LocalProducer
from site_spider.contracts.seed_log import Partition
from site_spider.engine.background import Background
from site_spider.errors import LogUnavailable, SinkRejected
from site_spider.frontier import spill
from site_spider.frontier.spill import SeedWriter, TopicPartitions
from site_spider.intake import room
from site_spider.ledger.ledger import Ledger
from site_spider.ledger.metadata import Suspicion
from site_spider.page.url import url_id
from site_spider.service.service import SeedService
from site_spider.spiders.crawl_spider import SeedSpider
from site_spider.tasks import traps
from tests.in_process import engine
from tests.in_process.engine import crawl, page
from tests.in_process.linked_site import HOST, Site, seed, site
from tests.intake.test_deaths import leave_behind

__all__ = ["site"]

TO_THE_TOPIC = {"SITE_LINKS_TO": "kafka"}


@pytest.fixture(autouse=True)
def _no_traps(monkeypatch: pytest.MonkeyPatch) -> None:
    """All pages of the site have one text."""
    monkeypatch.setattr(traps, "_PAGES", 10**9)


def messages(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(message.value or b"") for message in LocalSeedLog(folder).read("seeds")]


def has_tree(site: Site, width: int) -> None:
    """/root, and two levels below it; every page links to the root and to all of its neighbours."""
    level = [f"{number}" for number in range(width)]
    site.has("root", *level)
    for name in level:
        site.has(name, "root", *level, *(f"{name}-{number}" for number in range(width)))
        for number in range(width):
            site.has(f"{name}-{number}", "root", *level)


def test_every_link_goes_by_the_topic_and_every_page_is_fetched_once(tmp_path: Path, site: Site) -> None:
    has_tree(site, 5)  # its navigation is on each of 31 pages; what was sent is remembered as sent
    found = crawl(tmp_path / "topic", [seed("root", meta={"task_id": "t"})], **TO_THE_TOPIC)
    assert len(site.visits) == len(messages(tmp_path / "topic")) == found.stats["spill/sent"] + 1 == 31
    assert set(site.visits.values()) == {1}
    assert found.lag == 0
    assert found.seeds["completed_with_result"] == 31
    site.visits.clear()
    kept = crawl(tmp_path / "memory", [seed("root", meta={"task_id": "t"})])
    assert kept.seeds["completed_with_result"] == 1
    names = ("url", "parent_url_id", "seed_url_id", "depth", "task_id", "status", "body")
    ids = {url_id(f"{HOST}/{path}", "t") for path in site.visits}
    assert found.documents.keys() == kept.documents.keys() == ids
    same = [name for name in names if name != "parent_url_id"]  # which page was first is a matter of luck
    for key in ids:
        ours, theirs = found.documents[key], kept.documents[key]
        assert {name: ours.get(name) for name in same} == {name: theirs.get(name) for name in same}
        assert (ours.get("parent_url_id") is None) is (theirs.get("parent_url_id") is None)


def test_a_cookie_goes_with_the_links_of_a_link_that_came_back(tmp_path: Path) -> None:
    """As far as it would have in memory: its path is not that of the page it is sent with."""
    cookie = "session=42; Path=/"
    engine.ANSWERS["/area/root"] = lambda request: page(request, "<a href=/area/near>x</a>", Set_Cookie=cookie)
    engine.ANSWERS["/area/near"] = lambda request: page(request, "<a href=/far>x</a>")
    engine.ANSWERS["/far"] = lambda request: page(request, (request.headers.get("Cookie") or b"none").decode())
    found = crawl(tmp_path, [seed("area/root")], **TO_THE_TOPIC)
    assert found.documents[url_id(f"{HOST}/far")]["body"] == "session=42"


def test_a_link_that_another_process_sent_is_filtered_when_its_page_was_done(tmp_path: Path, site: Site) -> None:
    site.has("a")
    site.has("gone", status=404)
    link, gone = (seed(path, meta={"parent_url_id": "p", "site_moved": {}}) for path in ("a", "gone"))
    found = crawl(tmp_path, [seed("a"), link, link, seed("a"), gone, gone], SITE_MAX_SEEDS_IN_FLIGHT=1)
    assert site.visits == {"a": 2, "gone": 2}
    assert (found.seeds["filtered"], found.seeds["completed_with_failure"], found.lag) == (2, 2, 0)


class Watched(SeedSpider):
    """Notes the most that ever waited, and whether seeds were polled meanwhile."""

    most = 0
    rooms: ClassVar[set[int]] = set()

    async def parse(self, response: Response) -> list[Any]:
        service = SeedService.of(self.crawler)
        load = service.parts.room.load
        Watched.most = max(Watched.most, load.requests)
        if load.is_full:
            Watched.rooms.add(service.parts.seeds.poll_room.now())
        return await super().parse(response)


@pytest.mark.parametrize(
    "limit",
    [{"SITE_FRONTIER_MAX_REQUESTS": 3}, {"SITE_FRONTIER_MAX_BYTES": 8_000}, {"SITE_HOST_MAX_REQUESTS": 3}],
    ids=["requests", "bytes", "requests of a host"],
)
def test_links_beyond_a_limit_go_to_the_topic(tmp_path: Path, site: Site, limit: dict[str, int]) -> None:
    has_tree(site, 6)
    Watched.most = 0
    Watched.rooms.clear()
    found = crawl(tmp_path, [seed("root"), seed("0-0")], Watched, CONCURRENT_REQUESTS=1, **limit)
    assert len(site.visits) == 43
    assert len(found.documents) == 43
    assert found.lag == 0
    assert 0 < Watched.most <= 20
    assert Watched.rooms <= {0}
    assert sum(site.visits.values()) <= 44  # the seed /0-0 may come after the link to it
    assert 0 < found.stats["spill/sent"] < 43


# --- a topic that is slow, or refuses ------------------------------------------------------------


def answer_links_with(monkeypatch: pytest.MonkeyPatch, answer: Callable[..., Future[None] | None]) -> None:
    """Where it is not None, in place of the topic."""
    send = LocalProducer.send

    def instead(self: LocalProducer, topic: str, key: bytes, value: bytes, headers: Any = ()) -> Future[None]:
        found = answer(self, topic, key, value) if b"site_moved" in value else None
        return send(self, topic, key, value, headers) if found is None else found

    monkeypatch.setattr(LocalProducer, "send", instead)


def test_a_topic_that_does_not_answer_holds_the_crawl_up(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_MOST_SPILLING", 100)
    held: list[tuple[Any, ...]] = []
    answers: list[int] = []  # when it has begun to: pages asked for
    send = LocalProducer.send

    def hold(*message: Any) -> Future[None] | None:
        if answers:
            return None
        held.append((*message, Future()))
        return held[-1][-1]

    def watch(crawler: Crawler) -> bool:
        parts = SeedService.of(crawler).parts
        if parts.room.load.spilling > 100 and not answers:
            assert parts.back_pressure.hindrance()
            assert parts.queues.lengths()["spilling"] > 100
            assert parts.seeds.poll_room.now() == 0
            answers.append(sum(site.visits.values()))
            for *message, future in held:
                send(*message).add_done_callback(lambda _done, future=future: future.set_result(None))
        return parts.room.load.spilling == 0 and bool(answers)

    answer_links_with(monkeypatch, hold)
    for number in range(6):
        site.has(f"hub{number}", *(f"hub{number}/{leaf}" for leaf in range(60)))
    seeds = [seed(f"hub{number}") for number in range(6)]
    found = crawl(tmp_path, seeds, until=watch, **TO_THE_TOPIC)
    assert len(held) > 100
    assert found.stats["spill/sent"] >= 120


def test_what_the_topic_refuses_is_crawled_here(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused: Future[None] = Future()
    refused.set_exception(SinkRejected("too large"))
    answer_links_with(monkeypatch, lambda *_message: refused)
    has_tree(site, 3)
    found = crawl(tmp_path, [seed("root")], **TO_THE_TOPIC)
    assert len(found.documents) == 13
    assert set(site.visits.values()) == {1}
    assert found.seeds["completed"] == 1
    assert len([line for line in caplog.messages if "is crawled here" in line]) == 1


class OwnSpider(SeedSpider):
    """Its links have something that no message can say."""

    async def parse(self, response: Response) -> list[Any]:
        result, *links = await super().parse(response)
        return [result, *(link.replace(cb_kwargs={"word": "said"}, callback=self.leaf) for link in links)]

    async def leaf(self, response: Response, word: str) -> list[Any]:
        result, *_ = await super().parse(response)
        result.description = word
        return [result]


# --- hosts of other processes ------------------------------------------------------------------


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A host that is another process': what comes back from the topic is that process' work."""
    monkeypatch.setattr(TopicPartitions, "owns", lambda self, host, _topic: host != "other.test")
    return "other.test"


def test_a_redirect_to_another_process_keeps_its_document(tmp_path: Path, site: Site, foreign: str) -> None:
    asked: Counter[str] = Counter()

    def away(request: Request) -> Response:
        asked[request.url] += 1
        return page(request, status=302, Location="http://other.test/far", Set_Cookie="a=1; Domain=test")

    def far(request: Request) -> Response:
        asked[request.url] += 1
        return page(request, "<a href=/next>n</a><a href=http://host.test/back>b</a>")

    engine.ANSWERS |= {"/away": away, "/far": far}
    site.has("next")
    meta = {"url_id": "mine", "task_id": "t", "colour": "red", "max_retry_times": 3, "seen": None}
    found = crawl(tmp_path, [seed("away", meta=meta)], SITE_HOST_OWNERSHIP=True)
    document = found.documents["mine"]
    assert asked == {"http://host.test/away": 1, "http://other.test/far": 1}
    assert (document["url"], document["final_url"]) == ("http://host.test/away", "http://other.test/far")
    assert (document["redirects"], document["task_id"]) == (1, "t")
    assert document["meta"] == {"colour": "red", "seen": None}
    assert document["status"] == 200
    assert found.seeds["spilled"] == 1
    assert found.seeds["completed_with_result"] == found.seeds["completed"] - 1
    # its links are followed from where it ended
    assert {d["url"] for d in found.documents.values()} == {"http://host.test/away", "http://other.test/next"}
    assert sorted(message.get("priority", 0) for message in messages(tmp_path)) == [0, 1, 2]


def test_a_redirected_link_keeps_its_document_too(tmp_path: Path, site: Site, foreign: str) -> None:
    """Its seed completes, and what it leads to is not followed out of the seed's scope."""
    site.has("root", "link", "link2")
    for path in ("/link", "/link2"):
        engine.ANSWERS[path] = lambda request: page(request, status=301, Location="http://other.test/far")
    engine.ANSWERS["/far"] = lambda request: page(request, "<a href=/next>n</a>")
    site.has("next")
    found = crawl(tmp_path, [seed("root", meta={"url_id": "r"})], SITE_HOST_OWNERSHIP=True)
    documents = [found.documents[url_id(f"{HOST}/{path}")] for path in ("link", "link2")]
    assert {(d["final_url"], d["parent_url_id"], d["seed_url_id"], d["depth"]) for d in documents} == {
        ("http://other.test/far", "r", "r", 1)
    }
    assert len(found.documents) == 3
    assert not site.visits["next"]
    assert found.seeds["completed_with_result"] == 3


def test_a_seed_polled_here_is_crawled_here_whatever_its_host(tmp_path: Path, site: Site, foreign: str) -> None:
    """A producer's wrong key makes no message go to and fro; its links go to the owner."""
    site.has("a", "b")
    site.has("b")
    found = crawl(tmp_path, [{"url": f"http://{foreign}/a"}], SITE_HOST_OWNERSHIP=True, RETRY_TIMES=2)
    assert site.visits == {"a": 1, "b": 1}
    assert len(messages(tmp_path)) == 2
    assert found.seeds["spilled"] == 0


def test_a_retry_of_a_link_whose_host_has_moved_is_its_new_owners(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps its document, and counts the attempt that was made here."""

    def refusing(request: Request) -> Response:
        site.visits["leaf"] += 1
        return page(request, status=503 if site.visits["leaf"] == 1 else 200)

    monkeypatch.setattr(TopicPartitions, "owns", lambda self, host, _topic: host != "other.test" or not site.visits)
    engine.ANSWERS |= {"/root": lambda request: page(request, "<a href=http://other.test/leaf>x</a>")}
    engine.ANSWERS["/leaf"] = refusing
    own = {"SITE_LINK_SCOPE": "any", "SITE_HOST_OWNERSHIP": True}
    found = crawl(tmp_path, [seed("root", meta={"url_id": "r"})], SITE_RETRY_PAUSE_SECONDS=0.1, **own)
    (leaf,) = (each for key, each in found.documents.items() if key != "r")
    assert (leaf["status"], leaf["retries"], leaf["parent_url_id"], found.stats["spill/sent"]) == (200, 1, "r", 1)
    assert (site.visits["leaf"], len(found.documents)) == (2, 2)


class Half(SeedSpider):
    """Every second of its links has something that no message can say."""

    async def parse(self, response: Response) -> list[Any]:
        result, *links = await super().parse(response)
        return [result, *(link.replace(flags=["own"]) for link in links[::2]), *links[1::2]]


@pytest.mark.parametrize("setting", [{"SITE_SEED_MAX_OPEN_SECONDS": 0.3}, {"SITE_HOST_OWNERSHIP": True}], ids=str)
def test_what_waits_is_sent_in_portions_when_its_tree_is_overdue_or_its_host_moves(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch, setting: dict[str, Any]
) -> None:
    """The event loop goes on in between; what no seed can say stays, and is looked at once."""
    monkeypatch.setattr(spill, "_MOST_AT_ONCE", 7)
    written: Counter[str] = Counter()
    write, look = SeedWriter.write, TopicPartitions.have_hosts_moved
    has_moved: list[bool] = []

    def count(self: SeedWriter, request: Request, *arguments: Any, **keywords: Any) -> Any:
        written[request.url] += 1
        return write(self, request, *arguments, **keywords)

    def look_again(self: TopicPartitions) -> bool:
        has_moved.append(bool(site.visits))
        return look(self) or has_moved[-2:] == [False, True]

    async def slow(request: Request) -> Response:
        site.visits[request.url] += 1
        await asyncio.sleep(0.2)
        return page(request)

    monkeypatch.setattr(SeedWriter, "write", count)
    monkeypatch.setattr(TopicPartitions, "have_hosts_moved", look_again)
    monkeypatch.setattr(TopicPartitions, "owns", lambda self, host, _topic: host != "other.test" or not site.visits)
    links = "".join(f"<a href=http://other.test/leaf{number}>x</a>" for number in range(60))
    engine.ANSWERS |= {"/root": lambda request: page(request, links)}
    engine.ANSWERS |= {f"/leaf{number}": slow for number in range(60)}
    found = crawl(tmp_path, [seed("root")], Half, SITE_LINK_SCOPE="any", CONCURRENT_REQUESTS=5, **setting)
    assert len(found.documents) == 61
    assert len(site.visits) == 60
    assert set(site.visits.values()) == {1}
    assert 7 < found.stats["spill/sent"] <= 30  # more than one portion
    assert set(written.values()) == {1}


def test_a_partition_may_leave_while_messages_are_on_their_way(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are sent, or not; the next owner does the seed again, and the books are right."""
    held: list[Future[None]] = []

    def hold(*_message: Any) -> Future[None]:
        held.append(Future())
        return held[-1]

    answer_links_with(monkeypatch, hold)
    state: list[tuple[int, int]] = []

    def lose(crawler: Crawler) -> bool:
        service = SeedService.of(crawler)
        if len(held) < 10:
            return False
        if not state:
            service.parts.seeds.lost(service.parts.completion.ledger.partitions())
            for number, future in enumerate(held):
                if number % 2:
                    future.set_result(None)
                else:
                    future.set_exception(SinkRejected("no"))
        state.append((service.parts.room.load.spilling, service.parts.completion.ledger.in_flight))
        return state[-1] == (0, 0)

    site.has("root", *(f"{number}" for number in range(10)))
    found = crawl(tmp_path, [seed("root")], until=lose, **TO_THE_TOPIC)
    assert found.lag == 1
    assert found.seeds["handed_back"] == 1
    assert site.visits == {"root": 1}


# --- which hosts are this process', and long trees -------------------------------------------------------


def _raise(error: BaseException) -> None:
    raise error


HOSTS = [f"host{number}.test" for number in range(200)]


def owned_by(ownership: TopicPartitions) -> Callable[[str], bool]:
    return lambda host: ownership.owns(host, "seeds")


def shared(assigned: list[int], count: int = 4) -> tuple[TopicPartitions, Ledger]:
    ledger = Ledger()
    for number in assigned:
        ledger.assign(Partition("seeds", number), None)
    partitions = TopicPartitions(["seeds"], ledger, lambda _topic: count, Background(_raise))
    asyncio.run(partitions.ask())
    return partitions, ledger


def test_a_host_belongs_where_producers_send_its_seeds() -> None:
    """By the partitioner of Kafka's own clients; each host to one process of the group."""
    ours, _ = shared([0, 2])
    theirs, _ = shared([1, 3])
    for host in HOSTS:
        number = confluent_kafka.murmur2(host.encode(), 4)
        assert ours.owns(host, "seeds") is (number in (0, 2))
        assert theirs.owns(host, "seeds") is not ours.owns(host, "seeds")


def test_an_assignment_counts_at_once_and_a_look_tells_that_hosts_have_changed_hands() -> None:
    ownership, ledger = shared([0, 1, 2, 3])
    assert all(map(owned_by(ownership), HOSTS))
    assert (ownership.have_hosts_moved(), ownership.have_hosts_moved()) == (True, False)
    for change in (ledger.revoke, lambda partition: ledger.assign(partition, None)):
        change(Partition("seeds", 0))
        assert all(map(owned_by(ownership), HOSTS)) is (change != ledger.revoke)
        assert (ownership.have_hosts_moved(), ownership.have_hosts_moved()) == (True, False)


def test_all_hosts_are_ours_while_the_partitions_are_not_known() -> None:
    def away(_topic: str) -> int:
        raise LogUnavailable("away")

    for count in (away, lambda _topic: 0):
        partitions = TopicPartitions(["seeds"], Ledger(), count, Background(_raise))
        asyncio.run(partitions.ask())
        assert all(map(owned_by(partitions), HOSTS))


# --- trees -----------------------------------------------------------------------------------------------


LINKS = 30


def has_fan(site: Site) -> None:
    """/root links to all others, each of which links to one of its own."""
    names = [f"{number}" for number in range(LINKS)]
    site.has("root", *names)
    for name in names:
        site.has(name, "root", f"{name}-leaf")
        site.has(f"{name}-leaf", "root")


def test_links_beyond_the_pages_of_a_tree_are_seeds_of_their_own(tmp_path: Path, site: Site) -> None:
    has_fan(site)
    crawl(tmp_path / "small", [seed("root")], SITE_TREE_MAX_PAGES=2 * LINKS + 1)
    assert len(messages(tmp_path / "small")) == 1
    assert len(site.visits) == 2 * LINKS + 1
    site.visits.clear()
    found = crawl(tmp_path, [seed("root")], SITE_TREE_MAX_PAGES=11)
    assert len(site.visits) == 2 * LINKS + 1
    assert set(site.visits.values()) == {1}
    assert len(messages(tmp_path)) >= 1 + LINKS - 10
    assert found.seeds["completed_with_result"] == len(messages(tmp_path))
    assert found.lag == 0


def test_a_tree_that_was_under_way_at_a_death_keeps_no_links(tmp_path: Path, site: Site) -> None:
    """Each is a seed, so that the next death counts for it alone."""
    has_fan(site)
    leave_behind(tmp_path, [seed("root")], Suspicion(1))
    found = crawl(tmp_path, [])
    assert set(site.visits.values()) == {1}
    assert len(messages(tmp_path)) >= 1 + LINKS
    assert found.lag == 0
