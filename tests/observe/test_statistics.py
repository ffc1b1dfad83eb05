"""Statistics of a crawl: what documents hold, when they are written, and what a bad store does."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Self
from unittest.mock import Mock

import pytest
from scrapy.http import Response

from site_spider.adapters.local.log import LocalSeedLog
from site_spider.adapters.local.results import FILE_NAME
from site_spider.contracts.sink import ACKNOWLEDGED, Answer, Record, Verdict
from site_spider.errors import ConfigError, LogUnavailable, SinkUnavailable, TopicMissing
from site_spider.observe.counters import LONGEST_NAME, LONGEST_TEXT, MOST_NUMBERS, MOST_TEXTS, TaskSums, counters
from site_spider.observe.snapshot import Identity
from site_spider.observe.statistics import (
    _AS_THEY_ARE,
    LARGEST_STATISTICS_BYTES,
    Series,
    StatsTopic,
    bounded,
    statistics_id,
    without_names,
)
from site_spider.service import config
from site_spider.spiders.crawl_spider import SeedSpider
from tests.in_process import engine
from tests.in_process.engine import Crawled, page, settings_for

SEEDS = [{"url": f"http://h.test/{number}", "meta": {"task_id": "t"}} for number in range(5)]
HERE = "tests.observe.test_statistics"


@pytest.fixture(autouse=True)
def answers() -> None:
    Store.reset()


def crawl(folder: Path, seeds: Sequence[Any], *spider: type[SeedSpider], **overrides: Any) -> Crawled:
    """With the local store, unless a test names another: the environment may name servers."""
    return engine.crawl(folder, seeds, *spider, **{"SITE_STATS_TO": "local", **overrides})


class Counting(SeedSpider):
    """Has counters of its own, one of a type that changes."""

    name = "counting"
    takes_seeds = True

    async def parse(self, response: Response) -> Any:  # type: ignore[override]
        stats = self.crawler.stats
        stats.inc_value("my/custom")
        stats.set_value("my/last.page", response.url)
        stats.set_value("my/odd", 1 if response.url.endswith("0") else "text")
        stats.set_value("my/list", [1, 2])
        stats.set_value("my/nan", float("nan"))
        return []


FAILS: dict[str, Exception] = {
    "no open": RuntimeError("a bug"),
    "settings": ConfigError("MY_STORE is empty."),
    "never opens": SinkUnavailable("MY_STORE is away"),
}


class Store:
    """A store of one's own, which does what a test says."""

    name = "own"
    documents: ClassVar[dict[str, dict[str, Any]]] = {}
    mode: ClassVar[str] = ""

    @classmethod
    def reset(cls, mode: str = "") -> None:
        cls.documents, cls.mode = {}, mode

    @classmethod
    def for_statistics(cls, settings: Any) -> Self:
        return cls()

    async def open(self) -> None:
        if self.mode in FAILS:
            raise FAILS[self.mode]
        await asyncio.sleep({"slow to open": 2.0, "hangs": inf}.get(self.mode, 0))

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        if self.mode == "bug":
            raise RuntimeError("a bug")
        if self.mode == "too many fields" and any("counters" in record.document for record in records):
            return [Verdict(Answer.REJECTED, "too many fields")] * len(records)
        for record in records:
            self.documents[record.key] = dict(record.document)
        return [ACKNOWLEDGED] * len(records)

    async def close(self) -> None:
        pass


MODES = {
    "NoOpen": "no open",
    "Misconfigured": "misconfigured",
    "NeverOpens": "never opens",
    "Hangs": "hangs",
    "Bug": "bug",
}
NoOpen, Misconfigured, NeverOpens, Hangs, Bug = (type(name, (Store,), {"mode": mode}) for name, mode in MODES.items())
OWN = f"{HERE}.Store"
BROKEN = [f"{HERE}.{name}" for name in MODES]


