"""Results that go with the offsets of their seeds: between loop and thread, and in whole crawls."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from scrapy import Request
from scrapy.http import Response

from site_spider import settings as defaults
from site_spider.adapters.local.log import LocalConsumer, LocalSeedLog
from site_spider.contracts.seed_log import Listener, Message, Partition, Position
from site_spider.contracts.sink import Exchange, Record
from site_spider.engine.background import Background
from site_spider.errors import CommitInDoubt, ConfigError, LogUnavailable, SinkRejected
from site_spider.frontier.spill import Spill, TopicPartitions
from site_spider.ledger import metadata as commit_metadata
from site_spider.ledger.completion import Completion, Job, SeedListener, job_of
from site_spider.ledger.ledger import Ledger, Outcome, SeedInFlight
from site_spider.results.batches_and_retries import BatchLimits
from site_spider.results.commits import Member
from site_spider.results.exactly_once import ExactlyOnce, TransactionOutcome
from site_spider.results.transaction_queue import Item, Link, Transaction
from site_spider.seed.seed import FIRST_WRITTEN, MOVED, parse_seed
from site_spider.service.config import ServiceSettings
from site_spider.spiders.crawl_spider import SeedSpider, to_topic
from tests.adapters.warc.test_sink import files
from tests.contracts.folded_results import records_of
from tests.in_process import engine
from tests.in_process.engine import Crawled, crawl, page, settings_for
from tests.in_process.extraction import in_a_thread
from tests.observe.test_snapshot import Snapping

P, Q = Partition("seeds", 0), Partition("seeds", 1)


class ScriptedConsumer:
    """Answers as told, in order; then all is well."""

    def __init__(self, *answers: Exception | Mapping[int, str] | bool) -> None:
        self.answers = list(answers)
        self.stored: list[list[str]] = []
        self.committed: list[dict[Partition, Position]] = []
        self.asked: list[dict[Partition, Position]] = []

    def commit_with(self, items: Sequence[Any], positions: Mapping[Partition, Position]) -> Mapping[int, str]:
        answer = self.answers.pop(0) if self.answers else {}
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Mapping)
        if not answer:
            self.stored.append([item.key for item in items])
            self.committed.append(dict(positions))
        return answer

    def was_committed(self, positions: Mapping[Partition, Position]) -> bool:
        self.asked.append(dict(positions))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, bool)
        return answer


class Told(list[tuple[Callable[..., None], tuple[Any, ...]]]):
    """Calls to the loop, which wait until the test lets them through."""

    def __call__(self, call: Callable[..., None], *arguments: Any) -> None:
        self.append((call, arguments))


class Thread:
    def __init__(self, commits: ExactlyOnce, told: Told, consumer: ScriptedConsumer, *mine: Partition) -> None:
        self.commits = commits
        self.consumer = consumer
        self.mine = set(mine)
        self.told = told

    def look(self) -> None:
        self.commits.look(self.consumer, self.mine)  # type: ignore[arg-type]

    def reach_the_loop(self) -> None:
        told = self.told.copy()
        self.told.clear()
        for call, arguments in told:
            call(*arguments)


def transaction(*partitions: Partition) -> Transaction:
    return Transaction((), {partition: Position(7) for partition in partitions})


MEMBER = Member(("seeds",), "group")


class ThreadAlone(ExactlyOnce):
    """The test puts transactions together, and sees what becomes of them."""

    def __init__(self, told: Told) -> None:
        parts: Any = None
        super().__init__(Completion(Ledger()), parts, parts, 0, MEMBER, told, parts, parts, lambda _topic: "", parts)
        self.outcomes: list[TransactionOutcome] = []

    def put(self, transaction: Transaction) -> None:
        self._waiting = transaction, self._heard_leaves

    def _settled(self, outcome: TransactionOutcome) -> None:
        self.outcomes.append(outcome)


# --- The thread's half ---


async def test_a_transaction_of_an_earlier_assignment_is_refused() -> None:
    """Also when its partition is back already, and when it was put together before the loop had heard."""
    commits = ThreadAlone(told := Told())
    thread = Thread(commits, told, ScriptedConsumer(), P)
    commits.put(transaction(P))
    commits.forget([P])
    thread.look()
    commits.put(transaction(P))
    thread.reach_the_loop()  # hears of the leave only now
    thread.look()
    commits.put(transaction(P))
    thread.look()
    thread.reach_the_loop()
    assert [outcome.committed for outcome in commits.outcomes] == [False, False, True]
    assert len(thread.consumer.committed) == 1


async def test_a_transaction_with_a_foreign_partition_is_refused() -> None:
    commits = ThreadAlone(told := Told())
    thread = Thread(commits, told, ScriptedConsumer(), P)
    commits.put(transaction(P, Q))
    thread.look()
    thread.reach_the_loop()
    assert commits.outcomes == [TransactionOutcome(committed=False)]
    assert thread.consumer.committed == []


@pytest.mark.parametrize("committed", [True, False])
async def test_a_transaction_in_doubt_is_asked_after_before_anything_else_is_committed(
    monkeypatch: pytest.MonkeyPatch, *, committed: bool
) -> None:
    """Until there is an answer; of partitions that have left meanwhile nothing is asked."""
    monkeypatch.setattr("site_spider.results.exactly_once._ASK_SECONDS", 0.0)
    commits = ThreadAlone(told := Told())
    consumer = ScriptedConsumer(CommitInDoubt("?"), LogUnavailable("away"), committed)
    thread = Thread(commits, told, consumer, P, Q)
    commits.put(transaction(P, Q))
    thread.look()
    assert commits.is_awaited
    commits.forget([Q])
    thread.look()
    assert consumer.committed == []
    thread.look()
    assert consumer.asked == [{P: Position(7)}] * 2
    thread.reach_the_loop()
    assert commits.outcomes == [TransactionOutcome(committed)]


async def test_while_a_transaction_is_in_doubt_the_seed_log_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """So nothing new begins when others may own the partitions, as with any commit without an answer."""
    now = [100.0]
    monkeypatch.setattr("site_spider.runtime.monotonic", lambda: now[0])
    commits = ThreadAlone(told := Told())
    commits._silence.joined(10.0)
    thread = Thread(commits, told, ScriptedConsumer(CommitInDoubt("?"), LogUnavailable("away"), True), P)
    commits.put(transaction(P))
    thread.look()
    now[0] += 9.0
    thread.look()
    assert commits.is_cut_off
    now[0] += 9.0
    thread.look()
    assert not commits.is_cut_off


# --- The loop's half ---


class Crawl:
    """Everything but the engine: seeds are taken, results kept, and the thread runs when it is told to."""

    def __init__(self, *answers: Exception | Mapping[int, str] | bool, backlog_bytes: int = 10_000) -> None:
        self.completion = Completion(Ledger())
        self.given_up: list[str] = []
        self.faults: dict[str, str] = {}
        self.failed: list[BaseException] = []
        told = Told()
        self.together = ExactlyOnce(
            self.completion,
            self,  # type: ignore[arg-type] # its own dead letters
            BatchLimits(age_seconds=0.0),
            backlog_bytes,
            MEMBER,
            told,
            urgent=(),
            on_change=lambda: None,
            fault_of=lambda topic: self.faults.get(topic, ""),
            background=Background(self.failed.append),
        )
        self.completion.add(self.together)
        self.thread = Thread(self.together, told, ScriptedConsumer(*answers), P)
        self.completion.assigned({P: Position(0)})

    def give_up(self, entry: SeedInFlight, reason: str) -> None:
        self.given_up.append(reason)
        self.completion.ledger.hold(entry)

    def begin(self, offset: int) -> Job:
        message = Message(P, offset, None, b'{"url": "http://host.test/"}')
        seed = parse_seed(message.value, frozenset())
        entry = self.completion.take(message, seed)
        entry.reads(seed)
        return Job(Request("http://host.test/"), entry)

    def end(self, entry: SeedInFlight) -> None:
        self.completion.ledger.decide(entry, Outcome.RESULT)
        self.completion.release(entry)

    def finish(self, request: Request) -> None:
        job = job_of(request)
        job.written = True
        self.completion.ledger.decide(job.entry, Outcome.RESULT)
        self.completion.ended(request)

    def run(self) -> None:
        self.thread.look()
        self.thread.reach_the_loop()

    @property
    def committed(self) -> list[int]:
        return [positions[P].offset for positions in self.thread.consumer.committed]


def record(key: str, size_bytes: int = 100) -> Record:
    return Record(key, {}, size_bytes)


class BeginsTheNext(SeedListener):
    """Each seed that is complete lets another begin, and that has to be committed first."""

    def __init__(self, crawl: Crawl) -> None:
        self.crawl = crawl

    def ended(self, entry: SeedInFlight) -> None:
        self.crawl.together.commit_first(self.crawl.completion.ledger.positions(), lambda: None)


async def test_what_begins_when_one_seed_of_a_transaction_is_complete_does_not_undo_the_others() -> None:
    """Positions never go back, or a kill at that moment would have the others done twice."""
    crawl = Crawl()
    crawl.completion.add(BeginsTheNext(crawl))
    roots = [crawl.begin(offset) for offset in range(4)]
    crawl.together.commit_first(crawl.completion.ledger.positions(), lambda: None)  # occupies the thread
    for root in roots:
        crawl.together.keep(root, record(str(root.entry.offset)))
        crawl.end(root.entry)
    for _ in range(4):
        crawl.run()
    assert crawl.thread.consumer.stored[1] == ["0", "1", "2", "3"]
    assert crawl.committed[0] == 0
    assert set(crawl.committed[1:]) == {4}


@pytest.mark.parametrize("position", [Position(0), None])
async def test_an_outage_ends_also_when_the_partition_that_met_it_has_left(
    monkeypatch: pytest.MonkeyPatch, position: Position | None
) -> None:
    """Nothing is left to be committed, and while the sink counts as away nothing begins."""
    for name in ("_RETRY_SECONDS", "_COMMIT_SECONDS"):
        monkeypatch.setattr(f"site_spider.results.exactly_once.{name}", 0.0)

    crawl = Crawl()
    crawl.completion.assigned({Q: position})
    crawl.thread.mine = {P, Q}
    crawl.together.tick()
    crawl.run()
    crawl.thread.consumer.answers.append(LogUnavailable("the group is rebalancing"))
    root = crawl.begin(0)
    crawl.together.keep(root, record("a"))
    crawl.end(root.entry)
    crawl.thread.look()
    crawl.completion.lost([P])
    crawl.thread.commits.forget([P])
    crawl.thread.mine = {Q}
    for _ in range(5):
        crawl.run()
        crawl.together.tick()
    assert not crawl.together.sink_away


async def test_what_was_put_together_before_the_loop_had_heard_of_a_leave_is_not_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The partition is back already. What was committed of it before is committed anew, whatever it says."""
    for name in ("_PAUSE_SECONDS", "_COMMIT_SECONDS"):
        monkeypatch.setattr(f"site_spider.results.exactly_once.{name}", 0.0)
    crawl = Crawl()
    crawl.together.tick()
    crawl.run()
    assert crawl.committed == [0]
    root = crawl.begin(0)
    crawl.together.keep(root, record("a"))
    crawl.together.forget([P])
    crawl.end(root.entry)
    crawl.thread.look()
    assert crawl.committed == [0]
    crawl.completion.lost([P])
    crawl.completion.assigned({P: Position(0)})
    crawl.thread.reach_the_loop()
    crawl.run()
    assert (crawl.committed, crawl.thread.consumer.stored) == ([0, 0], [[], []])


