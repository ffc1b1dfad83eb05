"""Log lines of several processes are told apart, and a start is three of them."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.settings import Settings

from site_spider.engine.scrapy_parts import EscapedRecord, begin_lines_with
from site_spider.service.log_lines import PROCESSES, SLOT, own_log_lines, shorten_start
from tests.in_process import engine
from tests.in_process.engine import crawl, page

FORM = "%(levelname)s: %(message)s"


@pytest.fixture(autouse=True)
def without_prefix() -> Iterator[None]:
    yield
    begin_lines_with("")


def settled(environ: dict[str, str], **given: str) -> Settings:
    settings = Settings({"LOG_FORMAT": FORM, **given})
    own_log_lines(settings, environ)
    return settings


@pytest.mark.parametrize(
    ("environ", "form", "expected"),
    [
        ({}, FORM, FORM),
        ({SLOT: "1", PROCESSES: "1"}, FORM, FORM),
        ({SLOT: "3", PROCESSES: "4"}, FORM, f"[3] {FORM}"),
        ({SLOT: "3", PROCESSES: "4"}, '{"said": "%(message)s"}', '{"slot": 3, "said": "%(message)s"}'),
        ({SLOT: "3", PROCESSES: "many"}, FORM, FORM),
    ],
)
def test_lines_begin_with_the_slot_where_there_are_several(environ: dict[str, str], form: str, expected: str) -> None:
    assert settled(environ, LOG_FORMAT=form)["LOG_FORMAT"] == expected


@pytest.mark.parametrize(("environ", "name"), [({SLOT: "3"}, "crawl-3.log"), ({}, "crawl-1.log")])
def test_the_name_of_a_log_file_may_hold_the_slot(environ: dict[str, str], name: str) -> None:
    assert settled(environ, LOG_FILE="crawl-%p.log")["LOG_FILE"] == name


def test_without_a_log_file_there_is_none() -> None:
    assert settled({SLOT: "3", PROCESSES: "4"})["LOG_FILE"] is None


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
    engine.ANSWERS.clear()
    line = next(record.getMessage() for record in caplog.records if "lag 1" in record.getMessage())
    numbers = re.sub(r"at \d+", "at n", line)
    assert numbers == "Crawled 1 pages (at n pages/min), scraped 0 items (at n items/min), lag 1"


def test_further_lines_of_a_record_begin_with_the_slot_as_well() -> None:
    """Tables and tracebacks."""
    settled({SLOT: "3", PROCESSES: "4"})
    record = EscapedRecord("scrapy", logging.ERROR, "", 0, "one\ntwo", (), None)
    record.exc_text = "Traceback\n  line"
    text = logging.Formatter("[3] %(message)s").format(record)
    assert [line.partition(" ")[0] for line in text.splitlines()] == ["[3]"] * 4
