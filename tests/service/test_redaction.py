"""Log records without the secrets of the settings."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from scrapy.settings import Settings

from site_spider.engine import log_record
from site_spider.service.redaction import redact_logs

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


def test_the_formatter_of_a_crawl_leaves_it_in_place() -> None:
    """Scrapy makes it after the settings are known, and it installs the class of records once more."""
    before = logging.getLogRecordFactory()
    try:
        log_record.install()
        redact_logs(Settings({"SITE_SPILL_KEY": "s3cret-s3cret-s3cret"}))
        log_record.install()
        record = logging.getLogRecordFactory()("x", logging.INFO, "", 0, "a s3cret-s3cret-s3cret", (), None)
        assert record.getMessage() == "a ***"
    finally:
        logging.setLogRecordFactory(before)
