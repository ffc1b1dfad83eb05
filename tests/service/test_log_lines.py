"""Log lines of several processes are told apart; a start is three of them, and says what has no effect."""

from __future__ import annotations

import asyncio
import io
import logging
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest.mock import Mock

import pytest
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.settings import Settings
from scrapy.spiders import SitemapSpider
from scrapy.utils.log import _uninstall_scrapy_root_handler, install_scrapy_root_handler
from scrapy.utils.test import get_crawler

from site_spider import SeedSpider
from site_spider.engine import scrapy_parts
from site_spider.engine.scrapy_parts import EscapedRecord, begin_lines_with
from site_spider.observe.metrics.exporter import GroupWatch
from site_spider.service import log_lines
from site_spider.service.log_lines import (
    PROCESSES,
    SLOT,
    STARTS,
    RateLine,
    own_feeds,
    own_log_lines,
    say_idle_processes,
    say_starts_without_seeds,
    say_what_has_no_effect,
    say_who_waits_for_idle,
    shorten_start,
    where_results_go,
)
from tests.in_process import engine
from tests.in_process.engine import crawl, page
from tests.project_settings import ours as settings
from tests.test_escape import HOSTILE

FORM = "%(levelname)s: %(message)s"


@pytest.fixture(autouse=True)
def without_prefix() -> Iterator[None]:
    yield
    begin_lines_with("")


@pytest.mark.parametrize(
    ("environ", "form", "expected", "file"),
    [
        ({}, FORM, FORM, "crawl-1.log"),
        ({SLOT: "1", PROCESSES: "1"}, FORM, FORM, "crawl-1.log"),
        ({SLOT: "3", PROCESSES: "4"}, FORM, f"[3] {FORM}", "crawl-3.log"),
        ({SLOT: "3", PROCESSES: "4"}, '{"said": "%(message)s"}', '{"slot": 3, "said": "%(message)s"}', None),
        ({SLOT: "3", PROCESSES: "many"}, FORM, FORM, "crawl-3.log"),
    ],
)
def test_lines_begin_with_the_slot_where_there_are_several(
    environ: dict[str, str], form: str, expected: str, file: str | None
) -> None:
    """Further ones of a record as well: tables and tracebacks. The name of a log file may hold the slot."""
    settings = Settings({"LOG_FORMAT": form, "LOG_FILE": file and "crawl-%p.log"})
    own_log_lines(settings, environ)
    assert (settings["LOG_FORMAT"], settings["LOG_FILE"]) == (expected, file)
    record = EscapedRecord("scrapy", logging.ERROR, "", 0, "one\ntwo", (), None)
    record.exc_text = "Traceback\n  line"
    beginning = "[3] " if PROCESSES in environ and environ[PROCESSES] == "4" else ""
    text = logging.Formatter(f"{beginning}%(message)s").format(record)
    assert all(line.startswith(beginning) and "[" not in line[len(beginning) :] for line in text.splitlines())


@pytest.mark.parametrize(
    ("uri", "second"),
    [
        *(("items.jsonl", "items-2.jsonl"), ("out/%(name)s.csv.gz", "out/%(name)s-2.csv.gz"), ("stdout:", "stdout:")),
        *(("ftp://shop/%p/items.xml", "ftp://shop/2/items.xml"), ("a.b/items", "a.b/items-2")),
        *(("shop://db.shop.test", "shop://db.shop.test"), ("shop://db.test/", "shop://db.test/")),
    ],
)
def test_each_process_writes_feeds_of_its_own(uri: str, second: str) -> None:
    """And does not begin them anew when it is started again."""
    overwritten = {"format": "jsonlines", "overwrite": True}
    for slot, expected in (("1", uri.replace("%p", "1")), ("2", second)):
        for starts, found in (("1", overwritten), ("2", {**overwritten, "overwrite": False})):
            settings = Settings({"FEEDS": {uri: overwritten}})
            own_feeds(settings, {SLOT: slot, STARTS: starts})
            assert settings.getdict("FEEDS") == {expected: found}
    broken = Settings({"FEEDS": {"items.jsonl": 5}})
    own_feeds(broken, {SLOT: "2"})
    assert broken.getdict("FEEDS") == {"items.jsonl": 5}


@pytest.mark.parametrize(
    ("uri", "slot", "again"),
    [("s3://shop/a.xml", "1", "s3://shop/a-1-3.xml"), ("gs://shop/%p.csv", "2", "gs://shop/2-3.csv")],
)
def test_a_process_that_is_started_again_replaces_no_whole_file(uri: str, slot: str, again: str) -> None:
    settings = Settings({"FEEDS": {uri: {"overwrite": True}}})
    own_feeds(settings, {SLOT: slot, STARTS: "3"})
    assert settings.getdict("FEEDS") == {again: {"overwrite": True}}


