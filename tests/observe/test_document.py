"""The statistics document."""

from __future__ import annotations

from site_spider.contracts.seed_log import Partition
from site_spider.frontier.levels import PROXY_LEVEL, queue_lengths
from site_spider.ledger.entry import Outcome
from site_spider.ledger.ledger import Ledger
from site_spider.observe import document as statistics
from site_spider.observe.document import Snapshot, Totals
from site_spider.results.name_counts import NameCounts

NAMES = {"spider": "s", "group": "g", "process": "p"}


def test_totals_run_on_and_intervals_are_differences() -> None:
    """A document has the totals of the process and what was added since the one before."""
    state = Snapshot(Totals(10, 1000, 100), responses={"200": 10})
    made = statistics.document(NAMES, 3, 1_700_000_000.25, 9.9996, state, Totals(4, 300, 60))
    assert made["@timestamp"] == "2023-11-14T22:13:20.250+00:00"
    assert (made["total_num"], made["total_response_size"], made["total_request_size"]) == (10, 1000, 100)
    assert (made["interval_num"], made["interval_response_size"], made["interval_request_size"]) == (
        6,
        700,
        40,
    )
    assert made["interval_seconds"] == 10.0
    assert made["robots"] == {"num": 0, "response_size": 0, "request_size": 0}
    assert statistics.document_id("p", 3) == "p-3"


def test_robots_txt_is_counted_beside_the_links() -> None:
    """Its fetches are no links downloaded, and its bytes are not theirs."""
    made = statistics.document(NAMES, 0, 0, 1, Snapshot(Totals(3, 30, 9), robots=Totals(2, 20, 6)), Totals())
    assert (made["total_num"], made["interval_response_size"], made["total_request_size"]) == (3, 30, 9)
    assert made["robots"] == {"num": 2, "response_size": 20, "request_size": 6}


def test_every_seed_is_accounted_for() -> None:
    """Consumed seeds are those that ended, by outcome, and those in flight."""
    ledger = Ledger()
    ledger.assign(Partition("t", 0), None)
    for offset, outcome in enumerate([*Outcome, None]):
        entry = ledger.take(Partition("t", 0), offset)
        assert entry is not None
        if outcome is not None:
            ledger.decide(entry, outcome)
            ledger.release(entry)
    counts = statistics.seed_counts(ledger)
    assert counts["consumed"] == 7
    assert counts["in_flight"] == 1
    assert statistics.is_conserved(counts)
    assert not statistics.is_conserved(counts | {"consumed": 8})


def test_names_from_outside_cannot_blow_up_the_index() -> None:
    """Names are bounded in number and in length, and hold no dots."""
    counts = NameCounts()
    for number in range(1000):
        counts.add(f"field {number}")
    counts.add("x" * 10_000)
    counts.add("")
    assert len(counts.counts) <= 101
    assert sum(counts.counts.values()) == 1002
    counts = NameCounts()
    counts.add("x" * 10_000)
    counts.add_failure("Forbidden by robots.txt: no")
    counts.add_failure("HTTP 503 Service Unavailable (after 2 retries: 2 x HTTP 503)")
    assert list(counts.counts) == ["x" * 80, "Forbidden by robots_txt", "HTTP 503 Service Unavailable"]


def test_levels_become_five_lengths() -> None:
    """However many levels there are, the document has the same fields."""
    lengths = queue_lengths({-9: 1, -2: 2, -1: 3, 0: 6, 1: 4, 100: 5, PROXY_LEVEL - 2: 3, PROXY_LEVEL: 4})
    assert lengths == {"redirected": 3, "discovered": 3, "seeds": 6, "retried": 9, "proxied": 7}