async def test_what_waits_for_a_commit_waits_for_the_next_one_when_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site_spider.results.exactly_once._RETRY_SECONDS", 0.0)
    crawl, done = Crawl(LogUnavailable("away")), list[str]()
    for name in ("first", "second"):
        crawl.together.commit_first(crawl.completion.ledger.positions(), partial(done.append, name))
    crawl.run()
    assert done == []
    crawl.run()
    assert done == ["first", "second"]
    crawl.run()
    assert (done, crawl.committed) == (["first", "second"], [0])


def store_together(crawl: Crawl, *roots: Job) -> None:
    """Their results are of one transaction, because the thread is occupied before."""
    crawl.together.commit_first(crawl.completion.ledger.positions(), lambda: None)
    crawl.thread.consumer.answers.insert(0, {})
    for root in roots:
        crawl.together.keep(root, record(str(root.entry.offset)))
        crawl.end(root.entry)
    crawl.run()
    crawl.run()


async def test_each_dead_letter_says_why_its_own_result_was_refused() -> None:
    """Of several in one transaction; of one seed's results it is the first."""
    crawl = Crawl({0: "no words", 2: "too large", 3: "too deep"})
    roots = [crawl.begin(offset) for offset in range(3)]
    crawl.together.keep(roots[2], record("more"))
    store_together(crawl, *roots)
    assert crawl.given_up == ["no words", "too large"]


