"""What chaos.sh is told, feeds and compares: each check fails for a planted loss, double, early end or wrong count."""

from __future__ import annotations

import json
import os
import subprocess
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from site_spider.errors import TopicMissing
from site_spider.seed.topics import CrawlTopics
from site_spider.tasks.control_log import read_endings
from tools.chaos.acts import ACTS
from tools.chaos.check import Check, Stored
from tools.chaos.feed import ChaosTask, Feed, Page, TaskCommands, ToldEnd, Workload
from tools.chaos.pages import item_text
from tools.chaos.plan import FIRST_SHARE, LAST_SHARE, plan, read_options
from tools.deployment.deployment import ROOT, Deployment, opened, wait_until
from tools.site.expected import expected


def options(folder: Path, line: str) -> Namespace:
    return read_options(["--folder", str(folder), *line.split()])


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("--exactly-once", "--sink kafka"),
        ("--elasticsearch-restarts 1 --sink kafka", "--sink elasticsearch"),
        ("--tasks 3 --topics", "leave --tasks or it out"),
        ("--tasks 3 --sink kafka --exactly-once", "leave --tasks or it out"),
        ("--pauses 1", "--tasks N"),
        ("--cancels 2 --tasks 2", "a larger --tasks"),
        ("--tasks 3 --seeds 2", "each task needs a seed"),
        ("--embedded --sink kafka", "leave one out"),
        ("--embedded --proxies 1", "leave one out"),
        ("--embedded --broker-restarts 2", "leave one out"),
        ("--embedded --brokers 3", "leave one out"),
        ("--soak 1 --topics --pauses 1", "--tasks N"),
        ("--brokers 2", "--brokers"),
        ("--soak 0", "--soak"),
    ],
)
def test_what_does_not_go_together_ends_with_two_and_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, remedy: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        options(tmp_path, line)
    assert ended.value.code == 2
    assert remedy in capsys.readouterr().err


def counts(folder: Path, line: str) -> Counter[str]:
    return Counter(event.name for event in plan(options(folder, line)))


def test_what_nobody_said_follows_from_the_sink(tmp_path: Path) -> None:
    found = counts(tmp_path, "")
    assert found == {"kills": 5, "terms": 1, "broker_restarts": 1, "elasticsearch_restarts": 1}
    assert counts(tmp_path, "--sink kafka --exactly-once") == {"kills": 5, "terms": 1, "broker_restarts": 1}
    assert counts(tmp_path, "--embedded") == {"kills": 5, "terms": 1}


def test_the_plan_has_what_was_asked_for_within_the_crawl(tmp_path: Path) -> None:
    line = "--tasks 7 --pauses 3 --cancels 2 --proxies 4"
    assert counts(tmp_path, line) == {
        "kills": 5, "terms": 1, "broker_restarts": 1, "elasticsearch_restarts": 1,
        "proxies": 4, "pauses": 3, "cancels": 2, "closes": 3,
    }  # fmt: skip
    events = plan(options(tmp_path, f"{line} --kills 50"))
    assert all(FIRST_SHARE <= event.share <= LAST_SHARE for event in events)


def test_a_soak_has_all_that_fits_its_sink(tmp_path: Path) -> None:
    every, line = set(ACTS) - {"closes"}, "--soak 120 --random-seed 1"
    assert set(counts(tmp_path, line)) == every
    assert set(counts(tmp_path, f"{line} --tasks 0")) == every - {"pauses", "cancels"}
    kafka = "--soak 120 --sink kafka --exactly-once --kills 3"
    assert counts(tmp_path, kafka)["kills"] == 3
    assert not {"pauses", "cancels", "elasticsearch_restarts"} & set(counts(tmp_path, kafka))
    assert options(tmp_path, kafka).items
    embedded = {"kills", "terms", "stops", "joins", "pauses", "cancels"}
    assert set(counts(tmp_path, f"{line} --embedded")) == embedded


FED = 40


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    yield from opened(tmp_path, {"SITE_KAFKA_BROKERS": ""})


@pytest.fixture
def tasks() -> dict[str, ChaosTask]:
    return {}


@pytest.fixture
def feed(deployment: Deployment, tasks: dict[str, ChaosTask], request: pytest.FixtureRequest) -> Iterator[Feed]:
    line = f"--folder {deployment.folder} --seeds {FED} {request.param}"
    feed = Feed(Workload(read_options(line.split()), 80, [deployment.topic]), deployment, tasks)
    yield feed
    feed.close()


def produced(deployment: Deployment) -> list[str]:
    try:
        messages = list(deployment.log.read(deployment.topic))
    except TopicMissing:
        return []
    return sorted(json.loads(message.value or b"")["meta"]["url_id"] for message in messages)


