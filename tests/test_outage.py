"""An outage is said once, and once that it is over."""

from __future__ import annotations

import logging

import pytest

from site_spider.outage import Outage


def test_one_line_when_it_begins_and_one_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    outage = Outage(logging.getLogger("trial"), "The store is away", "The store is back")
    outage.is_over()
    assert not outage
    for _ in range(2):
        for reason in ("refused", "refused", "reset"):
            outage.goes_on(reason)
            assert outage
        outage.is_over()
        outage.is_over()
        assert not outage
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"] * 2
    assert caplog.messages[0] == "The store is away: refused"
    assert caplog.messages[1].startswith("The store is back after 0.")


def test_it_says_how_long_it_lasts() -> None:
    outage = Outage(logging.getLogger("trial"), "away", "back")
    assert outage.seconds() == 0
    outage.goes_on("refused")
    assert outage.seconds() > 0