async def test_a_link_to_a_topic_that_is_missing_is_not_kept() -> None:
    """And when the topic is there, it is."""
    crawl = Crawl()
    crawl.faults["details"] = "it does not exist"
    root = crawl.begin(0)
    for _ in range(2):
        with pytest.raises(SinkRejected, match="it does not exist"):
            await asyncio.wrap_future(crawl.together.spill(root.entry, "details", b"link", b"{}", ()))
    crawl.faults.clear()
    await asyncio.wrap_future(crawl.together.spill(root.entry, "details", b"link", b"{}", ()))
    assert crawl.failed == []
    crawl.end(root.entry)
    crawl.run()
    assert crawl.thread.consumer.stored[-1] == [b"link"]


async def test_a_link_is_kept_when_its_topic_cannot_be_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    """Else its seed would never end."""
    crawl = Crawl()
    crawl.faults = None  # type: ignore[assignment] # which raises
    await asyncio.wrap_future(crawl.together.spill(crawl.begin(0).entry, "details", b"link", b"{}", ()))
    assert "Topic details could not be asked for" in caplog.text


@pytest.mark.parametrize("fault", ["it was deleted", ""])
async def test_a_topic_that_went_while_its_link_was_kept_costs_that_seed_alone(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """An outage is none of that, and is waited for."""
    monkeypatch.setattr("site_spider.results.exactly_once._RETRY_SECONDS", 0.0)
    crawl = Crawl(LogUnavailable("no answer"))
    good, bad = crawl.begin(0), crawl.begin(1)
    await asyncio.wrap_future(crawl.together.spill(bad.entry, "details", b"link", b"{}", ()))
    crawl.faults["details"] = fault
    store_together(crawl, good, bad)
    assert (crawl.given_up, crawl.together.sink_away) == ((["it was deleted"], "") if fault else ([], "kafka"))
    crawl.run()
    stored = ["0"] if fault else ["0", b"link", "1"]
    assert (crawl.thread.consumer.stored[-1], crawl.together.sink_away) == (stored, "")


async def test_a_seed_whose_kept_results_are_dropped_is_done_anew_when_its_partition_comes_back() -> None:
    """Whether they were waiting for their tree, for a transaction, or in one that was not stored."""
    crawl = Crawl()
    roots = [crawl.begin(offset) for offset in range(4)]
    requests = {root: Request(root.url) for root in roots}
    for root, request in requests.items():
        crawl.completion.begin(request, root)
    crawl.together.keep(roots[0], record("open"))
    crawl.together.keep(roots[1], record("under way"))
    crawl.finish(requests[roots[1]])
    crawl.together.keep(roots[2], record("ready"))
    crawl.finish(requests[roots[2]])
    crawl.completion.lost([P])
    crawl.thread.commits.forget([P])
    crawl.run()
    crawl.run()
    crawl.together.keep(roots[3], record("late"))
    for root in (roots[0], roots[3]):
        crawl.finish(requests[root])
    assert crawl.thread.consumer.stored == []
    crawl.completion.assigned({P: Position(0)})
    for root in roots:
        replays = crawl.completion.repeats
        assert replays.outcome(root.entry.message) is None
        assert not replays.wait(root.entry.message, lambda _outcome: None)


async def test_only_what_open_trees_keep_makes_it_crowded() -> None:
    """What is ready leaves by itself, so nothing has to end for it."""
    crawl = Crawl(backlog_bytes=1000)
    root = crawl.begin(0)
    crawl.together.keep(root, record("a", 1000))
    assert crawl.together.is_crowded
    crawl.end(root.entry)
    assert not crawl.together.is_crowded
    assert not crawl.together.is_taking()


# --- Settings ---


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"SITE_SINKS": "kafka"}, "SITE_KAFKA_BROKERS"),
        ({"SITE_KAFKA_BROKERS": "kafka:9092", "SITE_SINKS": "local"}, "Add kafka"),
    ],
)
def test_where_it_cannot_be_had_the_crawl_does_not_start(tmp_path: Any, settings: dict[str, str], remedy: str) -> None:
    with pytest.raises(ConfigError, match="SITE_KAFKA_EXACTLY_ONCE") as caught:
        ServiceSettings(settings_for(tmp_path, SITE_KAFKA_EXACTLY_ONCE="true", **settings))
    assert remedy in str(caught.value)


