"""`scrapy recrawl`: what is due is produced, once, whoever dies and whoever else produces."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scrapy.http import Response

from site_spider import runtime
from site_spider.adapters.local.log import LocalSeedLog
from site_spider.adapters.local.results import FILE_NAME, RESULTS, LocalResults, LocalStore
from site_spider.commands.recrawl import Recrawl, RecrawlPlan
from site_spider.contracts.seed_log import Message, SeedLog
from site_spider.contracts.sink import Record
from site_spider.errors import LogUnavailable, SinkUnavailable, TopicMissing
from site_spider.results.recrawl import LEASE_SECONDS, Calendar, CheckRules
from site_spider.seed.seed import parse_seed
from site_spider.seed.topics import CrawlTopics
from tests.commands.project import Project
from tests.commands.test_task import shown
from tests.in_process.engine import ANSWERS, crawl
from tests.in_process.engine import page as html
from tests.tasks.test_end_in_crawl import events, told
from tests.tasks.test_pause_and_cancel import SendingLog, declare

RULES = CheckRules(3600, 2_592_000, 86_400, 21_600, 10, 3)
NAMES = (
    *("url", "method", "meta", "host", "task_id", "depth", "parent_url_id", "seed_url_id", "next_at"),
    *("status", "checked_at", "fetched_at", "interval_s", "failed_checks", "gone_checks", "gone_at"),
)


class Dead(BaseException):
    """The process is killed."""


def ago(seconds: float) -> str:
    return (runtime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def write(folder: Path, *documents: Mapping[str, Any]) -> None:
    with closing(LocalStore(folder, RESULTS)) as store:
        store.write([Record(document["url_id"], document, 1) for document in documents])


def page(number: int, checked_s: float = 100_000, **fields: Any) -> dict[str, Any]:
    said = {"status": 200, "body": "b", "host": "a.test", "checked_at": ago(checked_s)}
    said["fetched_at"] = said["checked_at"]
    return {"url_id": str(number), "url": f"http://a.test/{number}", **said, **fields}


def plan(calendar: Calendar | None = None, **fields: Any) -> RecrawlPlan:
    names = {name: name for name in NAMES}
    return RecrawlPlan(calendar or Calendar(RULES), names, "seeds", **fields)


class Desk:
    def __init__(self, folder: Path, log: SeedLog | None = None) -> None:
        self.folder, self.log = folder, log or LocalSeedLog(folder)
        self.topics = CrawlTopics.beside({"SITE_SEED_TOPIC": "seeds"})

    def run(self, reader: LocalResults | None = None, log: SeedLog | None = None, **fields: Any) -> Recrawl:
        made = Recrawl(plan(**fields), reader or LocalResults(self.folder), log or self.log, self.topics, print)
        made.run()
        return made

    def produced(self) -> list[str]:
        return [seed.url_id for seed in map(parse_seed_of, self.messages())]

    def messages(self) -> list[Message]:
        with suppress(TopicMissing):
            return list(self.log.read("seeds"))
        return []


def parse_seed_of(message: Message) -> Any:
    return parse_seed(message.value or b"")


@pytest.fixture
def desk(tmp_path: Path) -> Any:
    made = Desk(tmp_path)
    yield made
    made.log.close()


def after(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    shift = timedelta(seconds=seconds)

    def now(zone: Any) -> datetime:
        return datetime.now(zone) + shift

    monkeypatch.setattr(runtime, "now", now)


def test_a_page_is_produced_when_its_interval_is_over(desk: Desk) -> None:
    write(
        desk.folder,
        page(1),  # never checked before
        page(2, 80_000),
        page(3, 4000, interval_s=3600, next_at=ago(400)),
        page(4, 4000, interval_s=7200, next_at=ago(-3200)),
        page(5, 21_601, status=404, failed_checks=9, next_at=ago(1)),
        page(6, 21_601, status=404, failed_checks=10, next_at=ago(1)),
        page(7, 200_000, method="POST"),
        page(8, 20_000, status=None, checked_at=None),
        page(9, 200_000, url=None),
        page(10, 200_000, url="nonsense"),
        page(11, 21_601, status=410, failed_checks=10, gone_checks=2, next_at=ago(1)),  # gone with the next one
        page(12, 21_601, status=410, failed_checks=10, gone_checks=3, next_at=ago(1)),
        page(13, 21_601, status=503, failed_checks=10, gone_checks=2, next_at=ago(1)),
    )
    round_ = desk.run()
    assert sorted(desk.produced()) == ["1", "11", "3", "5"]
    assert (round_.produced, round_.refused) == (4, 1)
    assert round_.left_out == {"not fetched from a URL with GET or HEAD": 2}


FAR, LONG_AGO = "9999-12-31T23:59:59+00:00", "2026-01-01T00:00:00+00:00"
LEFT_OUT = "with a field recrawl of somebody else's"


@pytest.mark.parametrize(
    ("fields", "is_produced"),
    [
        ({"fetched_at": FAR}, True),
        ({"checked_at": None, "fetched_at": FAR, "interval_s": 10**30}, True),
        ({"interval_s": 10**30}, False),
        ({"checked_at": "0001-01-01T00:00:00+14:00", "next_at": ["x"]}, False),
        ({"task_id": ["x"]}, False),
        ({"task_id": 5, "status": "200", "failed_checks": "x"}, True),
        ({"recrawl": ["weekly"]}, False),
        ({"recrawl": "weekly"}, False),
        ({"recrawl": f"claimed {FAR} b x"}, True),
    ],
)
def test_no_document_of_somebody_else_holds_others_up(desk: Desk, fields: dict[str, Any], is_produced: bool) -> None:
    """A field `recrawl` that is none of ours stays."""
    write(desk.folder, page(1), page(2, **fields), page(3))
    round_ = desk.run()
    assert sorted(desk.produced()) == ["1", *(["2"] if is_produced else []), "3"]
    if not str(fields.get("recrawl", "claimed")).startswith("claimed"):
        assert round_.left_out == {LEFT_OUT: 1}
        stored = LocalResults(desk.folder).get("2")
        assert stored["recrawl"] == fields["recrawl"]


def test_half_a_character_in_a_time_of_somebody_else_holds_nobody_up(desk: Desk) -> None:
    write(desk.folder, page(1), page(2, fetched_at="HALF"), page(3))
    with closing(sqlite3.connect(desk.folder / FILE_NAME)) as file, file:
        file.execute("UPDATE results SET document = replace(document, 'HALF', '\\ud800')")
    desk.run()
    assert sorted(desk.produced()) == ["1", "2", "3"]
    assert desk.run().produced == 0


def test_older_than_is_for_all_pages_alike(desk: Desk) -> None:
    write(desk.folder, page(1, 50), page(2, 500, next_at=ago(-9000)), page(3, 500, host="b.test"))
    desk.run(calendar=Calendar(RULES, 100), host="a.test")
    assert desk.produced() == ["2"]


def test_a_seed_is_that_of_the_page_and_keyed_by_its_host(desk: Desk) -> None:
    kept = {"task_id": "job", "depth": 2, "parent_url_id": "p", "seed_url_id": "s"}
    write(desk.folder, page(1, **kept, method="HEAD", meta={"own": 1, "sitemap": {"source": "x"}}))
    desk.run(not_extract=True)
    (message,) = desk.messages()
    seed = parse_seed_of(message)
    assert message.key == b"a.test"
    assert {name: getattr(seed, name) for name in kept} == kept
    assert (seed.url, seed.method, seed.not_extract, seed.dont_filter) == ("http://a.test/1", "HEAD", True, True)
    assert seed.directives == {"if_changed": True}
    assert seed.extra == {"own": 1}


def test_a_page_is_not_produced_again_before_it_was_checked(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    write(desk.folder, page(1))
    desk.run()
    desk.run()
    after(monkeypatch, RULES.most_s - 60)
    desk.run()
    assert desk.produced() == ["1"]
    after(monkeypatch, RULES.most_s + 60)  # nobody waits for ever: somebody may have deleted the topic
    desk.run()
    assert desk.produced() == ["1", "1"]


def test_a_limit_and_a_dry_run_hold(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    write(desk.folder, *map(page, range(500)))
    assert desk.run(is_dry=True, limit=300).produced == 300
    assert len(capsys.readouterr().out.splitlines()) == 300
    assert desk.messages() == []
    assert desk.run(limit=250).produced == 250
    assert desk.run().produced == 250
    assert sorted(map(int, desk.produced())) == list(range(500))


class FragileStore(LocalResults):
    """Its user is killed at the n-th write: before it, or after it was durable."""

    def __init__(self, folder: Path, number: int, where: str) -> None:
        super().__init__(folder)
        self._left, self._is_after = number, where == "after"
        self._error = SinkUnavailable if where == "away" else Dead

    def exchange(self, name: str, changes: Mapping[str, tuple[str | None, str]]) -> set[str]:
        self._left -= 1
        if self._left == 0 and not self._is_after:
            raise self._error
        done = super().exchange(name, changes)
        if self._left == 0:
            raise self._error
        return done


class FragileLog(SendingLog):
    """Its user is killed before the n-th seed, or it is away from then on; those before are durable."""

    def __init__(self, folder: Path, number: int, *, is_away: bool) -> None:
        super().__init__(folder, self._sending)
        self.left, self.is_away = number, is_away

    def _sending(self, send: Any, *message: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self.is_away:
            send.__self__.flush(10)
            raise Dead
        if self.left > 0 or not self.is_away:
            return send(*message)
        future: Future[None] = Future()
        future.set_exception(LogUnavailable("the log is away"))
        return future


def killed(desk: Desk, kill: str) -> None:
    where, number = kill.split()
    of_log = where in ("send", "log")
    log = FragileLog(desk.folder, int(number) if of_log else -1, is_away=where == "log")
    store = FragileStore(desk.folder, -1 if of_log else int(number), where)
    said = "the log is away; a later run" if where == "log" else None
    with closing(log), pytest.raises((Dead, SinkUnavailable, LogUnavailable), match=said):
        desk.run(store, log)


KILLS = [f"{where} {number}" for where in ("before", "after", "away") for number in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    "kill", [*KILLS, *(f"{where} {number}" for where in ("send", "log") for number in (1, 2, 250))]
)
def test_whenever_a_run_dies_each_page_is_produced_once(desk: Desk, kill: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by a run within the lease, which cannot know; by the first one after it."""
    write(desk.folder, *map(page, range(300)))
    killed(desk, kill)
    held = desk.run().left_out.get("claimed by another run", 0)
    produced = desk.produced()
    assert len(set(produced)) == len(produced)
    assert held <= 200
    after(monkeypatch, LEASE_SECONDS + 1)
    assert desk.run(is_dry=True).produced == 300 - len(desk.produced())
    desk.run()
    assert sorted(map(int, desk.produced())) == list(range(300))