@pytest.mark.parametrize("level", ["INFO", "DEBUG", "WARNING", logging.INFO])
def test_scrapys_lines_of_a_start_are_left_out_unless_debug_is_written(level: str | int) -> None:
    logger = logging.getLogger("scrapy.middleware")
    before = list(logger.filters)
    try:
        shorten_start(Settings({"LOG_LEVEL": level}))
        record = logger.makeRecord(logger.name, logging.INFO, "", 0, "Enabled %(what)s", (), None)
        assert bool(logger.filter(record)) is (level == "DEBUG")
        trouble = logger.makeRecord(logger.name, logging.WARNING, "", 0, "Enabled %(what)s", (), None)
        assert logger.filter(trouble)
    finally:
        logger.filters = before


def test_a_line_that_is_left_out_does_not_double_the_rate_of_the_next(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While Kafka does not answer, the lag of the line before is still asked for."""
    caplog.set_level(logging.INFO, "site_spider.service.log_lines")
    may_answer = Event()
    group = Mock(spec=GroupWatch, lag=lambda: may_answer.wait() and 7)
    monkeypatch.setattr(log_lines, "part_of", lambda _crawler, kind: group if kind is GroupWatch else None)
    crawler = get_crawler(settings_dict={"LOGSTATS_INTERVAL": 60.0})
    line = RateLine.from_crawler(crawler)
    line.pagesprev = line.itemsprev = 0
    for pages in (0, 10, 20, 30):
        crawler.stats.set_value("response_received_count", pages)
        line.log(crawler.spidercls)
        if pages == 20:
            may_answer.set()
            line._saying.join()
    line._saying.join()
    said = [message for message in caplog.messages if message.startswith("Crawled")]
    assert [line.partition(", ")[0] for line in said] == [
        "Crawled 10 pages (at 10 pages/min)", "Crawled 30 pages (at 10 pages/min)",
    ]  # fmt: skip


def test_want_of_threads_costs_a_line_and_not_all_further_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below a limit of them (ulimit -u, TasksMax=): Scrapy's loop ends with the first exception."""
    monkeypatch.setattr(log_lines, "part_of", lambda _crawler, kind: Mock() if kind is GroupWatch else None)
    monkeypatch.setattr(Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    crawler = get_crawler(settings_dict={"LOGSTATS_INTERVAL": 60.0})
    line = RateLine.from_crawler(crawler)
    line.pagesprev = line.itemsprev = 0
    for _ in range(3):
        line.log(crawler.spidercls)
    assert GroupWatch(Mock(), ("seeds",), "group", "dead").look() == {}


def test_a_line_now_and_then_tells_pages_items_and_lag(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of all that is in the topics, not of this process alone; none at the start."""
    caplog.set_level(logging.INFO, "site_spider.service.log_lines")
    going_on = asyncio.Event()

    async def slow(request: Request) -> Response:
        await going_on.wait()
        return page(request)

    engine.ANSWERS["/slow"] = slow
    seeds = [{"url": "http://h.test/"}, {"url": "http://h.test/slow"}]

    def has_told(_crawler: Crawler) -> bool:
        if "lag 1" in caplog.text:
            going_on.set()
        return "lag 0" in caplog.text

    crawl(tmp_path, seeds, until=has_told, LOGSTATS_INTERVAL=0.05)
    line = next(record.getMessage() for record in caplog.records if "lag 1" in record.getMessage())
    numbers = re.sub(r"at \d+", "at n", line)
    assert numbers == "Crawled 1 pages (at n pages/min), scraped 0 items (at n items/min), lag 1"


# --- log records, whoever makes them ---------------------------------------------------------------------


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    before = logging.getLogRecordFactory()
    scrapy_parts.install()
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    root.addHandler(handler)
    yield stream
    root.removeHandler(handler)
    logging.setLogRecordFactory(before)


def test_a_full_disk_takes_no_lines_and_ends_nothing(written: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    """Scrapy closes the file amid a start and opens it again, which failed with what had not been written."""
    on_disk = Settings({"LOG_FILE": "/dev/full"})
    for _ in range(2):
        install_scrapy_root_handler(on_disk)
        for line in ("one", "two"):
            logging.getLogger("scrapy").error(line)
    _uninstall_scrapy_root_handler()
    assert written.getvalue() == "one\ntwo\n" * 2
    assert capsys.readouterr().err == "/dev/full cannot be written: No space left on device\n" * 2


def assert_shown(text: str) -> None:
    assert "\\x1b[31m" in text
    assert text.replace("\n", "").replace("\t", "").isprintable()


@pytest.mark.parametrize("name", ["site_spider.frontier.spill", "scrapy.core.engine", "twisted"])
def test_messages_and_arguments_are_escaped(written: io.StringIO, name: str) -> None:
    """Of anybody's logger, as text, as an error and as a mapping."""
    logger = logging.getLogger(name)
    logger.error("It says: %s", HOSTILE)
    logger.error("It says: %s", ValueError(HOSTILE))
    logger.error("It says: %(what)s", {"what": HOSTILE})
    logger.error(f"It says: {HOSTILE}")
    assert written.getvalue().count("It says: \\x1b[31m") == 4
    assert_shown(written.getvalue())


def test_tracebacks_are_escaped(written: io.StringIO) -> None:
    """The last line of one is the server's; another handler writes the same text."""
    failed = ValueError(HOSTILE)
    try:
        exec("raise failed", {"failed": failed})
    except ValueError:
        logging.getLogger("scrapy").exception("It failed")
    assert "Traceback (most recent call last):\n" in written.getvalue()
    assert_shown(written.getvalue())


def test_a_message_of_ours_makes_one_line(written: io.StringIO) -> None:
    """No server adds a line that looks like a record, or fills the disk; Scrapy's tables keep their lines."""
    said = "a\n2026-01-01 [root] INFO: b" + "x" * 1_000_000
    logging.getLogger("site_spider.results.delivery").error("refused: %s", said)
    assert written.getvalue().startswith("refused: a\\n2026-01-01 [root] INFO: b")
    assert (written.getvalue().count("\n"), len(written.getvalue()) < 5_000) == (1, True)
    logging.getLogger("scrapy.statscollectors").error("Dumping:\n%s", "{'a': 1,\n 'b': 2}")
    assert written.getvalue().endswith("Dumping:\n{'a': 1,\n 'b': 2}\n")


def test_every_sink_is_named_with_its_place() -> None:
    given = settings(SITE_SINKS="elasticsearch, local,mine.Sink", SITE_RESULTS_INDEX="pages")
    assert where_results_go(given) == "elasticsearch (pages), local (data), mine.Sink"


def test_settings_of_scrapy_that_seeds_do_not_go_by_are_said(caplog: pytest.LogCaptureFixture) -> None:
    """But those that nobody has set."""
    say_what_has_no_effect(settings(JOBDIR=""))
    assert caplog.messages == []
    say_what_has_no_effect(settings(SCHEDULER_PRIORITY_QUEUE="scrapy.pqueues.ScrapyPriorityQueue", JOBDIR="job"))
    (said,) = caplog.messages
    assert said.startswith("JOBDIR, SCHEDULER_PRIORITY_QUEUE: no effect on seeds")
    tls = {"DOWNLOADER_CLIENTCONTEXTFACTORY": "mine.Factory"}
    caplog.clear()
    say_what_has_no_effect(settings(**tls, DOWNLOAD_HANDLERS={"https": "mine.Handler"}))
    assert not caplog.messages
    say_what_has_no_effect(settings(**tls))
    (said,) = caplog.messages
    assert said.startswith("DOWNLOADER_CLIENTCONTEXTFACTORY: no effect on the download handler of this project")


class Sitemaps(SeedSpider, SitemapSpider):
    name = "shop"
    sitemap_urls = ("http://h.test/sitemap.xml",)


class Urls(SeedSpider):
    name = "shop"
    start_urls = ["http://h.test/"]  # noqa: RUF012

    def start_requests(self) -> list[Request]:
        return []


class Own(SeedSpider):
    name = "shop"

    async def start(self) -> Any:
        yield Request("http://h.test/")


class Swapped(SitemapSpider, SeedSpider):
    """Its `start` is that of SitemapSpider."""

    name = "shop"


@pytest.mark.parametrize(
    ("spider", "said"),
    [
        (SeedSpider, []),
        (Sitemaps, ["sitemap_urls of spider shop: no effect"]),
        (Urls, ["start_urls, start_requests of spider shop: no effect"]),
        (Own, ["start of spider shop: each process fetches"]),
        (Swapped, ["start of spider shop: each process fetches"]),
    ],
)
def test_what_a_spider_would_begin_with_in_scrapy_is_said(
    caplog: pytest.LogCaptureFixture, spider: type[SeedSpider], said: list[str]
) -> None:
    """With the command that makes seeds of it."""
    say_starts_without_seeds(spider())
    assert [message[: len(words)] for message, words in zip(caplog.messages, said, strict=True)] == said
    assert all("scrapy seed --spider shop" in message for message in caplog.messages)


def test_who_listens_to_spider_idle_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """It is never sent: a spider that fetched more then would wait for ever."""

    class Feeding(Urls):
        def more(self) -> None: ...

    crawler = Crawler(Feeding, settings())
    say_who_waits_for_idle(crawler)
    assert caplog.messages == []
    crawler.signals.connect((spider := Feeding()).more, signals.spider_idle)
    crawler.signals.connect(nameless := partial(print), signals.spider_idle)
    say_who_waits_for_idle(crawler)
    (said,) = caplog.messages
    assert f"{type(spider).__qualname__}.more" in said
    assert f"{nameless!r}" in said


def test_processes_without_a_partition_are_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By the first process of crawl_spider.sh; a topic that is not there yet has no partitions to compare."""
    for slot, processes, partitions in (("2", "4", 3), ("1", "3", 3), ("1", "4", 0), ("1", "", 1), ("1", "4", 3)):
        assert caplog.messages == []
        monkeypatch.setenv(SLOT, slot)
        monkeypatch.setenv(PROCESSES, processes)
        say_idle_processes(["seeds"], partitions)
    (said,) = caplog.messages
    assert said.startswith("Topic seeds has 3 partitions for 4 processes, ")