def after(seconds: float) -> Callable[[Any], bool]:
    """Whether so much time has passed since all seeds were known to be done."""
    since: list[float] = []

    def is_over(crawler: Any) -> bool:
        if crawler.stats.get_value("seeds/completed_with_result") == len(SEEDS):
            since.append(time.monotonic())
        return bool(since) and since[-1] - since[0] > seconds

    return is_over


def said(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if words in record.getMessage()]


def local_documents(folder: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        rows = connection.execute("SELECT document FROM statistics ORDER BY rowid").fetchall()
    return [json.loads(text) for (text,) in rows]


# --- what a document holds -----------------------------------------------------------------------


def test_a_document_has_the_counters_of_scrapy_of_ours_and_of_a_spider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under names without dots; a value that is a number and a text in turn is in two fields.

    The topic takes each snapshot with hosts and failures, whatever the stores get.
    """
    monkeypatch.setattr("site_spider.observe.statistics._MOST_UNDER_WAY", 100)  # however slow the disk
    engine.ANSWERS["/missing"] = lambda request: page(request, status=404)
    seeds = [*SEEDS, {"url": "http://h.test/missing", "meta": {"task_id": "t"}}]
    own = {"SITE_STATS_ID": "{spider} in {group}", "SITE_STATS_WHEN": "close", "SITE_STATS_INTERVAL_SECONDS": 0.1}
    crawl(tmp_path, seeds, Counting, **own)
    [last] = local_documents(tmp_path)
    keys, told = zip(*snapshots(tmp_path), strict=True)
    assert (len(told) >= 2, keys[-1], told[-1]["moment"]) == (True, last["process"].encode(), "close")
    assert [failed["url"] for failed in told[-1]["newest_failures"]] == ["http://h.test/missing"]
    assert (told[-1]["seeds"], told[-1]["tasks"], told[-1]["largest_hosts"]) == (last["seeds"], last["tasks"], [])
    assert last["id"] == "counting in site_spider"
    assert {last["counters"][name] for name in ("my/custom", "downloader/response_count", "seeds/consumed")} == {6}
    assert last["texts"]["my/last_page"].startswith("http://h.test/")
    assert "my/odd" in {**last["counters"], **last["texts"]}
    assert last["texts"]["finish_reason"] == "shutdown" or "finish_reason" not in last["texts"]
    assert "start_time" in last["texts"]
    assert not {"my/list", "my/nan"} & {*last["counters"], *last["texts"]}
    assert last["counters_left_out"] == 2
    [task] = last["tasks"]["largest"]
    assert (task["task_id"], task["pages"], task["outcomes"]) == ("t", 6, {"result": 5, "failure": 1})


def test_counters_are_bounded_in_number_and_length() -> None:
    stats: dict[Any, Any] = {f"host{number}.test/pages": number for number in range(100_000)}
    stats = {"first": 1, "long" * 1000: 2, "text": "x" * 100_000, **stats}
    found = counters(stats)
    assert (len(found.numbers), found.left_out) == (MOST_NUMBERS, len(stats) - MOST_NUMBERS - 1)
    assert found.numbers["first"] == 1
    assert all(len(name) <= LONGEST_NAME and "." not in name for name in found.numbers)
    assert found.texts == {"text": "x" * LONGEST_TEXT}
    many = counters({f"t{number}": "x" for number in range(1000)})
    assert (len(many.texts), many.left_out) == (MOST_TEXTS, 1000 - MOST_TEXTS)


def test_names_are_fit_to_be_fields_and_odd_values_are_left_out() -> None:
    """Keys that become one name stay apart."""
    names: dict[Any, str] = {"my/custom": "my/custom", "a.b": "a_b", "a_b": "a_b_2", "..": "__", "  ": "_", "": "__2"}
    names |= {"a\x00c\n": "a_c", 7: "7", None: "None", "é": "é"}
    assert counters(dict.fromkeys(names, 1)).numbers.keys() == {*names.values()}
    odd = {"huge": 10**400, "inf": float("inf"), "none": None}
    found = counters({"yes": True, "large": 10**30, **odd})
    assert (found.numbers, found.left_out) == ({"yes": 1, "large": 1e30}, 2)


# --- when and where ------------------------------------------------------------------------------


def moments(folder: Path) -> list[str]:
    return [document["moment"] for document in local_documents(folder)]


@pytest.mark.parametrize(("when", "expected"), [("interval", {"interval"}), ("idle, close", {"idle", "close"})])
def test_documents_are_written_at_the_moments_that_are_named(tmp_path: Path, when: str, expected: set[str]) -> None:
    """Idle: when nothing is in flight any more, once for all seeds that came before."""
    crawl(tmp_path, SEEDS, until=after(2.5), SITE_STATS_WHEN=when, SITE_STATS_INTERVAL_SECONDS=0.7)
    found = moments(tmp_path)
    assert set(found) == expected
    assert found.count("close") == ("close" in expected)
    assert found.count("idle") == ("idle" in expected)
    assert [document["interval"] for document in local_documents(tmp_path)] == list(range(len(found)))


def test_stores_are_those_that_are_named(tmp_path: Path) -> None:
    """Empty means what it meant before there was a choice."""

    def names(**settings: Any) -> list[str]:
        made = settings_for(tmp_path, **settings)
        return [store.name for store in config.statistics_stores(made)]

    elasticsearch, kafka = {"SITE_ELASTICSEARCH_HOSTS": "http://127.0.0.1:9"}, {"SITE_KAFKA_BROKERS": "h:1"}
    assert names(SITE_ELASTICSEARCH_HOSTS="") == ["local"]
    assert names(**elasticsearch) == ["elasticsearch"]
    assert names(**elasticsearch, SITE_STATS_TO="local, elasticsearch,local") == ["local", "elasticsearch"]
    assert names(SITE_STATS_TO=f"{OWN},local") == ["own", "local"]
    assert names(SITE_STATS_TO="kafka", **kafka) == []


# --- the id --------------------------------------------------------------------------------------


def named(value: str) -> str:
    identity = Identity("news", "group", "seeds", lambda: "")
    return statistics_id({"SITE_STATS_ID": value}, identity)


def own_name(spider: str, host: str, process: int, start: int, **_others: Any) -> str:
    return f"{spider}!{len(host) > 0}!{process > 0}!{start > 1_700_000_000}"


def no_name(**_names: Any) -> Any:
    return None


def test_an_id_is_a_format_or_comes_from_a_callable() -> None:
    assert named("{spider}/{group}/{topic}") == "news/group/seeds"
    assert named("all of them") == "all of them"
    assert named("{{{spider}}}") == "{news}"
    assert named(f"{HERE}.own_name") == "news!True!True!True"
    assert len(named("x" * 1000)) == 300
    wrong = ["", "{", "{nothing}", "{spider.__class__}", "{spider[0]}", "{process:999999999}", "{spider!r}", "{}"]
    for value in (*wrong, "no.such.function", f"{HERE}.no_name", f"{HERE}.moments"):
        with pytest.raises(ConfigError, match="SITE_STATS_ID"):
            named(value)


# --- stores that do not work ---------------------------------------------------------------------


def test_stores_that_do_not_work_neither_end_nor_slow_a_crawl(tmp_path: Path) -> None:
    """Those that are away, too. All seeds are done, and the other store has its documents."""
    found = crawl(
        tmp_path,
        SEEDS,
        SITE_STATS_TO=",".join([*BROKEN, "elasticsearch", "redis", "local"]),
        SITE_ELASTICSEARCH_HOSTS="http://127.0.0.1:9",
        SITE_REDIS_URL="redis://127.0.0.1:9/0",
    )
    assert (found.lag, len(found.documents), found.exit_code) == (0, 5, 0)
    assert local_documents(tmp_path)[-1]["seeds"]["completed"] == 5


def test_a_crawl_that_ends_before_its_store_is_open_has_its_statistics(tmp_path: Path) -> None:
    Store.reset("slow to open")
    crawl(tmp_path, SEEDS[:1], SITE_STATS_TO=OWN, SITE_STATS_WHEN="close")
    assert [document["moment"] for document in Store.documents.values()] == ["close"]


def test_a_store_that_is_away_prolongs_no_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that takes 3 s longer than it may is killed, whoever else still writes something."""
    monkeypatch.setattr("site_spider.observe.statistics._CLOSE_SECONDS", 1_000.0)  # a slow disk may take some, too
    Store.reset("never opens")
    began = time.monotonic()
    crawl(tmp_path, SEEDS, until=after(0.5), SITE_STATS_TO=OWN, SITE_STOP_GRACE_SECONDS=1)
    assert time.monotonic() - began < 500.0


def test_a_store_that_is_away_gets_a_bounded_backlog_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("site_spider.observe.statistics._MOST_WAITING", 3)
    Store.reset("never opens")
    with caplog.at_level(logging.WARNING):
        crawl(tmp_path, SEEDS, until=after(1.5), SITE_STATS_TO=OWN, SITE_STATS_INTERVAL_SECONDS=0.1)
    (line,) = said(caplog, "The store of statistics own")
    assert "3 documents wait" in line


def test_a_document_that_is_refused_comes_without_names_from_outside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Store.reset("too many fields")
    with caplog.at_level(logging.WARNING):
        crawl(tmp_path, SEEDS, SITE_STATS_TO=OWN)
    assert Store.documents
    for document in Store.documents.values():
        assert document == without_names(document)
        assert document["seeds"]["consumed"] >= 0
    assert len(said(caplog, "refuses a document")) == 1


# --- the topic -----------------------------------------------------------------------------------


def snapshots(folder: Path, topic: str = "seeds.stats") -> list[tuple[bytes | None, dict[str, Any]]]:
    return [(message.key, json.loads(message.value or b"null")) for message in LocalSeedLog(folder).read(topic)]


def test_old_snapshots_leave_the_embedded_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that its file does not grow for ever; seeds stay."""
    monkeypatch.setattr("site_spider.observe.statistics.KEPT_SECONDS", 0.5)
    monkeypatch.setattr("site_spider.observe.statistics._KEEP_EVERY_SECONDS", 0.2)
    monkeypatch.setattr("site_spider.observe.statistics._MOST_UNDER_WAY", 100)  # however slow the disk

    def numbers() -> list[int]:
        with suppress(TopicMissing):
            return [document["interval"] for _, document in snapshots(tmp_path)]
        return []

    crawl(tmp_path, SEEDS, until=lambda _: numbers()[:1] > [10], SITE_STATS_INTERVAL_SECONDS=0.1)
    found = numbers()
    assert found == list(range(found[0], found[-1] + 1))
    assert len(list(LocalSeedLog(tmp_path).read("seeds"))) == 5


def test_a_snapshot_is_bounded_in_bytes() -> None:
    """The largest parts are left out first; what stays says so."""
    tasks = TaskSums()
    for number in range(200):
        tasks.of(f"{number}" * 100).page(1)
    document = {"process": "p", "seeds": {}, "tasks": tasks.document(), "counters": {"a": 1}}
    assert json.loads(bounded(document)) == document
    large = {**document, "tasks": "x" * LARGEST_STATISTICS_BYTES}
    assert json.loads(bounded(large)) == {"process": "p", "seeds": {}, "counters": {"a": 1}, "shortened": True}


class Forbidding(LocalSeedLog):
    """A log whose statistics topic this process may neither make nor write to."""

    def keep(self, topic: str, seconds: float) -> None:
        raise LogUnavailable(f"Topic {topic}: Topic authorization failed")

    def producer(self, purpose: str = "") -> Any:
        made = super().producer(purpose)
        return Mock(send=denied, flush=lambda _seconds: 0, close=made.close) if purpose else made


def denied(*_message: Any) -> Future[None]:
    future: Future[None] = Future()
    future.set_exception(LogUnavailable("Topic authorization failed"))
    return future


def test_a_missing_right_on_the_topic_is_one_warning_and_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("site_spider.observe.statistics._KEEP_EVERY_SECONDS", 0.1)
    classes = {"local": f"{HERE}.Forbidding"}
    with caplog.at_level(logging.WARNING):
        found = crawl(tmp_path, SEEDS, until=after(1.0), SITE_SEED_LOG_CLASSES=classes)
    assert (found.lag, len(found.documents), found.exit_code) == (0, 5, 0)
    (line,) = said(caplog, "SITE_STATS_TOPIC")
    assert "authorization failed" in line


async def test_an_end_that_fails_after_its_time_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody waits for it any more."""
    topic, may_fail, producer = StatsTopic(Mock(), "t", Mock()), threading.Event(), Mock()

    def close() -> None:
        may_fail.wait(10)
        raise OSError("gone")

    producer.close = close
    topic._producer = producer
    await topic.close(0.01)
    may_fail.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert "could not be closed" in caplog.text


def test_messages_that_are_not_taken_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """During an outage of the log only the first few wait: what they say is old soon."""
    sent: list[Future[None]] = []

    def send(*_message: Any) -> Future[None]:
        sent.append(Future())
        return sent[-1]

    monkeypatch.setattr(f"{HERE}.denied", send)
    monkeypatch.setattr(Forbidding, "keep", LocalSeedLog.keep)
    own = {"SITE_SEED_LOG_CLASSES": {"local": f"{HERE}.Forbidding"}, "SITE_STATS_INTERVAL_SECONDS": 0.1}
    crawl(tmp_path, SEEDS, until=after(1.5), **own)
    assert len(sent) == 3


# --- The statistics document


def snapshot_of(num: int, size: int, asked: int, robots: tuple[int, int, int] = (0, 0, 0)) -> dict[str, Any]:
    """A snapshot with these downloads: answers, and bytes of responses and requests."""

    def kind(answers: int, response_bytes: int, request_bytes: int) -> dict[str, Any]:
        return {
            "answers": answers,
            "response_bytes": response_bytes,
            "request_bytes": request_bytes,
            "statuses": {"200": answers},
        }

    return {
        **dict.fromkeys(_AS_THEY_ARE),
        "at": "2023-11-14T22:13:20.250+00:00",
        "process": "p",
        "hosts": {"waiting": 3, "busy": 2, "new": 1},
        "downloads": {"page": kind(num, size, asked), "robots": kind(*robots)},
        "oldest_in_flight_seconds": {"seeds/0": 1.5, "seeds/1": 0.5},
        "seeds_in_flight": {"seeds/0": 1, "seeds/1": 1},
        "latency": {},
        "tasks": {"largest": [], "others": {}},
    }


def test_totals_run_on_and_intervals_are_differences() -> None:
    """A document has the totals of the process and what was added since the one before.

    Fetches of robots.txt are no links downloaded. Tasks, the largest part, stand in one a minute and in the last.
    """
    series = Series("mine", now=100.0)
    moments = [("interval", 100.0), ("interval", 110.0), ("interval", 161.0), ("interval", 162.0), ("close", 163.0)]
    records = [series.next(snapshot_of(4, 300, 60), {}, moment, now) for moment, now in moments]
    assert ["tasks" in record.document for record in records] == [True, False, True, False, True]
    record = series.next(snapshot_of(10, 1000, 100, robots=(2, 20, 6)), {}, "interval", now=172.9996)
    made = record.document
    assert (record.key, made["id"], made["interval"]) == ("p-5", "mine", 5)
    assert made["@timestamp"] == "2023-11-14T22:13:20.250+00:00"
    assert (made["total_num"], made["total_response_size"], made["total_request_size"]) == (10, 1000, 100)
    assert (made["interval_num"], made["interval_response_size"], made["interval_request_size"]) == (6, 700, 40)
    assert made["interval_seconds"] == 10.0
    assert made["robots"] == {"num": 2, "response_size": 20, "request_size": 6}
    none = dict.fromkeys(("ready", "delay", "back-off", "robots"), 0)
    assert made["hosts"] == {**none, "waiting": 3, "busy": 2, "new": 1}
    assert (made["oldest_seconds"], made["partitions"]) == (1.5, 2)