@pytest.mark.parametrize("feed", ["--tasks 4"], indirect=True)
def test_every_second_task_is_closed_behind_its_last_seed(
    deployment: Deployment, feed: Feed, tasks: dict[str, ChaosTask]
) -> None:
    feed.produce(range(FED))
    to_close = feed.end()
    assert produced(deployment) == [f"seed-{seed:06d}" for seed in range(FED)]
    assert [task.seeds for task in tasks.values()] == [list(range(n, n + 10)) for n in range(0, FED, 10)]
    assert all(task.is_complete for task in tasks.values())
    endings = read_endings(deployment.log, CrawlTopics.beside(deployment.scrapy_settings))
    closed = [name for name in tasks if (ending := endings.get(name)) is not None and ending.is_closed]
    assert closed == ["chaos-000", "chaos-002"]
    assert [task.name for task in to_close] == ["chaos-001", "chaos-003"]  # scrapy task close


@pytest.mark.parametrize("feed", ["--soak 1"], indirect=True)
def test_a_soak_keeps_seeds_waiting_until_its_time_is_over(
    deployment: Deployment, feed: Feed, tasks: dict[str, ChaosTask]
) -> None:
    to_close: list[ChaosTask] = []
    feed.soak(1.5, lambda: 0, to_close.append)
    wait_until(lambda: not feed.waits_for, 600, "the end of the time")
    assert len(produced(deployment)) == len(set(produced(deployment))) == feed.count >= 50
    assert all(task.is_complete for task in tasks.values())
    assert to_close == [task for task in tasks.values() if not task.is_closed]


@pytest.mark.parametrize("feed", ["--soak 1"], indirect=True)
def test_a_feed_that_fails_ends_the_run(feed: Feed) -> None:
    feed.soak(60, lambda: 1 // 0, lambda _task: None)
    with pytest.raises(RuntimeError, match="seeds could not be produced"):
        wait_until(lambda: not feed.waits_for, 600, "the thread to end")


def test_a_command_that_fails_is_run_again_and_told_when_it_never_succeeds(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskCommands, "TRIES", 2)
    monkeypatch.setattr(TaskCommands, "PAUSE_SECONDS", 0.0)
    commands = TaskCommands(deployment)
    commands.ask("no-such-verb", ChaosTask("chaos-000"))
    commands.ask("close", task := ChaosTask("chaos-001"))
    wait_until(lambda: not commands.waits_for, 600, "the commands")
    commands.close()
    assert commands.failures >= 1
    assert commands.wrong[0].startswith("scrapy task no-such-verb chaos-000 failed 2 times")
    assert task.is_closed


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


def test_a_lost_document_is_found_and_one_that_is_there_twice_where_each_is_stored_once(pages: list[Page]) -> None:
    verdict = of_documents(pages, map(document, pages))
    assert (verdict.results, verdict.lost, verdict.wrong) == (SEEDS, set(), [])
    assert verdict.documents == {"chaos-000": 3, "chaos-001": 3}
    verdict = of_documents(pages, map(document, pages[1:]))
    assert (verdict.lost, verdict.counts) == ({0}, {"lost": 1})
    assert of_documents(pages, map(document, pages[1:]), {pages[0].key}).wrong == []  # a dead letter
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


def test_an_end_that_was_never_told_is_found(ends: Ends) -> None:
    assert ends.wrong() == ""
    del ends.told[1]
    assert ends.wrong() == "an end that was never told: chaos-001"


def test_an_end_that_was_told_twice_is_found(ends: Ends) -> None:
    ends.told.append(ends.told[0])
    assert ends.wrong(may_repeat=True) == ""
    assert "an end told twice" in ends.wrong()
    ends.told.append(ends.end(ends.tasks["chaos-000"], last_at="later"))
    assert "an end told twice" in ends.wrong(may_repeat=True)


def test_an_end_before_the_last_page_or_without_it_is_found(ends: Ends, pages: list[Page]) -> None:
    ends.first[pages[2].url] = TOLD_AT + 0.5
    assert f"it was told 0.500 s before {pages[2].url} was fetched" in ends.wrong()
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


@pytest.mark.parametrize("script", ["bench.sh", "chaos.sh"])
def test_a_folder_with_tools_of_its_own_is_as_good_as_any_other(tmp_path: Path, script: str) -> None:
    (tmp_path / "tools.py").write_text("raise SystemExit(9)")
    command, environment = [ROOT / "task_shell" / script, "--help"], os.environ | {"TMPDIR": str(tmp_path)}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.startswith(f"usage: {script}")) == (0, True), ran.stderr
