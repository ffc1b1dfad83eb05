"""A waiting room with nothing around it."""

from __future__ import annotations

from math import inf

from site_spider.frontier.frontier import Frontier
from site_spider.frontier.retry import HostBackoff
from site_spider.frontier.waiting_room import Politeness, WaitingRoom
from site_spider.intake.room import Load
from site_spider.ledger.completion import Completion, SeedListener
from site_spider.ledger.ledger import Ledger


def bare_room() -> WaitingRoom:
    """Without limits, politeness and robots.txt; on the running event loop."""
    return WaitingRoom(
        Frontier(),
        Politeness(HostBackoff(1, 1), inf, None, None),
        Load(10**9, 10**12),
        Completion(Ledger(), SeedListener()),
        lambda _entry: True,
        lambda: None,
        lambda: None,
    )
