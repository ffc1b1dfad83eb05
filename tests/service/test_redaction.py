"""Log records without the secrets of the settings."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from scrapy.settings import Settings

from site_spider.engine import scrapy_parts
from site_spider.service.environment import redact_logs

SECRET = "m4rk3d-s3cr3t"
logger = logging.getLogger(__name__)


@pytest.fixture(autouse=True)
def redacted() -> Iterator[None]:
    before = logging.getLogRecordFactory()
    redact_logs(Settings({"SITE_REDIS_URL": "redis://:of-another-crawl@h:1"}))
    redact_logs(Settings({"SITE_REDIS_URL": f"redis://:{SECRET}@h:1"}))
    yield
    logging.setLogRecordFactory(before)


def test_messages_arguments_and_tracebacks_lose_secrets(caplog: pytest.LogCaptureFixture) -> None:
    """Wherever they stand."""
    try:
        int(f"cannot use {SECRET}")
    except ValueError as error:
        logger.exception("a %s", SECRET)
        logger.warning("%s", {"url": [SECRET]}, exc_info=error)
    assert "m4rk3d" not in caplog.text
    assert "'cannot use ***'" in caplog.text


def test_other_records_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    """Also those of an earlier crawl's secrets: each call replaces the one before."""
    logger.warning("a %s of-another-crawl", "word")
    assert caplog.records[0].args == ("word",)
    assert "of-another-crawl" in caplog.text


def test_a_crawl_that_has_its_records_escaped_keeps_what_hides_secrets() -> None:
    """Scrapy makes its log formatter later."""
    scrapy_parts.install()
    redact_logs(Settings({"MAIL_PASS": SECRET}))
    hiding = logging.getLogRecordFactory()
    scrapy_parts.install()
    assert logging.getLogRecordFactory() is hiding
    made = hiding("scrapy", logging.INFO, "", 0, "It says %s", (f"{SECRET}\x1b",), None)
    assert made.getMessage() == "It says ***\\x1b"
