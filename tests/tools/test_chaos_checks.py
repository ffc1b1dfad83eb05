"""What chaos.sh compares can fail: a planted loss, double, early end, wrong count."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tools.chaos.check import Check, Stored
from tools.chaos.feed import ChaosTask, Page, ToldEnd, Workload
from tools.chaos.pages import item_text
from tools.chaos.plan import read_options
from tools.site.expected import expected

SEEDS, TASKS, TOLD_AT = 6, 2, 1000.0


@pytest.fixture
def pages(tmp_path: Path) -> list[Page]:
    options = read_options(["--folder", str(tmp_path), "--seeds", str(SEEDS), "--tasks", str(TASKS)])
    workload = Workload(options, 80, ["seeds"])
    return [page for seed in range(SEEDS) for page in workload.pages_of(seed)]


def test_a_root_that_is_stored_as_a_link_as_well_is_counted_where_that_may_be(pages: list[Page]) -> None:
    second = (pages[0].key_of_link, document(pages[0])[1])
    stored = [*map(document, pages), second]
    assert list(of_documents(pages, stored).counts) == ["a document that nothing asked for"]
    verdict = of_documents(pages, stored, roots_come_again=True)
    assert (verdict.wrong, verdict.rows) == ([], [("roots with a second document, as links", 1)])
    assert verdict.documents["chaos-000"] == 3


def document(page: Page, **changes: Any) -> Stored:
    found = expected(page.url, extract=False)
    headers = json.dumps({name: list(values) for name, values in found.headers.items()})
    said = {"url_id": page.key, "task_id": page.task, "status": 200, "body": found.body, "headers": headers}
    return page.key, {**said, **changes}


def of_documents(pages: list[Page], stored: Iterable[Stored], letters: set[str] = set(), **how: Any) -> Check:  # noqa: B006
    check = Check(pages, **how)
    check.check_documents(stored, letters)
    return check


def of_items(pages: list[Page], stored: Iterable[Stored], **how: Any) -> Check:
    check = Check(pages, **how)
    check.check_items(stored)
    return check


# --- documents and items --------------------------------------------------------------------------


def test_all_that_is_wanted_is_right(pages: list[Page]) -> None:
    verdict = of_documents(pages, map(document, pages))
    assert (verdict.results, verdict.lost, verdict.wrong) == (SEEDS, set(), [])
    assert verdict.documents == {"chaos-000": 3, "chaos-001": 3}


def test_a_lost_document_is_found(pages: list[Page]) -> None:
    verdict = of_documents(pages, map(document, pages[1:]))
    assert (verdict.lost, verdict.counts) == ({0}, {"lost": 1})


def test_a_document_of_a_dead_letter_is_not_lost(pages: list[Page]) -> None:
    verdict = of_documents(pages, map(document, pages[1:]), {pages[0].key})
    assert verdict.wrong == []


def test_a_document_that_is_there_twice_is_found_where_each_is_stored_once(pages: list[Page]) -> None:
    twice = [document(page) for page in (*pages, pages[2])]
    assert list(of_documents(pages, twice).counts) == ["a document twice"]
    assert of_documents(pages, twice, is_once=False).wrong == []


@pytest.mark.parametrize("changes", [{"body": "else"}, {"status": 500}, {"task_id": "other"}])
def test_a_wrong_document_is_found(pages: list[Page], changes: dict[str, Any]) -> None:
    verdict = of_documents(pages, [document(pages[0], **changes), *map(document, pages[1:])])
    assert (verdict.results, list(verdict.counts)) == (SEEDS - 1, ["a wrong document"])


def test_seeds_of_a_cancelled_task_have_a_page_or_say_so(pages: list[Page]) -> None:
    said = {"status": None, "body": None, "headers": None, "description": "CancelledError: task is cancelled"}
    stored = [document(pages[0], **said), *map(document, pages[1:2]), *map(document, pages[3:])]
    verdict = of_documents(pages, stored, cancelled={"chaos-000"}, each_cancelled=True)
    assert (verdict.told_cancelled["chaos-000"], list(verdict.counts)) == (1, ["lost"])
    assert of_documents(pages, stored, cancelled={"chaos-000"}).wrong == []
    assert len(of_documents(pages, stored).counts) == 2  # nobody has cancelled it


def item(page: Page, place: int, text: str = "") -> Stored:
    return f"{page.key}-{place}", {"text": text or item_text(page.url, place)}


def test_items_that_are_lost_wrong_or_twice_are_found(pages: list[Page]) -> None:
    items = [item(page, place) for page in pages for place in (1, 2)]
    assert of_items(pages, items).wrong == []
    assert list(of_items(pages, items[1:]).counts) == ["a lost item"]
    assert list(of_items(pages, [*items, items[4]]).counts) == ["an item twice"]
    assert list(of_items(pages, [item(pages[0], 1, "?"), *items[1:]]).counts) == ["a wrong item"]
    foreign = ("seed-9-1", {"text": "?"})
    found = of_items(pages, [*items, foreign])
    assert list(found.counts) == ["an item that nothing asked for"]


def test_requests_are_counted(pages: list[Page]) -> None:
    asked = Counter([page.url for page in pages] + [pages[0].url, "http://else/"])
    verdict = Check(pages)
    verdict.check_requests(asked)
    assert verdict.twice == 1
    assert list(verdict.counts) == ["a request that nothing asked for"]


# --- ends of tasks ----------------------------------------------------------------------------------


class Ends:
    """Two tasks of three seeds, all of them fetched before their end is told."""

    def __init__(self, pages: list[Page]) -> None:
        self.tasks = {page.task: ChaosTask(page.task) for page in pages}
        for page in pages:
            self.tasks[page.task].seeds.append(page.seed)
        self.first = {page.url: TOLD_AT - 1 for page in pages}
        self.told = [self.end(task) for task in self.tasks.values()]
        self.check = Check(pages, documents=Counter({"chaos-000": 3, "chaos-001": 3}))

    def end(self, task: ChaosTask, **changes: Any) -> ToldEnd:
        said = {"event": "done", "generation": 1, "pages": 3, "seeds": {"result": 3, "total": 3}}
        return ToldEnd(TOLD_AT, json.dumps({"task_id": task.name, **said, **changes}).encode())

    def wrong(self, *, may_repeat: bool = False) -> str:
        self.check.wrong.clear()
        self.check.check_ends(self.tasks, self.told, self.first, may_repeat=may_repeat, one_page_a_seed=True)
        return "\n".join(self.check.wrong)


@pytest.fixture
def ends(pages: list[Page]) -> Ends:
    return Ends(pages)


def test_right_ends_are_right(ends: Ends) -> None:
    assert ends.wrong() == ""


def test_an_end_that_was_never_told_is_found(ends: Ends) -> None:
    del ends.told[1]
    assert ends.wrong() == "an end that was never told: chaos-001"


def test_an_end_that_was_told_twice_is_found(ends: Ends) -> None:
    ends.told.append(ends.told[0])
    assert ends.wrong(may_repeat=True) == ""
    assert "an end told twice" in ends.wrong()
    ends.told.append(ends.end(ends.tasks["chaos-000"], last_at="later"))
    assert "an end told twice" in ends.wrong(may_repeat=True)


def test_an_end_before_the_last_page_is_found(ends: Ends, pages: list[Page]) -> None:
    ends.first[pages[2].url] = TOLD_AT + 0.5
    assert f"it was told 0.500 s before {pages[2].url} was fetched" in ends.wrong()


def test_an_end_without_a_page_is_found(ends: Ends, pages: list[Page]) -> None:
    del ends.first[pages[2].url]
    assert "never fetched" in ends.wrong()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pages": 4, "seeds": {"result": 4, "total": 4}}, "it counts 4 pages; 3 are stored"),
        ({"pages": 2, "seeds": {"result": 2, "total": 2}}, "2 endings of 3 seeds"),
        ({"seeds": {"result": 3, "total": 4}}, "add up to 3"),
        ({"seeds": {"result": 2, "filtered": 1, "total": 3}}, "2 seeds have ended with a page"),
        ({"seeds": {"result": 3, "filtered": 1, "total": 4}}, "4 endings of 3 seeds"),
        ({"generation": 2}, "generation 2"),
        ({"event": "cancelled"}, "nobody asked for cancelled"),
    ],
)
def test_wrong_counts_are_found(ends: Ends, changes: dict[str, Any], said: str) -> None:
    ends.told[0] = ends.end(ends.tasks["chaos-000"], **changes)
    assert said in ends.wrong()


def test_a_task_that_was_paused_may_count_what_came_back_twice(ends: Ends) -> None:
    task = ends.tasks["chaos-000"]
    task.was_paused = True
    ends.told[0] = ends.end(task, pages=4, seeds={"result": 4, "spilled": 2, "total": 6})
    assert "it counts 4 pages; 3 are stored" in ends.wrong()
    ends.told[0] = ends.end(task, pages=3, seeds={"result": 4, "spilled": 2, "total": 6})
    assert ends.wrong() == ""


def test_the_counts_of_a_cancelled_task_include_what_was_cancelled(ends: Ends) -> None:
    task = ends.tasks["chaos-001"]
    task.is_cancelled = True
    seeds = {"result": 1, "cancelled": 2, "total": 3}
    ends.told[1] = ends.end(task, event="cancelled", pages=1, seeds=seeds)
    assert ends.wrong() == ""
    ends.told[1] = ends.end(task, event="cancelled", pages=1, seeds={"result": 1, "cancelled": 1, "total": 2})
    assert "2 endings of 3 seeds" in ends.wrong()
