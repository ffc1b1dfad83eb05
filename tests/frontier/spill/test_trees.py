"""Long trees: what one death of the process repeats, and counts for, is bounded."""

from __future__ import annotations

from pathlib import Path

from site_spider.ledger.metadata import Suspicion
from tests.frontier.spill.test_spill import messages
from tests.in_process.engine import crawl
from tests.in_process.linked_site import Site, seed, site
from tests.intake.quarantine.test_deaths import leave_behind

__all__ = ["site"]

LINKS = 30


def has_fan(site: Site) -> None:
    """/root links to all others, each of which links to one of its own."""
    names = [f"{number}" for number in range(LINKS)]
    site.has("root", *names)
    for name in names:
        site.has(name, "root", f"{name}-leaf")
        site.has(f"{name}-leaf", "root")


def test_links_beyond_the_pages_of_a_tree_are_seeds_of_their_own(tmp_path: Path, site: Site) -> None:
    has_fan(site)
    found = crawl(tmp_path, [seed("root")], SITE_TREE_MAX_PAGES=11)
    assert len(site.visits) == 2 * LINKS + 1
    assert set(site.visits.values()) == {1}
    assert len(messages(tmp_path)) >= 1 + LINKS - 10
    assert found.seeds["completed_with_result"] == len(messages(tmp_path))
    assert found.lag == 0


def test_a_small_tree_stays_in_memory(tmp_path: Path, site: Site) -> None:
    has_fan(site)
    crawl(tmp_path, [seed("root")], SITE_TREE_MAX_PAGES=2 * LINKS + 1)
    assert len(messages(tmp_path)) == 1
    assert len(site.visits) == 2 * LINKS + 1


def test_a_tree_that_was_under_way_at_a_death_keeps_no_links(tmp_path: Path, site: Site) -> None:
    """Each is a seed, so that the next death counts for it alone."""
    has_fan(site)
    leave_behind(tmp_path, [seed("root")], Suspicion(1))
    found = crawl(tmp_path, [])
    assert set(site.visits.values()) == {1}
    assert len(messages(tmp_path)) >= 1 + LINKS
    assert found.lag == 0
