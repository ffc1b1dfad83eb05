"""Warnings and errors counted by logger, however many loggers there are."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from site_spider.observe.counters import MOST_LOGGERS, LogTally


@pytest.fixture
def tally() -> Iterator[LogTally]:
    tally = LogTally()
    tally.open()
    yield tally
    tally.close()


def counts(tally: LogTally) -> dict[tuple[str, str], int]:
    return {(each["level"], each["logger"]): each["count"] for each in tally.document() if each["count"]}


def test_warnings_and_errors_count_by_logger_and_nothing_below(tally: LogTally) -> None:
    logger = logging.getLogger("tally.one")
    for level in (logging.INFO, logging.WARNING, logging.WARNING, logging.ERROR, logging.CRITICAL):
        logger.log(level, "said")
    assert counts(tally) == {("warning", "tally.one"): 2, ("error", "tally.one"): 2}


def test_names_are_bounded_in_number_and_length(tally: LogTally) -> None:
    for number in range(3 * MOST_LOGGERS):
        logging.getLogger(f"tally.{number}." + "x" * 1000).warning("said")
    found = counts(tally)
    assert len(found) == MOST_LOGGERS + 1
    assert sum(found.values()) == 3 * MOST_LOGGERS
    assert all(len(logger) <= 60 for _, logger in found)


def test_an_increase_from_nothing_can_be_seen(tally: LogTally) -> None:
    """Prometheus sees no increase where there was no series before."""
    assert {(each["level"], each["logger"], each["count"]) for each in tally.document()} == {
        ("warning", "other", 0),
        ("error", "other", 0),
    }


def test_nothing_counts_after_the_end() -> None:
    tally = LogTally()
    tally.open()
    tally.close()
    logging.getLogger("tally.late").warning("said")
    assert counts(tally) == {}