HOST = "http://host.test"
LINKS = 4


class PlayedConsumer(LocalConsumer):
    """Stores items in a list. Notes seeds that a position calls complete while their trees are not stored."""

    stored: ClassVar[list[Record]] = []
    transactions: ClassVar[int] = 0
    away: ClassVar[int] = 0  # so many of the next transactions fail
    refuses: ClassVar[str] = ""  # the url_id of a result

    def commit_with(self, items: Sequence[Item], positions: Mapping[Partition, Position]) -> Mapping[int, str]:
        cls = type(self)
        if items and cls.away:
            cls.away -= 1
            raise LogUnavailable("the played log is away")
        results = [item for item in items if isinstance(item, Record)]
        if cls.refuses in {result.key for result in results}:
            numbers = (n for n, item in enumerate(items) if isinstance(item, Record) and item.key == cls.refuses)
            return dict.fromkeys(numbers, "not this one")
        cls.stored.extend(results)
        cls.transactions += bool(results)
        for link in (item for item in items if isinstance(item, Link)):
            producer = PlayedLog.log.producer()
            producer.send("seeds", link.key, link.value, link.headers).result(300)
            producer.close()
        if positions:
            super().commit(positions)
        told = sum(_complete(position) for position in positions.values())
        PlayedLog.told.append((told, len(cls.stored)))
        return {}

    def commit(self, positions: Mapping[Partition, Position]) -> None:
        self.commit_with((), positions)

    def was_committed(self, positions: Mapping[Partition, Position]) -> bool:
        raise AssertionError("nothing was in doubt")


