"""Links that differ in parameters of trackers alone are one page (SITE_DROP_PARAMS)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response

from site_spider.errors import ConfigError
from tests.in_process.engine import ANSWERS, crawl, page
from tests.in_process.linked_site import HOST, case, every_kind, kinds_elsewhere, outcomes, settings
from tests.tasks.test_control import declare

__all__ = ["case", "settings"]

LINKS = "".join(f'<a href="/p{tail}">' for tail in ("?utm_source=a", "", "?utm_source=b&gclid=1", "?n=1"))


@pytest.fixture
def visits() -> Any:
    """URLs asked for, of a site whose every page has these links."""
    asked: list[str] = []

    def answer(request: Request) -> Response:
        asked.append(request.url.removeprefix(HOST))
        return page(request, LINKS)

    ANSWERS.update(dict.fromkeys(("/", "/p", "/s"), answer))
    return asked


def seed(path: str, **fields: Any) -> dict[str, Any]:
    return {"url": HOST + path, **fields}


@pytest.mark.parametrize(
    ("names", "asked"),
    [
        ("tracking", ["/", "/p?n=1", "/p?utm_source=a"]),
        ("none", ["/", "/p", "/p?n=1", "/p?utm_source=a", "/p?utm_source=b&gclid=1"]),
        ("tracking,n", ["/", "/p?utm_source=a"]),
    ],
)
def test_the_first_of_them_is_fetched_and_stored_as_it_was_found(
    tmp_path: Path, visits: list[str], names: str, asked: list[str]
) -> None:
    crawled = crawl(tmp_path, [seed("/")], **({} if names == "tracking" else {"SITE_DROP_PARAMS": names}))
    assert sorted(visits) == asked
    assert {document["url"].removeprefix(HOST) for document in crawled.documents.values()} == set(visits)


def test_a_task_has_parameters_of_its_own(tmp_path: Path, visits: list[str]) -> None:
    declare(tmp_path, "t", drop_params="tracking,n")
    declare(tmp_path, "u", drop_params=["none"])
    of_task = [seed("/", meta={"task_id": name}) for name in ("t", "u")]
    crawled = crawl(tmp_path, of_task)
    pages = [document["task_id"] for document in crawled.documents.values()]
    assert (pages.count("t"), pages.count("u")) == (2, 5)


@every_kind
@pytest.mark.parametrize("filters", [False, True])
def test_seeds_are_never_filtered_by_it(
    tmp_path: Path, visits: list[str], settings: dict[str, Any], filters: bool
) -> None:
    """Not for each other, and not for links that look like them; a link to a seed's page is."""
    twice = seed("/s?utm_source=1")
    seeds = [twice, seed("/s?utm_source=2"), seed("/s"), seed("/p"), twice]
    crawled = crawl(tmp_path, seeds, SITE_FILTER_SEEDS=filters, **settings)
    asked = [url for url in visits if url.startswith("/s")]
    assert sorted(set(asked)) == ["/s", "/s?utm_source=1", "/s?utm_source=2"]
    assert outcomes(crawled).get("filtered", 0) == (1 if filters else 0)
    assert "/p" in visits
    assert sum(url.startswith("/p") and url != "/p?n=1" for url in visits) <= 2


@kinds_elsewhere
def test_a_later_process_knows_them_by_their_form_and_seeds_by_their_url(
    tmp_path: Path, visits: list[str], settings: dict[str, Any]
) -> None:
    """With SITE_FILTER_SEEDS, where links have a fingerprint apart."""
    both = {"SITE_FILTER_SEEDS": True, **settings}
    crawl(tmp_path, [seed("/")], **both)
    visits.clear()
    crawled = crawl(tmp_path, [seed("/"), seed("/s"), seed("/p"), seed("/p?utm_source=a")], **both)
    assert sorted(visits) == ["/p", "/s"]
    assert outcomes(crawled) == {"completed_with_result": 2, "filtered": 2}


def test_links_that_were_sent_to_the_seed_topic_are_compared_there(tmp_path: Path, visits: list[str]) -> None:
    for filters in (False, True):
        visits.clear()
        folder = tmp_path / str(filters)
        crawled = crawl(folder, [seed("/")], SITE_LINKS_TO="kafka", SITE_FILTER_SEEDS=filters)
        assert sorted(visits) == ["/", "/p?n=1", "/p?utm_source=a"]
        assert outcomes(crawled).get("filtered", 0) == 0
        assert crawled.lag == 0


def test_a_redirect_to_the_bare_page_is_followed(tmp_path: Path, visits: list[str]) -> None:
    """It is another attempt at the same page, and no link."""

    def moved(request: Request) -> Response:
        return Response(request.url, status=301, headers={"Location": f"{HOST}/p"})

    ANSWERS["/r"] = moved
    crawled = crawl(tmp_path, [seed("/p"), seed("/r")])
    (redirected,) = (said for said in crawled.documents.values() if said["url"] == f"{HOST}/r")
    assert (redirected["status"], redirected["final_url"]) == (200, f"{HOST}/p")


def test_what_is_no_list_of_names_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SITE_DROP_PARAMS says none beside other names"):
        crawl(tmp_path, [seed("/")], SITE_DROP_PARAMS="none,a")
