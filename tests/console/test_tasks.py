"""Tasks in the console: as `scrapy task list` and `show` say, with orders that have to be confirmed."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from site_spider.commands.top import lines
from site_spider.console import pages
from site_spider.console.diagnosis import causes, verdict
from site_spider.console.fleet import LogView
from site_spider.console.pages import overview
from site_spider.errors import LogUnavailable
from site_spider.page.url import url_id
from site_spider.service.config import check_ends_are_told
from site_spider.tasks.board import note_key
from site_spider.tasks.closing import TaskProducer
from site_spider.tasks.declaration import Usage, usual_task
from site_spider.tasks.orders import TaskDesk
from tests.console.consoles import TOPICS, Client, Console, document, form_token
from tests.console.snapshots import snapshot, task

EVIL = "\"><script>alert(1)</script>'{{7*7}}"


@pytest.fixture
def console(tmp_path: Path) -> Console:
    """A paused task with parked seeds, one that is closed by a producer, and one with an evil name."""
    console = Console(tmp_path, time.time())
    desk = TaskDesk(console.log, TOPICS)
    desk.write(usual_task("spring").model_copy(update={"state": "paused", "weight": 5.0, "max_pages": 100}))
    usage = Usage(pages=3, begun=3, bytes=900, seeds={"result": 3}, parked=1_600, traps={EVIL: 1_234})
    send(desk, note_key("spring", "a-process"), usage.model_dump_json().encode())
    desk.write(usual_task(EVIL))
    with closing(console.log.producer()) as producer:
        closer = TaskProducer(console.log, producer, TOPICS, "autumn")
        closer.begin()
        closer.end(closes=True)
    return console


def send(desk: TaskDesk, key: bytes, value: bytes) -> None:
    """Any record of the task topic."""
    with closing(desk.log.producer()) as producer:
        producer.send(TOPICS.tasks, key, value).result()


async def ordered(client: Client, verb: str, task_id: str, **more: str) -> str:
    form = {"form_token": await form_token(client), "verb": verb, "task_id": task_id, "confirmed": "yes"} | more
    answer = await client.post("/tasks/order", data=form | more)
    assert answer.status == 200
    return await answer.text()


async def test_all_tasks_are_listed_with_state_reason_weight_budget_and_parked(console: Console) -> None:
    async with console.client() as client:
        await console.watch.look_at_tasks()
        found = await document(client, "/tasks")
        by_id = {row["task_id"]: row for row in found["tasks"]}
        assert set(by_id) == {"spring", "autumn", EVIL}
        spring = by_id["spring"]
        assert (spring["state"], spring["reason"], spring["weight"]) == ("paused", "by command", 5.0)
        assert (spring["parked"], spring["pages"], spring["max_pages"]) == (1600, 3, 100)
        assert (by_id["autumn"]["closed"], by_id["autumn"]["state"]) == (True, "running")
        assert found["parked"] == 1600
        text = await (await client.get("/tasks")).text()
        assert "<script>alert" not in text
        assert "/task?id=spring" in text


async def test_no_more_tasks_are_laid_out_than_the_page_shows(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be 100,000, and no other request is answered meanwhile."""
    laid_out = create_autospec(pages._row, side_effect=pages._row)
    monkeypatch.setattr(pages, "_row", laid_out)
    monkeypatch.setattr(pages, "MOST_ROWS", 1)
    async with console.client() as client:
        await console.watch.look_at_tasks()
        found = await document(client, "/tasks")
    assert (len(found["tasks"]), found["count"], laid_out.call_count) == (1, 3, 1)


async def test_one_task_has_all_of_show_and_its_orders(console: Console) -> None:
    async with console.client() as client:
        await console.watch.look_at_tasks()
        found = await document(client, "/task", id="spring")
        facts = TaskDesk(console.log, TOPICS).overview().of("spring").document()
        assert found["task"] == facts
        assert found["verbs"] == ["resume", "cancel", "set", "close"]
        for name in ("spring", EVIL, "nobody", ""):
            page = await client.get("/task", params={"id": name})
            text = await page.text()
            assert page.status == 200
            assert "<script>alert" not in text
            assert text.count('aria-current="page"') == 1
            assert ("1,234" in text) is (name == "spring")
        assert "Nothing is known of this task" in text


async def test_an_order_changes_nothing_before_it_is_confirmed_and_not_without_the_token(console: Console) -> None:
    async with console.client() as client:
        await console.watch.look_at_tasks()
        form = {"verb": "cancel", "task_id": "spring"}
        assert (await client.post("/tasks/order", data=form | {"confirmed": "yes"})).status == 403
        assert (await client.get("/tasks/order", params=form)).status == 405
        form["form_token"] = await form_token(client)
        asked = await client.post("/tasks/order", data=form)
        text = await asked.text()
        assert asked.status == 200
        assert "Cancel task spring?" in text
        assert "1,600 parked seeds included" in text
        assert 'name="confirmed" value="yes"' in text
        assert (await client.post("/tasks/order", data=form | {"verb": "delete"})).status == 400
        assert TaskDesk(console.log, TOPICS).board.phase("spring").name == "paused"