class PlayedLog(LocalSeedLog):
    """One partition."""

    log: ClassVar[LocalSeedLog]
    told: ClassVar[list[tuple[int, int]]] = []  # seeds complete and results stored, after each commit

    def __init__(self, folder: Path, partitions: int = 1, keep_seconds: float = 0.0) -> None:
        super().__init__(folder, partitions, keep_seconds)
        type(self).log = self

    def fault_of(self, topic: str) -> str:
        return f"Topic {topic} does not exist."

    def consumer(self, topics: tuple[str, ...], group: str, listener: Listener, **_how: bool) -> PlayedConsumer:
        return PlayedConsumer(self._folder, topics, group, listener)


def _complete(position: Position) -> int:
    runs = commit_metadata.decode(*position).complete
    return position.offset + sum(end - start for start, end in runs)


@pytest.fixture(autouse=True)
def clean() -> None:
    PlayedConsumer.stored.clear()
    PlayedLog.told.clear()
    PlayedConsumer.transactions = PlayedConsumer.away = 0
    PlayedConsumer.refuses = ""


def linked(request: Request) -> Response:
    """A page with links to pages of its own."""
    links = "".join(f'<a href="{request.url}/{number}">x</a>' for number in range(LINKS))
    return page(request, links + "word " * 200)


