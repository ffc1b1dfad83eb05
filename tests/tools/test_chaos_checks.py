"""What chaos.sh compares can fail: a planted loss, double, early end, wrong count."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tools.chaos.checks import DocumentCheck, ItemCheck, RequestCheck
from tools.chaos.end_checks import TaskEndCheck
from tools.chaos.ends import ToldEnd
from tools.chaos.options import Options, read_options
from tools.chaos.outlet import Stored
from tools.chaos.roster import ChaosTask, Roster
from tools.chaos.verdict import Verdict
from tools.chaos.workload import Page, Workload, item_text
from tools.site.expected import expected

SEEDS, TASKS, TOLD_AT = 6, 2, 1000.0


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return read_options(["--folder", str(tmp_path), "--seeds", str(SEEDS), "--tasks", str(TASKS)])


@pytest.fixture
def workload(options: Options) -> Workload:
    return Workload(options, 80, ["seeds"])


@pytest.fixture
def pages(workload: Workload) -> list[Page]:
    return [page for seed in range(SEEDS) for page in workload.pages_of(seed)]


def test_a_root_that_is_stored_as_a_link_as_well_is_counted_where_that_may_be(pages: list[Page]) -> None:
    second = Stored(pages[0].key_of_link, document(pages[0]).document)
    stored = [*map(document, pages), second]
    assert list(verdict_of(DocumentCheck(pages, stored)).counts) == ["a document that nothing asked for"]
    verdict = verdict_of(DocumentCheck(pages, stored, roots_come_again=True))
    assert (verdict.wrong, verdict.rows) == ([], [("roots with a second document, as links", 1)])
    assert verdict.documents["chaos-000"] == 3


def document(page: Page, **changes: Any) -> Stored:
    found = expected(page.url, extract=False)
    headers = json.dumps({name: list(values) for name, values in found.headers.items()})
    said = {"url_id": page.key, "task_id": page.task, "status": 200, "body": found.body, "headers": headers}
    return Stored(page.key, {**said, **changes})


def verdict_of(check: Any) -> Verdict:
    verdict = Verdict()
    check.compare(verdict)
    return verdict


# --- documents and items --------------------------------------------------------------------------


def test_all_that_is_wanted_is_right(pages: list[Page]) -> None:
    verdict = verdict_of(DocumentCheck(pages, map(document, pages)))
    assert (verdict.results, verdict.lost_seeds, verdict.wrong) == (SEEDS, 0, [])
    assert verdict.documents == {"chaos-000": 3, "chaos-001": 3}


def test_a_lost_document_is_found(pages: list[Page]) -> None:
    verdict = verdict_of(DocumentCheck(pages, map(document, pages[1:])))
    assert (verdict.lost_seeds, verdict.lost_pages, list(verdict.counts)) == (1, 1, ["lost"])


def test_a_document_whose_seed_was_deleted_is_not_lost_but_counted(pages: list[Page]) -> None:
    stored = [*map(document, pages[1:])]
    verdict = verdict_of(DocumentCheck(pages, stored, deleted={pages[0].seed, pages[1].seed}))
    assert (verdict.wrong, verdict.deleted, verdict.lost_seeds) == ([], 1, 0)
    items = [item(page, place) for page in pages[1:] for place in (1, 2)]
    assert verdict_of(ItemCheck(pages, items, deleted={pages[0].seed})).wrong == []


def test_a_document_of_a_dead_letter_is_not_lost(pages: list[Page]) -> None:
    verdict = verdict_of(DocumentCheck(pages, map(document, pages[1:]), {pages[0].key}))
    assert verdict.wrong == []


def test_a_document_that_is_there_twice_is_found_where_each_is_stored_once(pages: list[Page]) -> None:
    twice = [document(page) for page in (*pages, pages[2])]
    assert list(verdict_of(DocumentCheck(pages, twice)).counts) == ["a document twice"]
    assert verdict_of(DocumentCheck(pages, twice, is_once=False)).wrong == []


@pytest.mark.parametrize("changes", [{"body": "else"}, {"status": 500}, {"task_id": "other"}])
def test_a_wrong_document_is_found(pages: list[Page], changes: dict[str, Any]) -> None:
    verdict = verdict_of(DocumentCheck(pages, [document(pages[0], **changes), *map(document, pages[1:])]))
    assert (verdict.results, list(verdict.counts)) == (SEEDS - 1, ["a wrong document"])


def test_seeds_of_a_cancelled_task_have_a_page_or_say_so(pages: list[Page]) -> None:
    said = {"status": None, "body": None, "headers": None, "description": "CancelledError: task is cancelled"}
    stored = [document(pages[0], **said), *map(document, pages[1:2]), *map(document, pages[3:])]
    cancelled = DocumentCheck(pages, stored, cancelled={"chaos-000"}, each_cancelled=True)
    verdict = verdict_of(cancelled)
    assert (verdict.cancelled["chaos-000"], list(verdict.counts)) == (1, ["lost"])
    assert verdict_of(DocumentCheck(pages, stored, cancelled={"chaos-000"})).wrong == []
    assert len(verdict_of(DocumentCheck(pages, stored)).counts) == 2  # nobody has cancelled it


def item(page: Page, place: int, text: str = "") -> Stored:
    return Stored(f"{page.key}-{place}", {"text": text or item_text(page.url, place)})


def test_items_that_are_lost_wrong_or_twice_are_found(pages: list[Page]) -> None:
    items = [item(page, place) for page in pages for place in (1, 2)]
    assert verdict_of(ItemCheck(pages, items)).wrong == []
    assert list(verdict_of(ItemCheck(pages, items[1:])).counts) == ["a lost item"]
    assert list(verdict_of(ItemCheck(pages, [*items, items[4]])).counts) == ["an item twice"]
    assert list(verdict_of(ItemCheck(pages, [item(pages[0], 1, "?"), *items[1:]])).counts) == ["a wrong item"]
    foreign = Stored("seed-9-1", {"text": "?"})
    found = verdict_of(ItemCheck(pages, [*items, foreign]))
    assert list(found.counts) == ["an item that nothing asked for"]


def test_requests_are_counted(pages: list[Page]) -> None:
    asked = Counter([page.url for page in pages] + [pages[0].url, "http://else/"])
    verdict = verdict_of(RequestCheck(pages, asked))
    assert (verdict.requests, verdict.twice) == (SEEDS + 2, 1)
    assert list(verdict.counts) == ["a request that nothing asked for"]


# --- ends of tasks ----------------------------------------------------------------------------------


class Ends:
    """Two tasks of three seeds, all of them fetched before their end is told."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.roster = Roster()
        self.first: dict[str, float] = {}
        for seed in range(SEEDS):
            self.roster.task(workload.task_of(seed)).seeds.append(seed)
            for page in workload.pages_of(seed):
                self.first[page.url] = TOLD_AT - 1
        self.told = [self.end(task) for task in self.roster.all()]
        self.verdict = Verdict(documents=Counter({"chaos-000": 3, "chaos-001": 3}))

    def end(self, task: ChaosTask, **changes: Any) -> ToldEnd:
        said = {"event": "done", "generation": 1, "pages": 3, "seeds": {"result": 3, "total": 3}}
        return ToldEnd(TOLD_AT, json.dumps({"task_id": task.name, **said, **changes}).encode())

    def wrong(self, *, may_repeat: bool = False) -> str:
        check = TaskEndCheck(
            self.roster,
            self.told,
            self.first,
            self.workload.pages_of,
            may_repeat=may_repeat,
            one_page_a_seed=True,
        )
        check.compare(self.verdict)
        return "\n".join(self.verdict.wrong)