@pytest.mark.parametrize(
    ("verb", "task_id", "state"),
    [("pause", EVIL, "paused"), ("resume", "spring", "running"), ("cancel", "spring", "cancelled")],
)
async def test_orders_are_carried_out_and_shown(console: Console, verb: str, task_id: str, state: str) -> None:
    async with console.client() as client:
        await console.watch.look_at_tasks()
        text = await ordered(client, verb, task_id)
        assert re.search(r"task .* is (paused|resumed|cancelled)", text)
        found = await document(client, "/tasks")
        assert {row["state"] for row in found["tasks"] if row["task_id"] == task_id} == {state}
    assert TaskDesk(console.log, TOPICS).board.phase(task_id).name == state


async def test_a_task_is_closed_and_changed(console: Console) -> None:
    async with console.client() as client:
        assert "is closed" in await ordered(client, "close", "spring")
        assert "is changed" in await ordered(client, "set", "spring", words="weight=2\n\n max_pages=7 \n")
        for wrong in ("", "weight", "weight=-1", "nonsense=1", "max_pages=x"):
            assert "Nothing was changed" in await ordered(client, "set", "spring", words=wrong)
        for wrong in ("nobody", "x" * 2000, "\x1f"):
            assert "Nothing was changed" in await ordered(client, "pause", wrong)
        many = "\n".join(f"deny=/{number:099}" for number in range(100))
        assert "is changed" in await ordered(client, "set", "spring", words=many)
    facts = TaskDesk(console.log, TOPICS).overview().of("spring")
    assert sum(map(len, facts.declared.deny)) == 10_000
    assert (facts.is_closed, facts.weight, facts.declared.max_pages) == (True, 2.0, 7)


async def test_what_is_said_of_an_order_is_so_although_the_log_goes_away(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind what was written, and behind the order itself."""

    def away(*_: object) -> int:
        raise LogUnavailable("the log is away")

    async with console.client() as client:
        await console.watch.look_at_tasks()
        monkeypatch.setattr(console.watch.tasks, "look", away)
        assert "task spring is changed" in await ordered(client, "set", "spring", words="weight=2")
        monkeypatch.setattr(TaskDesk, "put_back", away)
        said = await ordered(client, "cancel", "spring")
    assert TaskDesk(console.log, TOPICS).board.phase("spring").name == "cancelled"
    assert "Nothing was changed" not in said
    assert "give it again: the log is away" in said


async def test_where_ends_are_not_told_no_task_is_closed_and_no_webhook_is_set(
    console: Console, tmp_path: Path
) -> None:
    check = partial(check_ends_are_told, {"SITE_KAFKA_EXACTLY_ONCE": "true"})
    async with Console(tmp_path, time.time(), console.log, check_ends=check).client() as client:
        assert "Nothing was changed" in await ordered(client, "close", "spring")
        assert "no webhook is sent" in await ordered(client, "set", "spring", words="webhook=http://h.test/")
        assert "is changed" in await ordered(client, "set", "spring", words="webhook=")


async def test_a_task_that_processes_tell_of_can_be_paused_although_nobody_declared_it(console: Console) -> None:
    told = {"largest": [task("winter", 3, 0), task(None, 1, 0)], "others": {"tasks": 1}}
    console.hear(snapshot(1, at=time.time(), tasks=told))
    async with console.client() as client:
        found = await document(client, "/tasks")
        verbs = {row["task_id"]: row["verbs"] for row in found["tasks"]}
        assert verbs == {"winter": ["pause", "cancel", "set", "close"], "(no task)": [], "(other tasks)": []}
        assert "No task was declared." in await (await client.get("/tasks")).text()
        assert "It was not declared." in await (await client.get("/task?id=winter")).text()
        assert "task winter is paused" in await ordered(client, "pause", "winter")
        assert "Nothing was changed" in await ordered(client, "pause", "(no task)")
    assert TaskDesk(console.log, TOPICS).board.phase("winter").name == "paused"


async def test_a_task_may_have_as_long_an_id_as_any(console: Console) -> None:
    """Else an order is for another task, and a URL is looked for under another."""
    name = "t" * 512
    console.hear(snapshot(1, at=time.time(), tasks={"largest": [task(name, 3, 0)], "others": {"tasks": 0}}))
    async with console.client() as client:
        assert [row["task_id"] for row in (await document(client, "/tasks"))["tasks"]] == [name]
        found = (await document(client, "/url", url="http://h.test/", task_id=name))["found"]
    assert found["url_id"] == url_id("http://h.test/", name)


def test_parked_seeds_are_something_left_to_do(console: Console) -> None:
    console.hear(snapshot(1, at=time.time()))
    asyncio.run(console.watch.look_once())
    view = console.watch.view()
    said = "1,600 seeds are parked of 1 task: spring (paused, by command)."
    found = overview(view)
    assert said in [each["text"] for each in found["causes"]]
    assert found["tasks"] == {"count": 3, "states": {"running": 2, "paused": 1}, "parked": 1600}
    assert "tasks          2 running, 1 paused; 1,600 seeds are parked" in list(lines(found))
    done = replace(view, log=LogView(view.now, ()))
    assert verdict(done, causes(done)) == ("Nothing is left to do but 1,600 parked seeds of tasks that do not go on.")


def test_records_that_are_none_of_tasks_are_counted_and_skipped(console: Console) -> None:
    desk = TaskDesk(console.log, TOPICS)
    for number in range(50):
        send(desk, b"forged-%d" % number, b'{"task_id": 7}')
    asyncio.run(console.watch.look_once())
    asyncio.run(console.watch.look_once())
    view = console.watch.view()
    assert {task.task_id for task in view.tasks} == {"spring", "autumn", EVIL}
    assert any("50 records of task topics cannot be read and are skipped" in said for said in view.troubles)