def crawl_trees(folder: Path, count: int, seeds: Sequence[Mapping[str, Any]] = (), **settings: Any) -> Crawled:
    for number in range(count):
        engine.ANSWERS[f"/tree{number}"] = linked
    trees = [{"url": f"{HOST}/tree{number}", "meta": {"url_id": f"t{number}"}} for number in range(count)]
    return crawl(
        folder,
        [*trees, *seeds],
        SITE_KAFKA_BROKERS="played:9092",
        SITE_SEED_LOG_CLASSES=defaults.SITE_SEED_LOG_CLASSES | {"kafka": f"{__name__}.PlayedLog"},
        **{"SITE_SINKS": "local,kafka", "SITE_KAFKA_EXACTLY_ONCE": True, **settings},
    )


def stored_keys() -> Counter[str]:
    return Counter(record.key for record in PlayedConsumer.stored)


class ItemSpider(SeedSpider):
    """Gives items on every page of a tree."""

    name = "shop"

    async def parse(self, response: Response) -> AsyncIterator[Any]:  # type: ignore[override,misc]
        yield {"title": "first"}
        for output in await super().parse(response):
            yield output
        yield {"title": "second"}


def test_each_result_and_item_is_stored_once_and_with_its_seed(tmp_path: Path) -> None:
    """After every commit just the trees of the seeds that are complete are stored."""
    crawled = crawl_trees(tmp_path, 12, spider=ItemSpider)
    assert crawled.lag == 0
    kinds = Counter((record.kind, record.key) for record in PlayedConsumer.stored)
    assert set(kinds.values()) == {1}
    assert {key for kind, key in kinds if kind == "result"} == set(crawled.documents)
    assert {key for kind, key in kinds if kind == "item"} == set(crawled.items)
    assert len(crawled.items) == 2 * len(crawled.documents) == 2 * 12 * (1 + LINKS)
    assert {stored - told * 3 * (1 + LINKS) for told, stored in PlayedLog.told} == {0}


def test_the_result_of_a_seed_that_comes_alone_is_committed_at_once(tmp_path: Path) -> None:
    """A transaction that is not full would wait for longer than the test."""
    crawled = crawl_trees(tmp_path, 1, timeout_seconds=60, SITE_SINK_FLUSH_SECONDS=36_000)
    assert (crawled.lag, PlayedConsumer.transactions) == (0, 1)


def test_the_sink_of_transactions_is_seen_as_others_are(tmp_path: Path) -> None:
    crawl_trees(tmp_path, 1, seeds=[{"url": f"{HOST}/last"}], spider=Snapping)
    kafka, local = Snapping.taken.pop()["sinks"]
    assert kafka.keys() == local.keys()
    assert (kafka["name"], kafka["available"]) == ("kafka", True)


