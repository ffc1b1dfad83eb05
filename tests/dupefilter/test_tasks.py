"""Two tasks on one site in one process: each gets all of it, or they share it (SITE_DUPEFILTER_SCOPE)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from site_spider import settings as settings_module
from site_spider.errors import ConfigError
from site_spider.page.url import page_fingerprint, url_id
from site_spider.service.config import ServiceSettings
from tests.in_process.engine import Crawled, crawl
from tests.in_process.linked_site import HOST, Site, case, every_kind, outcomes, seed, settings, site

__all__ = ["case", "settings", "site"]

PAGES = ["root", *(f"page{number}" for number in range(8))]


def of_nine_pages(site: Site) -> None:
    for name in PAGES:
        site.has(name, *PAGES)


def of_task(task_id: str | None, path: str = "root", **meta: Any) -> dict[str, Any]:
    return seed(path, meta={"task_id": task_id, **meta})


def documents_by_task(found: Crawled) -> Counter[str | None]:
    return Counter(document["task_id"] for document in found.documents.values())


@every_kind
def test_two_tasks_on_one_site_both_get_all_of_it(tmp_path: Path, site: Site, settings: dict[str, Any]) -> None:
    of_nine_pages(site)
    found = crawl(tmp_path, [of_task("a"), of_task("b"), of_task(None)], **settings)
    assert documents_by_task(found) == {"a": 9, "b": 9, None: 9}
    assert set(site.visits.values()) == {3}
    for task_id in ("a", "b", None):
        ids = {key for key, document in found.documents.items() if document["task_id"] == task_id}
        assert ids == {url_id(f"{HOST}/{name}", task_id) for name in PAGES}


def test_with_the_scope_group_they_share_what_is_done_and_ids(tmp_path: Path, site: Site) -> None:
    of_nine_pages(site)
    group: dict[str, Any] = {"SITE_DUPEFILTER_SCOPE": "group", "SITE_DUPEFILTER": "local"}
    assert documents_by_task(crawl(tmp_path, [of_task("a")], **group)) == {"a": 9}
    found = crawl(tmp_path, [of_task("b")], **group)
    assert found.documents.keys() == {url_id(f"{HOST}/{name}") for name in PAGES}
    assert site.visits == {name: 2 if name == "root" else 1 for name in PAGES}


@pytest.mark.parametrize("where", ["memory", "kafka"])
def test_with_the_scope_group_nothing_waits_for_another_task(tmp_path: Path, site: Site, where: str) -> None:
    """That may be cancelled, paused or expire before it comes to these pages."""
    of_nine_pages(site)
    crawl(tmp_path, [of_task("a"), of_task("b")], SITE_DUPEFILTER_SCOPE="group", SITE_LINKS_TO=where)
    assert set(site.visits.values()) == {2}


def test_with_the_scope_group_a_seed_is_filtered_for_what_is_done_alone(tmp_path: Path, site: Site) -> None:
    """Or for a seed of its own task."""
    site.has("x")
    group: dict[str, Any] = {"SITE_DUPEFILTER_SCOPE": "group", "SITE_DUPEFILTER": "local", "SITE_FILTER_SEEDS": True}
    both = [of_task(task, "x") for task in ("a", "b", "a")]
    assert outcomes(crawl(tmp_path, both, **group)) == {"completed_with_result": 2, "filtered": 1}
    assert outcomes(crawl(tmp_path, [of_task("c", "x")], **group)) == {"filtered": 1}


def test_links_that_go_to_the_topic_stay_within_their_task(tmp_path: Path, site: Site) -> None:
    """Their messages carry the task, and what is sent for one task is not taken for sent for the other."""
    of_nine_pages(site)
    found = crawl(tmp_path, [of_task("a"), of_task("b")], SITE_LINKS_TO="kafka")
    assert documents_by_task(found) == {"a": 9, "b": 9}
    assert set(site.visits.values()) == {2}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_seeds_are_filtered_within_their_task(tmp_path: Path, site: Site, method: str) -> None:
    """With SITE_FILTER_SEEDS; over a restart as well. HEAD is compared by Scrapy's fingerprinter, not as pages are."""
    site.has("x")
    *both, another = ({**of_task(task, "x"), "method": method} for task in ("a", "b", None, "c"))
    store = {"SITE_DUPEFILTER": "local", "SITE_FILTER_SEEDS": True}
    assert outcomes(crawl(tmp_path, both, **store)) == {"completed_with_result": 3}
    assert outcomes(crawl(tmp_path, [*both, another], **store)) == {"completed_with_result": 1, "filtered": 3}


def test_no_two_tasks_share_a_fingerprint_or_an_id() -> None:
    """Whatever their names are: no part of a name passes for a part of the URL."""
    url = f"{HOST}/x"
    names = [None, "a", "ab", "a\u2028", "http://host.test/x", "\ud83d", "0" * 512]
    assert len({page_fingerprint(url, name) for name in names}) == len(names)
    assert len({url_id(url, name) for name in names}) == len(names)


def test_another_word_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"SITE_DUPEFILTER_SCOPE is 'host', .* one of: task, group"):
        ServiceSettings({**vars(settings_module), "SITE_DUPEFILTER_SCOPE": "host"})
