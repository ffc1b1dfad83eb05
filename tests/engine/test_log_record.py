"""Log records, whoever makes them and whichever handler writes them."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from site_spider.engine import scrapy_parts
from tests.test_escape import HOSTILE


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What a handler of the standard library writes."""
    before = logging.getLogRecordFactory()
    scrapy_parts.install()
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    root.addHandler(handler)
    yield stream
    root.removeHandler(handler)
    logging.setLogRecordFactory(before)


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
    """No server adds a line that looks like a record; Scrapy's tables keep their lines."""
    logging.getLogger("site_spider.results.delivery").error("refused: %s", "a\n2026-01-01 [root] INFO: b")
    assert written.getvalue() == "refused: a\\n2026-01-01 [root] INFO: b\n"
    logging.getLogger("scrapy.statscollectors").error("Dumping:\n%s", "{'a': 1,\n 'b': 2}")
    assert written.getvalue().endswith("Dumping:\n{'a': 1,\n 'b': 2}\n")


def test_long_messages_are_cut(written: io.StringIO) -> None:
    """A page that an error quotes does not fill the disk."""
    logging.getLogger("site_spider").error("%s", "x" * 1_000_000)
    assert len(written.getvalue()) < 5_000