@pytest.mark.parametrize("seconds", [0.5, 4, 29])
def test_a_store_that_takes_long_for_claims_is_asked_for_few_at_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """200 of them, or ten, would take longer than a claim counts."""
    clock = [0.0]
    monkeypatch.setattr(runtime, "monotonic", lambda: clock[0])

    class Slow(LocalResults):
        def exchange(self, name: str, changes: Mapping[str, tuple[str | None, str]]) -> set[str]:
            clock[0] += len(changes) * seconds
            return super().exchange(name, changes)

    write(desk.folder, *map(page, range(30)))
    assert desk.run(Slow(desk.folder)).produced == 30
    assert sorted(map(int, desk.produced())) == list(range(30))


def test_two_at_once_share_the_pages(desk: Desk) -> None:
    write(desk.folder, *map(page, range(300)))
    rounds: list[Recrawl] = []

    class Busy(LocalResults):
        """Another run begins whenever this one is about to claim."""

        def exchange(self, name: str, changes: Mapping[str, tuple[str | None, str]]) -> set[str]:
            if not rounds:
                rounds.append(desk.run(limit=150))
            return super().exchange(name, changes)

    rounds.append(desk.run(Busy(desk.folder)))
    assert [one.produced for one in rounds] == [150, 150]
    assert sorted(map(int, desk.produced())) == list(range(300))


