"""`scrapy task close`, `wait` and `notify`, and `scrapy seed --close`."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path

import pytest
from scrapy import Request
from scrapy.http import Response

from site_spider.adapters.local.log import LocalSeedLog, LocalTopicReader
from site_spider.commands import task
from site_spider.contracts.seed_log import Message
from site_spider.tasks.control_log import read_endings
from site_spider.tasks.orders import TaskDesk
from tests.commands.project import Project
from tests.in_process.engine import ANSWERS, crawl, page
from tests.tasks.test_control import TOPICS, declare
from tests.tasks.test_end_in_crawl import Receiver, attempts, events, told


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_seed_close_and_wait(project: Project, tmp_path: Path) -> None:
    seeded = project.scrapy("seed", "-", "--task-id", "t", "--close", stdin="http://host.test/1\nhttp://host.test/2\n")
    assert seeded.stdout.endswith("produced 2, refused 0\n"), seeded.stderr
    crawl(tmp_path, [], until=told(tmp_path))
    waited = project.scrapy("task", "wait", "t", "--json")
    assert waited.returncode == 0
    assert json.loads(waited.stdout)["seeds"] == {"result": 2, "total": 2}
    again = project.scrapy("task", "close", "t")
    assert (again.returncode, "has ended already" in again.stdout) == (0, True)
    crawl(tmp_path, [{"url": "http://host.test/3"}])
    assert len(events(tmp_path)) == 1


def state_of(project: Project) -> object:
    return json.loads(project.direct("task", "show", "t", "--json").stdout)["state"]


def test_wait_says_that_a_task_was_cancelled(project: Project, tmp_path: Path) -> None:
    declare(tmp_path, state="cancelled")
    crawl(tmp_path, [{"url": "http://host.test/1", "meta": {"task_id": "t"}}], until=told(tmp_path))
    assert project.scrapy("task", "wait", "t").returncode == 3


def test_wait_says_that_a_budget_is_spent(project: Project, tmp_path: Path) -> None:
    declare(tmp_path, max_pages=1)
    crawl(tmp_path, [{"url": f"http://host.test/{n}", "meta": {"task_id": "t"}} for n in range(3)])
    waited = project.scrapy("task", "wait", "t")
    assert (waited.returncode, "page_budget" in waited.stdout) == (4, True)


def test_a_task_that_has_ended_is_done_until_more_of_it_is_produced(project: Project, tmp_path: Path) -> None:
    declare(tmp_path, weight=2.0)
    project.scrapy("seed", "-", "--task-id", "t", "--close", stdin="http://host.test/1\n")
    assert state_of(project) == "running"
    crawl(tmp_path, [], until=told(tmp_path))
    assert state_of(project) == "done"
    assert "done" in project.direct("task", "list").stdout
    project.scrapy("seed", "-", "--task-id", "t", stdin="http://host.test/2\n")
    assert state_of(project) == "running"


def test_a_task_that_has_ended_takes_no_more_orders(project: Project, tmp_path: Path) -> None:
    declare(tmp_path, max_pages=1)
    project.scrapy("seed", "-", "--task-id", "t", "--close", stdin="http://host.test/1\n")
    crawl(tmp_path, [], until=told(tmp_path))
    for verb, *words in (("pause",), ("cancel",), ("resume",), ("set", "weight=5")):
        refused = project.scrapy("task", verb, "t", *words)
        assert (refused.returncode, "has ended (done)" in refused.stderr) == (1, True)
    found = json.loads(project.direct("task", "list", "--json").stdout)
    assert (found["state"], found["reason"], found["pages"]) == ("done", "", 1)
    assert project.scrapy("task", "set", "t", "webhook=http://h.test/").returncode == 0  # for `notify`
    assert project.scrapy("task", "wait", "t").returncode == 0
    assert project.direct("task", "start", "t").returncode == 0
    assert state_of(project) == "running"


def test_wait_and_notify_refuse_a_task_that_nobody_knows(project: Project, tmp_path: Path) -> None:
    LocalSeedLog(tmp_path).check(1)
    for verb in ("wait", "notify"):
        refused = project.scrapy("task", verb, "typo")
        assert (refused.returncode, "typo" in refused.stderr) == (1, True)


def test_a_task_that_is_about_to_end_is_not_declared_anew(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel closes it, and its last page may take its time: the new one would end with that page."""
    said = []

    async def answer(request: Request) -> Response:
        await asyncio.to_thread(declare, tmp_path, state="cancelled")
        while (ending := read_endings(project.log, TOPICS).get("t")) is None or not ending.is_closed:
            await asyncio.sleep(0.05)
        said.append(await asyncio.to_thread(project.scrapy, "task", "start", "t"))
        return page(request)

    monkeypatch.setitem(ANSWERS, "/slow", answer)
    declare(tmp_path)
    crawl(tmp_path, [{"url": "http://host.test/slow", "meta": {"task_id": "t"}}], until=told(tmp_path))
    assert (said[0].returncode, "scrapy task wait t" in said[0].stderr) == (1, True), said[0].stderr
    assert project.scrapy("task", "start", "t").returncode == 0
    assert state_of(project) == "running"