@pytest.fixture
def ends(workload: Workload) -> Ends:
    return Ends(workload)


def test_right_ends_are_right(ends: Ends) -> None:
    assert ends.wrong() == ""


def test_an_end_that_was_never_told_is_found(ends: Ends) -> None:
    del ends.told[1]
    assert ends.wrong() == "an end that was never told: chaos-001"


def test_an_end_that_was_told_twice_is_found(ends: Ends) -> None:
    ends.told.append(ends.told[0])
    assert ends.wrong(may_repeat=True) == ""
    assert "an end told twice" in ends.wrong()
    ends.verdict.wrong.clear()
    ends.told.append(ends.end(ends.roster.task("chaos-000"), last_at="later"))
    assert "an end told twice" in ends.wrong(may_repeat=True)


def test_an_end_before_the_last_page_is_found(ends: Ends) -> None:
    [page] = ends.workload.pages_of(2)
    ends.first[page.url] = TOLD_AT + 0.5
    assert f"it was told 0.500 s before {page.url} was fetched" in ends.wrong()


def test_an_end_without_a_page_is_found(ends: Ends) -> None:
    [page] = ends.workload.pages_of(2)
    del ends.first[page.url]
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
    ends.told[0] = ends.end(ends.roster.task("chaos-000"), **changes)
    assert said in ends.wrong()


def test_a_task_that_was_paused_may_count_what_came_back_twice(ends: Ends) -> None:
    task = ends.roster.task("chaos-000")
    task.was_paused = True
    ends.told[0] = ends.end(task, pages=4, seeds={"result": 4, "spilled": 2, "total": 6})
    assert "it counts 4 pages; 3 are stored" in ends.wrong()
    ends.verdict.wrong.clear()
    ends.told[0] = ends.end(task, pages=3, seeds={"result": 4, "spilled": 2, "total": 6})
    assert ends.wrong() == ""


def test_the_counts_of_a_cancelled_task_include_what_was_cancelled(ends: Ends) -> None:
    task = ends.roster.task("chaos-001")
    task.is_cancelled = True
    seeds = {"result": 1, "cancelled": 2, "total": 3}
    ends.told[1] = ends.end(task, event="cancelled", pages=1, seeds=seeds)
    assert ends.wrong() == ""
    ends.told[1] = ends.end(task, event="cancelled", pages=1, seeds={"result": 1, "cancelled": 1, "total": 2})
    assert "2 endings of 3 seeds" in ends.wrong()