def test_a_page_that_the_store_does_not_let_be_claimed_ends_no_run(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was tried again and again."""

    class Refusing(LocalResults):
        def exchange(self, name: str, changes: Mapping[str, tuple[str | None, str]]) -> set[str]:
            return super().exchange(name, {key: change for key, change in changes.items() if key != "2"})

    monkeypatch.setattr(runtime, "sleep", lambda _seconds: None)
    write(desk.folder, page(1), page(2), page(3))
    round_ = desk.run(Refusing(desk.folder), waits=True)
    assert sorted(desk.produced()) == ["1", "3"]
    assert round_.left_out == {"that cannot be claimed": 1}


def test_a_run_waits_for_the_claims_of_another(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    write(desk.folder, page(1))
    killed(desk, "after 1")
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        after(monkeypatch, sum(pauses))

    monkeypatch.setattr(runtime, "sleep", sleep)
    desk.run(waits=True)
    assert desk.produced() == ["1"]
    assert LEASE_SECONDS - 10 < sum(pauses) <= LEASE_SECONDS + 1


def test_the_command_says_how_many(project: Project) -> None:
    ran = project.scrapy("recrawl")
    assert (ran.returncode, ran.stdout) == (0, "produced 0, refused 0\n")
    write(project.data, page(1), page(2, url="x"), page(3, 10))
    ran = project.scrapy("recrawl", "--adaptive", "--dry-run")
    assert (ran.returncode, ran.stdout) == (0, "http://a.test/1\nx\ndue 2, refused 0\n")
    ran = project.scrapy("recrawl", "--older-than", "1d")
    assert (ran.returncode, ran.stdout) == (1, "produced 1, refused 1\n")
    assert ran.stderr == "page 2: url: 'x' has no scheme; write http://host/path\n"
    assert project.scrapy("recrawl", "--older-than", "x").returncode == 2
    ran = project.scrapy("recrawl", "--every", "0s", "--every", "x")  # the second would end it, too
    assert "--every: '0s' is no pause" in ran.stderr
    assert project.scrapy("recrawl", "--older-than", "1d", "--adaptive").returncode == 2
    ran = project.scrapy("recrawl", SITE_SINKS="kafka", SITE_KAFKA_BROKERS="127.0.0.1:9")
    assert (ran.returncode, ran.stdout) == (78, "")
    assert "SITE_SINKS" in ran.stderr
    (message,) = project.log.read("seeds")
    assert json.loads(message.value or b"")["meta"] == {"url_id": "1", "if_changed": True}


def test_rounds_go_on_and_an_outage_is_said_once(
    project: Project, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With fields under other names."""
    caplog.set_level("INFO")
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        monkeypatch.setattr(LocalResults, "search", away if len(pauses) in (1, 2) else search)
        if len(pauses) == 5:
            raise KeyboardInterrupt

    def away(*_: object, **__: object) -> Any:
        raise SinkUnavailable("the store is away")

    search = LocalResults.search
    monkeypatch.setattr(runtime, "sleep", sleep)
    kept = ("host", "fetched_at", "checked_at", "next_at", "interval_s")
    names = {name: name for name in kept} | {"url": "address"}
    write(project.data, {**page(1, url=None), "address": "http://a.test/1"})
    ran = project.scrapy("recrawl", "--every", "60s", SITE_RESULT_FIELDS=json.dumps(names), LOG_LEVEL="INFO")
    assert (ran.returncode, pauses) == (130, [60] * 5)
    assert ran.stdout.splitlines()[0] == "produced 1, refused 0"
    assert set(ran.stdout.splitlines()[1:]) == {"produced 0, refused 0"}
    assert ran.stderr.count("the store is away") == 1


def test_a_task_is_found_by_the_name_that_its_field_has(project: Project) -> None:
    names = {name: name for name in ("url", "host", "fetched_at", "checked_at")}
    write(project.data, {**page(1), "job": "a"}, {**page(2), "job": "b"})
    asked = ("recrawl", "--dry-run", "--older-than", "0s", "--task-id", "a")
    ran = project.scrapy(*asked, SITE_RESULT_FIELDS=json.dumps(names | {"task_id": "job"}))
    assert ran.stdout.splitlines()[-1].startswith("due 1,"), ran.stderr
    ran = project.scrapy(*asked, SITE_RESULT_FIELDS=json.dumps(names))
    assert (ran.returncode, "leaves out task_id" in ran.stderr) == (78, True)
    names["next_at"] = "next_at"
    for way in ("--adaptive", "--dry-run"):  # the first is the default
        ran = project.scrapy("recrawl", "--dry-run", way, SITE_RESULT_FIELDS=json.dumps(names))
        assert (ran.returncode, "leaves out interval_s" in ran.stderr) == (78, True)


# --- with other features ---


def recrawl(project: Project, **settings: str) -> str:
    ran = project.scrapy("recrawl", "--older-than", "0s", **settings)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def crawled(project: Project, count: int = 2, **settings: Any) -> None:
    """The pages of a task that has ended."""
    lines = "".join(f"http://host.test/{number}\n" for number in range(count))
    project.scrapy("seed", "-", "--task-id", "t", "--close", stdin=lines)
    crawl(project.data, [], until=told(project.data), **settings)


def test_a_task_that_has_ended_ends_again_with_the_pages_that_are_checked(project: Project) -> None:
    """One is sent again as it was, the other is answered 304; both are pages."""
    ANSWERS["/0"] = partial(html, ETag="same")
    crawled(project)
    ANSWERS["/0"] = partial(html, body="", status=304)
    assert recrawl(project) == "produced 2, refused 0\n"
    again = crawl(project.data, [], until=told(project.data, 2))
    assert sum(document["unchanged"] for document in again.documents.values()) == 2
    size = len("<p>page")
    told_of = ("generation", "seeds", "partial", "pages", "bytes")
    assert [tuple(end[name] for name in told_of) for end in events(project.data)] == [
        (1, {"result": 2, "total": 2}, False, 2, 2 * size),
        (2, {"result": 4, "total": 4}, False, 4, 3 * size),  # of both
    ]


def test_a_budget_of_bytes_counts_what_is_sent_again(project: Project) -> None:
    declare(project.data, max_bytes=10)
    crawl(project.data, [{"url": "http://host.test/1", "meta": {"task_id": "t"}}])
    assert recrawl(project) == "produced 1, refused 0\n"
    crawl(project.data, [])
    assert shown(project)["reason"] == "byte_budget"


def test_a_task_that_is_open_stays_open(project: Project) -> None:
    project.scrapy("seed", "-", "--task-id", "t", stdin="http://host.test/1\n")
    crawl(project.data, [])
    recrawl(project)
    crawl(project.data, [])
    assert (events(project.data), shown(project)["state"]) == ([], "running")


@pytest.mark.parametrize("over", [{"state": "cancelled"}, {"expires_at": "2026-01-01T00:00Z"}], ids=str)
@pytest.mark.parametrize("is_told", [True, False])
def test_pages_of_a_task_that_is_over_are_left_out(
    project: Project, over: dict[str, str], is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while no crawler runs that could tell of its end. The log is not read for the claim of a killed run."""
    declare(project.data, **over)
    if is_told:
        crawl(project.data, [{"url": "http://host.test/1", "meta": {"task_id": "t"}}], until=told(project.data))
    claimed = {"recrawl": f"claimed {ago(100)} b {LONG_AGO}/{LONG_AGO}", "checked_at": LONG_AGO, "fetched_at": LONG_AGO}
    write(project.data, page(1, task_id="t"), page(2, task_id="t", **claimed))
    monkeypatch.setattr(Recrawl, "_headers", None)
    assert recrawl(project) == "produced 0, refused 0, of a task that was cancelled or has expired: 2\n"


def test_a_budget_counts_checks_and_no_page_is_produced_again_while_its_seed_is_parked(project: Project) -> None:
    declare(project.data, max_pages=3)
    seeds = [{"url": f"http://host.test/{number}", "meta": {"task_id": "t"}} for number in range(2)]
    crawl(project.data, seeds)
    assert recrawl(project) == "produced 2, refused 0\n"
    again = crawl(project.data, [])
    assert sum(document["unchanged"] for document in again.documents.values()) == 1
    assert recrawl(project) == "produced 1, refused 0\n"  # the one that was checked


def test_a_page_whose_seed_is_a_dead_letter_is_not_produced_again(project: Project) -> None:
    """It waits there, to be put back."""
    sources = project.data / "sources"
    sources.mkdir(parents=True)
    (sources / "shop.yaml").write_text("match: {hosts: [shop.test]}")
    write(project.data, page(1, meta={"source": "gone"}))
    assert recrawl(project) == "produced 1, refused 0\n"
    assert len(crawl(project.data, [], SITE_SOURCES_DIR=str(sources)).dead_letters) == 1
    assert recrawl(project) == "produced 0, refused 0\n"


def test_pages_go_to_another_tier_by_choice(project: Project) -> None:
    write(project.data, page(1))
    project.log.make_topic("seeds", 1, compacted=False)
    tiers = {"SITE_SEED_TOPICS": "urgent:8,seeds:1"}
    ran = project.scrapy("recrawl", "--topic", "urgent", **tiers)
    assert (ran.returncode, ran.stdout) == (0, "produced 1, refused 0\n")
    assert [parse_seed_of(message).url_id for message in project.log.read("urgent")] == ["1"]
    crawled = crawl(project.data, [], until=lambda it: it.stats.get_value("response_received_count"), **tiers)
    assert crawled.documents["1"]["unchanged"] is False


def test_links_of_a_page_that_has_changed_are_spilled_and_followed(project: Project) -> None:
    crawled(project, 1)
    ANSWERS["/0"] = lambda request: html(request, '<a href="/new">')
    recrawl(project)
    found = crawl(project.data, [], SITE_LINKS_TO="kafka")
    assert {document["url"] for document in found.documents.values()} == {"http://host.test/0", "http://host.test/new"}
    assert [document["depth"] for document in found.documents.values()] == [0, 1]


@pytest.mark.parametrize("spills", [{}, {"SITE_LINKS_TO": "kafka"}])
def test_files_of_sitemaps_that_are_checked_again_are_no_level_of_links_either(
    project: Project, spills: dict[str, str]
) -> None:
    def serve(path: str, body: str) -> None:
        ANSWERS[path] = lambda request: Response(request.url, body=body.encode())

    serve("/robots.txt", "Sitemap: /index")
    serve("/index", "<sitemapindex><sitemap><loc>/map</loc></sitemap></sitemapindex>")
    serve("/map", "<urlset><url><loc>/1</loc></url></urlset>")
    settings = {"SITE_SITEMAPS": "robots", "SITE_KEEP_ROBOTS": True, "DEPTH_LIMIT": 1, **spills}
    before = crawl(project.data, [{"url": "http://host.test/0"}], **settings).documents
    again = "?again"  # each file has changed, and names another one
    serve("/robots.txt", f"Sitemap: /index\nSitemap: /index{again}")
    serve("/index", f"<sitemapindex><sitemap><loc>/map{again}</loc></sitemap></sitemapindex>")
    serve("/map", f"<urlset><url><loc>/1{again}</loc><lastmod>2026-01-02</lastmod></url></urlset>")
    assert recrawl(project).startswith(f"produced {len(before)}")
    after = crawl(project.data, [], **settings).documents
    found = {said["url"].partition(".test")[2]: said for said in after.values()}
    paths = [path + again for path in ("/index", "/map", "/1")]
    assert {path: found[path]["depth"] for path in found if again in path} == dict.fromkeys(paths, 1)
    assert [found[path]["meta"]["sitemap"].get("level") for path in ("/index", "/map")] == [0, 1]
    assert found[f"/1{again}"]["meta"]["sitemap"]["lastmod"] == "2026-01-02"
