"""An outage is said once, and once that it is over."""

from __future__ import annotations

import asyncio
import logging

import pytest

from site_spider.outage import Outage, until_there, wait_until_there
from tests.in_process import virtual_time


def test_one_line_when_it_begins_and_one_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    outage = Outage(logging.getLogger("trial"), "The store is away", "The store is back")
    outage.is_over()
    assert (outage.is_on, outage.seconds()) == (False, 0)
    for _ in range(2):
        for reason in ("refused", "refused", "reset"):
            outage.goes_on(reason)
            assert outage.is_on
            assert outage.seconds() > 0
        outage.is_over()
        outage.is_over()
        assert not outage.is_on
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"] * 2
    assert caplog.messages[0] == "The store is away: refused"
    assert caplog.messages[1].startswith("The store is back after 0.")


class Store:
    def __init__(self, failures: int) -> None:
        self.failures = failures

    async def open(self) -> str:
        return self.opened()

    def opened(self) -> str:
        self.failures -= 1
        if self.failures >= 0:
            raise ConnectionError(f"{self.failures} left")
        return "open"


@pytest.mark.parametrize("blocks", [False, True])
def test_what_is_away_is_awaited(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, blocks: bool
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("site_spider.outage._PAUSE_SECONDS", 0.001)
    outage = Outage(logging.getLogger("trial"), "away", "there")
    if blocks:
        assert wait_until_there(Store(3).opened, ConnectionError, 20, outage) == "open"
        with pytest.raises(ConnectionError, match="98 left"):
            wait_until_there(Store(99).opened, ConnectionError, 0, Outage(logging.getLogger("trial"), "", ""))
    else:
        assert asyncio.run(until_there(Store(3).open, ConnectionError, 20, outage)) == "open"
    assert [message.partition(" after")[0] for message in caplog.messages] == ["away: 2 left", "there"]


@pytest.mark.parametrize(("waited_for", "left"), [(ConnectionError, 98), (TimeoutError, 99)])
def test_what_stays_away_is_the_error_of_the_last_attempt(waited_for: type[Exception], left: int) -> None:
    """Another error than that is not waited for."""
    outage = Outage(logging.getLogger("trial"), "away", "there")
    with pytest.raises(ConnectionError, match=f"{left} left"):
        virtual_time.run(until_there(Store(100).open, waited_for, 0.7, outage))