@in_a_thread()
def test_a_merged_page_is_stored_with_its_tree_as_its_canonical_page(tmp_path: Path) -> None:
    """Its record is the last one of that document."""
    text = "<link rel=canonical href=/a>The harbour lies behind a long wall."
    engine.ANSWERS["/a"] = lambda request: page(request, f"{text}<a href=/b></a>")
    engine.ANSWERS["/b"] = lambda request: page(request, text)
    settings = {"SITE_TEXT": "plain", "SITE_CANONICAL": "merge"}
    crawled = crawl_trees(tmp_path, 0, seeds=[{"url": f"{HOST}/a"}], **settings)
    assert crawled.lag == 0
    (key,) = crawled.documents
    assert {record.key for record in PlayedConsumer.stored} == {key}
    assert PlayedConsumer.stored[-1].document["additional_urls"] == [f"{HOST}/b"]


def test_entries_of_sitemaps_are_stored_once_and_with_their_seed(tmp_path: Path) -> None:
    """With what the file says of them, also those that its process hands on."""
    entries = "".join(f"<url><loc>/{n}</loc><lastmod>2026-01-02</lastmod></url>" for n in range(120))
    bodies = {
        "/index": "<sitemapindex><sitemap><loc>/map</loc></sitemap></sitemapindex>",
        "/map": f"<urlset>{entries}</urlset>",
    }
    for path, body in bodies.items():
        engine.ANSWERS[path] = lambda request, body=body: Response(request.url, body=body.encode())
    engine.ANSWERS |= {f"/{n}": lambda request: page(request, f"<p>{request.url}") for n in range(120)}
    for name, settings in (("here", {}), ("on", {"SITE_LINKS_TO": "kafka"})):
        PlayedConsumer.stored.clear()
        crawled = crawl_trees(tmp_path / name, 0, seeds=[{"url": f"{HOST}/index"}], **settings)
        assert crawled.lag == 0
        assert stored_keys() == dict.fromkeys(crawled.documents, 1)
        said = [record.document["meta"].get("sitemap", {}) for record in PlayedConsumer.stored[2:]]
        assert [one["lastmod"] for one in said] == ["2026-01-02"] * 120


def test_a_seed_that_goes_on_elsewhere_says_when_it_was_written_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what was stored before its process died counts as known, and its links are not followed."""
    monkeypatch.setattr(TopicPartitions, "owns", lambda _self, host, _topic: host != "far.test")
    engine.ANSWERS["/moved"] = lambda request: page(request, status=302, Location="http://far.test/here")
    crawled = crawl_trees(tmp_path, 0, seeds=[{"url": f"{HOST}/moved"}], SITE_HOST_OWNERSHIP=True)
    assert (crawled.lag, len(crawled.documents)) == (0, 1)
    first, second = PlayedLog.log.read("seeds")
    assert dict(second.headers) == {MOVED: b"", FIRST_WRITTEN: str(first.timestamp_ms).encode()}


@pytest.mark.parametrize("together", [True, False])
def test_a_link_that_goes_on_elsewhere_is_as_old_as_its_seed(tmp_path: Path, *, together: bool) -> None:
    """Or its page, stored before its process died, would count as unchanged, and its links would be lost."""
    sinks = "local,kafka" if together else "local"
    crawled = crawl_trees(tmp_path, 1, SITE_LINKS_TO="kafka", SITE_KAFKA_EXACTLY_ONCE=together, SITE_SINKS=sinks)
    assert (crawled.lag, len(crawled.documents)) == (0, 1 + LINKS)
    seed, *links = PlayedLog.log.read("seeds")
    assert [dict(link.headers) for link in links] == [{FIRST_WRITTEN: str(seed.timestamp_ms).encode()}] * LINKS


def test_an_archive_has_each_exchange_once_though_transactions_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is acknowledged before the transaction, which is made again without it."""
    monkeypatch.setattr("site_spider.results.exactly_once._RETRY_SECONDS", 0.05)
    PlayedConsumer.away = 3

    def answer(request: Request) -> Response:
        response, job = page(request, request.url), job_of(request)
        head = b"HTTP/1.1 200 OK\r\n\r\n"
        job.exchanged(Exchange(request.url, b"GET / HTTP/1.1\r\n\r\n", head, response.body, 0.0))
        return response

    for tree in range(4):
        engine.ANSWERS |= {f"/tree{tree}/{link}": answer for link in range(LINKS)}
    crawled = crawl_trees(tmp_path, 4, SITE_SINKS="local,kafka,warc")
    assert (crawled.lag, PlayedConsumer.away) == (0, 0)
    assert stored_keys() == dict.fromkeys(crawled.documents, 1)
    archived = [record for path in files(tmp_path) for record in records_of(path)]
    kinds = Counter(record.kind for record in archived)
    assert (kinds["response"], kinds["revisit"], kinds["metadata"]) == (4 * LINKS, 0, 4 * (1 + LINKS))
    assert {one.key for one in archived if one.kind == "metadata"} == set(crawled.documents)