def test_a_task_is_deleted_when_none_of_its_seeds_is_left(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its crawl would write counts of it behind the records that delete them."""
    refusals = []

    async def answer(request: Request) -> Response:
        refusals.append(await asyncio.to_thread(project.scrapy, "task", "delete", "t"))
        return page(request)

    monkeypatch.setitem(ANSWERS, "/slow", answer)
    declare(tmp_path)
    crawl(tmp_path, [{"url": "http://host.test/slow", "meta": {"task_id": "t"}}])
    [refused] = refusals
    assert (refused.returncode, "scrapy task cancel t" in refused.stderr) == (1, True), refused.stderr
    project.scrapy("seed", "-", "--task-id", "t", stdin="http://host.test/2\n")  # it waits
    assert "scrapy task wait t" in project.scrapy("task", "delete", "t").stderr
    declare(tmp_path, state="cancelled")
    crawl(tmp_path, [], until=told(tmp_path))
    assert project.scrapy("task", "delete", "t").stdout == "task t is deleted\n"
    crawl(tmp_path, [{"url": "http://host.test/other"}])
    for topic in ("seeds.tasks", "seeds.tasks.control", "seeds.tasks.pages"):
        last = {message.key: message.value for message in project.log.read(topic)}
        assert [key for key, value in last.items() if key.startswith(b"t\x1f") and value is not None] == []


def test_wait_ends_when_the_task_is_deleted(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    assert project.scrapy("task", "start", "t").returncode == 0
    looks, poll = 0, LocalTopicReader.poll

    def deleting_poll(reader: LocalTopicReader, timeout_seconds: float) -> list[Message]:
        nonlocal looks
        looks += 1
        if looks == 3:
            TaskDesk(project.log, TOPICS).forget("t")
        assert looks < 500, "it waits for ever"
        return poll(reader, timeout_seconds)

    monkeypatch.setattr(task, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(LocalTopicReader, "poll", deleting_poll)
    waited = project.scrapy("task", "wait", "t")
    assert (waited.returncode, waited.stderr) == (1, "scrapy task: 't' was deleted meanwhile\n")


def test_close_needs_a_task(project: Project) -> None:
    refused = project.scrapy("seed", "-", "--close", stdin="http://host.test/1\n")
    assert (refused.returncode, "--task-id" in refused.stderr) == (2, True)


def test_close_is_refused_where_nobody_would_hear_of_the_end(project: Project) -> None:
    """Links leave in the transaction of their tree, before their offsets are known."""
    once = ("-s", "SITE_KAFKA_EXACTLY_ONCE=true")
    for command in (("task", "close", "t"), ("seed", "-", "--task-id", "t", "--close")):
        ran = project.scrapy(*command, *once, stdin="http://host.test/1\n")
        assert (ran.returncode, "SITE_KAFKA_EXACTLY_ONCE" in ran.stderr) == (78, True), ran.stderr


def test_notify_sends_the_webhook_once_more(project: Project, tmp_path: Path) -> None:
    with closing(Receiver(refusals=1)) as receiver:
        declare(tmp_path, webhook=receiver.url)
        project.scrapy("seed", "-", "--task-id", "t", "--close", stdin="http://host.test/1\n")
        crawl(tmp_path, [], until=lambda _: attempts(tmp_path) == [503], SITE_ALLOW_PRIVATE_HOSTS=True)
        sent = project.scrapy("task", "notify", "t", "--json", SITE_ALLOW_PRIVATE_HOSTS="true")
        assert sent.returncode == 0, sent.stderr
        assert [each["status"] for each in json.loads(sent.stdout)["attempts"]] == [503, 204]
        assert attempts(tmp_path) == [503, 204]
        assert receiver.requests[0][-1] == receiver.requests[1][-1]