@pytest.mark.parametrize(
    ("refused", "error"), [("t3", b"not this one"), ("t1-2", b"item t1-2: not this one (page http://host.test/tree1)")]
)
def test_a_refused_record_is_one_dead_letter(tmp_path: Path, refused: str, error: bytes) -> None:
    PlayedConsumer.refuses = refused
    crawled = crawl_trees(tmp_path, 5, spider=ItemSpider)
    (letter,) = crawled.dead_letters
    assert dict(letter.headers)["error"] == error
    assert crawled.seeds["dead_lettered"] == 1
    assert crawled.lag == 0
    assert stored_keys() == dict.fromkeys((crawled.documents | crawled.items).keys() - {refused}, 1)


def test_a_right_that_is_taken_away_ends_the_crawl_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is left who could commit what is ready, so it is not waited for; and it is said once."""

    def refused(*_arguments: Any) -> Mapping[int, str]:
        raise ConfigError("Kafka refuses this process.")

    monkeypatch.setattr(PlayedConsumer, "commit_with", refused)
    began = time.monotonic()
    crawled = crawl_trees(tmp_path, 2, SITE_STOP_GRACE_SECONDS=120)
    assert time.monotonic() - began < 60
    assert (crawled.exit_code, crawled.lag) == (78, 2)
    assert sum("The crawl cannot go on" in line for line in caplog.messages) == 1


class SendsAway(SeedSpider):
    def parse(self, response: Response) -> Iterator[Any]:  # type: ignore[override]
        if "tree" in response.url:
            yield from (to_topic(Request(f"{HOST}/{number}"), "details") for number in range(3))


def test_links_to_a_topic_that_does_not_exist_are_crawled_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As without transactions; it is said once."""
    crawled = crawl_trees(tmp_path, 1, spider=SendsAway)
    assert crawled.lag == 0
    assert stored_keys() == dict.fromkeys(crawled.documents, 1)
    assert len(crawled.documents) == 4
    [said] = [line for line in caplog.messages if "is crawled here" in line]
    assert "Topic details does not exist." in said


def test_trees_that_keep_too_much_hand_their_links_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As seeds, in the transaction of the tree; each page is stored once, and the crawl comes to its end."""
    look, were_crowded = Spill.look, [False]

    async def look_and_tell(spill: Spill) -> None:
        were_crowded.append(spill._commits.is_crowded)
        await look(spill)

    async def until_it_was_looked(request: Request) -> Response:
        while not any(were_crowded):
            await asyncio.sleep(0.01)
        return page(request, "word " * 200)

    monkeypatch.setattr(Spill, "look", look_and_tell)
    for number in range(12):
        engine.ANSWERS[f"/tree{number}/0"] = lambda request: page(request, "word " * 200)
        for link in range(1, LINKS):
            engine.ANSWERS[f"/tree{number}/{link}"] = until_it_was_looked
    crawled = crawl_trees(tmp_path, 12, SITE_SINK_BACKLOG_BYTES=3000, CONCURRENT_REQUESTS=2)
    assert crawled.lag == 0
    assert stored_keys() == dict.fromkeys(crawled.documents, 1)
    assert len(PlayedConsumer.stored) == 12 * (1 + LINKS)
    assert crawled.seeds["consumed"] > 12
