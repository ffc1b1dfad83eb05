"""`scrapy task`: what the verbs print, write and refuse, and how tasks end; `scrapy seed --close`."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from scrapy import Request
from scrapy.http import Response

from site_spider import runtime
from site_spider.adapters.local.log import LocalTopicReader
from site_spider.commands import task
from site_spider.contracts.seed_log import Message
from site_spider.errors import LogUnavailable
from site_spider.tasks import orders
from site_spider.tasks.board import note_key
from site_spider.tasks.control_log import read_endings
from site_spider.tasks.declaration import Task, Usage
from site_spider.tasks.end_events import EndAnnouncer
from site_spider.tasks.orders import TaskDesk
from site_spider.tasks.webhooks import Webhooks
from tests.commands.project import Project
from tests.in_process.engine import ANSWERS, crawl, page
from tests.results.test_exactly_once import crawl_trees
from tests.tasks.test_end_in_crawl import Receiver, attempts, ending_of, events, told
from tests.tasks.test_pause_and_cancel import TOPICS, declare


def shown(project: Project, task_id: str = "t") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(project.direct("task", "show", task_id, "--json").stdout)
    return found


def test_a_task_is_declared_listed_shown_changed_and_controlled(project: Project) -> None:
    """The whole of it by the real command, once."""
    ran = project.scrapy("task", "start", "spring", "--weight", "5", "--rate", "300/m", "--deny", "/a", "--deny", "/b")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "task spring is declared\n", "")
    found = shown(project, "spring")
    assert (found["weight"], found["rate"], found["deny"], found["state"]) == (5.0, 5.0, ["/a", "/b"], "running")
    assert project.direct("task", "set", "spring", "weight=2", "deny=").returncode == 0
    assert project.direct("task", "pause", "spring").stdout == "task spring is paused\n"
    found = json.loads(project.direct("task", "list", "--json").stdout)
    assert (found["weight"], found["deny"], found["state"], found["reason"]) == (2.0, [], "paused", "by command")
    assert "task spring is resumed, 0 parked" in project.direct("task", "resume", "spring").stdout
    assert "task spring is cancelled" in project.direct("task", "cancel", "spring").stdout
    assert "\x1b" not in project.direct("task", "list").stdout


def test_a_file_of_fields_is_read_and_options_win_over_it(project: Project, tmp_path: Path) -> None:
    file = tmp_path / "task.yaml"
    file.write_text("weight: 3\nmax_pages: 10\nallow: [/x/]\nexpires: 2h\n")
    options = ["--weight", "4", "--drop-params", "a,b", "--follow-duplicates", "false"]
    assert project.direct("task", "start", "t", "--file", str(file), *options).returncode == 0
    found = shown(project, "t")
    assert (found["weight"], found["max_pages"], found["allow"]) == (4.0, 10, ["/x/"])
    assert (found["drop_params"], found["follow_duplicates"]) == (["a", "b"], False)
    assert found["expires_at"] is not None


def test_a_source_that_is_not_known_here_is_said(project: Project, tmp_path: Path) -> None:
    """And no more: the machine of the command may have others than those of the crawl, or none."""
    folder = tmp_path / "sources"
    start, given = ("task", "start", "--source", "shpo"), {"SITE_SOURCES_DIR": str(folder)}
    assert project.within(*start, "a", **given).stderr == ""
    folder.mkdir()
    (folder / "shop.yaml").write_text("match: {hosts: [shop.test]}\n")
    ran = project.within(*start, "b", **given)
    assert (ran.returncode, ran.stdout) == (0, "task b is declared\n")
    assert f"source 'shpo' of b is none of {folder}" in ran.stderr
    assert project.within("task", "set", "b", "source=shop", **given).stderr == ""
    assert project.within(*start, "c", SITE_SOURCES_DIR="").stdout == "task c is declared\n"


@pytest.mark.parametrize(
    "text", ["[1]", "a: &x [1]\nb: *x", "x: !!python/object:os.system {}", "- [" * 5_000, "\x00", "1: 2", "'"]
)
def test_hostile_files_are_refused_in_one_line(project: Project, tmp_path: Path, text: str) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(text)
    ran = project.scrapy("task", "start", "t", "--file", str(file))
    assert ran.returncode == 1
    assert ran.stderr.count("\n") == 1
    assert "Traceback" not in ran.stderr


def test_every_field_is_an_option_of_start(project: Project) -> None:
    told = project.scrapy("task", "--help").stdout
    aliases = {"max_seconds": "max_time", "expires_at": "expires"}
    fields = set(Task.model_fields) - {"task_id", "state", "started_at"}
    assert [name for name in fields if f"--{aliases.get(name, name).replace('_', '-')} " not in told] == []


def test_a_task_is_declared_once_and_anew_when_it_is_over(project: Project) -> None:
    project.direct("task", "start", "t")
    ran = project.scrapy("task", "start", "t")
    assert (ran.returncode, "scrapy task set" in ran.stderr) == (1, True)
    project.direct("task", "cancel", "t")
    assert "scrapy task start" in project.scrapy("task", "resume", "t").stderr
    assert project.direct("task", "start", "t").returncode == 0


def test_a_task_beyond_those_that_may_be_declared_is_refused(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(project.data)
    monkeypatch.setattr(orders, "MOST_TASKS", 1)
    ran = project.scrapy("task", "start", "u")
    assert (ran.returncode, "'u' is not declared" in ran.stderr, ran.stdout) == (1, True, ""), ran.stderr


def test_a_task_topic_of_several_partitions_is_refused(project: Project) -> None:
    """Its records would have no one order."""
    project.produce("seeds.tasks", (b"t", b"{}"))
    ran = project.scrapy("task", "start", "t")
    assert (ran.returncode, "must have one" in ran.stderr) == (78, True)
    ran = project.scrapy("task", "list", "-s", "SITE_TASK_TOPIC=seeds")
    assert (ran.returncode, "SITE_TASK_TOPIC is 'seeds'" in ran.stderr) == (78, True)


def test_an_id_that_begins_with_a_dash_stands_behind_two_of_them(project: Project) -> None:
    assert project.scrapy("task", "start", "--weight", "2", "--", "-job").returncode == 0
    assert project.scrapy("task", "pause", "--", "-job").stdout == "task -job is paused\n"


def test_an_order_may_come_before_its_task(project: Project) -> None:
    """A closed task that nobody declared is listed."""
    assert project.direct("task", "pause", "t", "--new").returncode == 0
    assert shown(project)["state"] == "paused"
    assert project.direct("task", "close", "u", "--new").returncode == 0
    found = [json.loads(line) for line in project.direct("task", "list", "--json").stdout.splitlines()]
    assert [(task["task_id"], task["declared"], task["closed"]) for task in found] == [
        ("t", True, False),
        ("u", False, True),
    ]


def test_the_traps_of_a_task_are_shown(project: Project) -> None:
    """All of them, as they are, for people and programs."""
    traps = {f'h{number}.test/day/N?a="b"&ü{"/long" * 20}': number + 1 for number in range(20)}
    project.direct("task", "start", "t")
    with closing(project.log.producer()) as producer:
        producer.send(TOPICS.tasks, note_key("t", "p"), Usage(links_filtered=8, traps=traps).value()).result()
    assert json.loads(project.within("task", "show", "t", "--json").stdout)["traps"] == traps
    [said] = [line for line in project.within("task", "show", "t").stdout.splitlines() if line.startswith("traps ")]
    assert json.loads(said.removeprefix("traps ")) == traps


def test_a_deleted_task_is_not_known_any_more(project: Project) -> None:
    project.direct("task", "start", "t", "--weight", "3")
    project.direct("task", "start", "other")
    assert project.direct("task", "delete", "t").stdout == "task t is deleted\n"
    assert json.loads(project.direct("task", "list", "--json").stdout)["task_id"] == "other"
    assert project.scrapy("task", "show", "t").returncode == 1
    project.direct("task", "close", "other")
    assert "about to end" in project.scrapy("task", "delete", "other").stderr


def test_a_webhook_without_a_key_is_said_to_be_unsigned(project: Project) -> None:
    hook = ("--webhook", "http://receiver.test/")
    said = project.scrapy("task", "start", "t", *hook)
    assert (said.returncode, "SITE_SPILL_KEY is empty" in said.stderr) == (0, True)
    key = ("-s", "SITE_SPILL_KEY=a key that is long enough for tests")
    assert project.scrapy("task", "start", "u", *hook, *key).stderr == ""


def test_seed_close_and_wait(project: Project) -> None:
    seeded = project.scrapy("seed", "-", "--task-id", "t", "--close", stdin="http://host.test/1\nhttp://host.test/2\n")
    assert seeded.stdout.endswith("produced 2, refused 0\n"), seeded.stderr
    crawl(project.data, [], until=told(project.data))
    waited = project.scrapy("task", "wait", "t", "--json")
    assert waited.returncode == 0
    assert json.loads(waited.stdout)["seeds"] == {"result": 2, "total": 2}
    again = project.scrapy("task", "close", "t")
    assert (again.returncode, "has ended already" in again.stdout) == (0, True)
    crawl(project.data, [{"url": "http://host.test/3"}])
    assert len(events(project.data)) == 1


def test_wait_says_that_a_task_was_cancelled_or_its_budget_is_spent(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the log does not answer for some time."""
    declare(project.data, state="cancelled")
    declare(project.data, "large", max_pages=1)
    seeds = [{"url": f"http://host.test/{n}", "meta": {"task_id": "large" if n else "t"}} for n in range(4)]
    crawl(project.data, seeds, until=told(project.data))
    assert project.scrapy("task", "wait", "t").returncode == 3
    reads, read = count(), TaskDesk.read

    def away_for_a_while(desk: TaskDesk) -> None:
        if next(reads) in (1, 2):  # not when it begins
            raise LogUnavailable("no answer")
        read(desk)

    monkeypatch.setattr(TaskDesk, "read", away_for_a_while)
    waited = project.scrapy("task", "wait", "large")
    assert (waited.returncode, "page_budget" in waited.stdout) == (4, True), waited.stderr
    assert waited.stderr.count("no answer") == 1


def test_wait_says_once_that_the_log_of_ends_cannot_be_read(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the record of the task can."""
    project.scrapy("seed", "-", "--task-id", "t", "--close", stdin="http://host.test/1\n")
    crawl(project.data, [], until=told(project.data))
    looks = count()

    def is_told(_ending: object) -> bool:
        """At the fourth look; from the first one on nothing can be read."""
        monkeypatch.setattr(LocalTopicReader, "poll", Mock(side_effect=LogUnavailable("no right")))
        return next(looks) == 3

    monkeypatch.setattr(task, "_is_told", is_told)
    monkeypatch.setattr(task, "_LOOK_SECONDS", 0.0)
    waited = project.scrapy("task", "wait", "t")
    assert (waited.returncode, waited.stderr.count("no right")) == (0, 1), waited.stderr


def test_a_task_that_has_ended_takes_no_more_orders_until_more_of_it_is_produced(project: Project) -> None:
    declare(project.data, max_pages=1)
    for task_id in "tu":
        project.scrapy("seed", "-", "--task-id", task_id, "--close", stdin=f"http://host.test/{task_id}\n")
    assert shown(project)["state"] == "running"
    crawl(project.data, [], until=told(project.data, 2))
    for verb, *words in (("pause",), ("cancel",), ("resume",), ("set", "weight=5")):
        refused = project.scrapy("task", verb, "t", *words)
        assert (refused.returncode, "has ended (done)" in refused.stderr) == (1, True)
    found = [json.loads(line) for line in project.direct("task", "list", "--json").stdout.splitlines()]
    assert [(task["state"], task["reason"], task["pages"]) for task in found] == [("done", "", 1)] * 2
    assert project.scrapy("task", "set", "t", "webhook=http://h.test/").returncode == 0  # for `notify`
    assert project.scrapy("task", "wait", "t").returncode == 0
    assert project.direct("task", "start", "t").returncode == 0
    project.scrapy("seed", "-", "--task-id", "u", stdin="http://host.test/2\n")
    assert shown(project)["state"] == shown(project, "u")["state"] == "running"


def test_a_task_that_is_about_to_end_is_not_declared_anew(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancel closes it, and its last page may take its time: the new one would end with that page."""
    said = []

    async def answer(request: Request) -> Response:
        await asyncio.to_thread(declare, project.data, state="cancelled")
        while (ending := read_endings(project.log, TOPICS).get("t")) is None or not ending.is_closed:
            await asyncio.sleep(0.05)
        said.append(await asyncio.to_thread(project.scrapy, "task", "start", "t"))
        return page(request)

    monkeypatch.setitem(ANSWERS, "/slow", answer)
    declare(project.data)
    crawl(project.data, [{"url": "http://host.test/slow", "meta": {"task_id": "t"}}], until=told(project.data))
    assert (said[0].returncode, "scrapy task wait t" in said[0].stderr) == (1, True), said[0].stderr
    assert project.scrapy("task", "start", "t").returncode == 0
    assert shown(project)["state"] == "running"


def test_a_cancel_counts_links_that_are_told_of_behind_the_end(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process tells of its own once a second; the end comes as soon as all seeds are counted."""
    declare(project.data, state="cancelled")
    crawl(project.data, [{"url": "http://host.test/1", "meta": {"task_id": "t"}}], until=told(project.data))
    sleep = runtime.sleep

    def later(seconds: float) -> None:
        sleep(seconds)
        with closing(project.log.producer()) as producer:
            producer.send(TOPICS.tasks, note_key("t", "p"), Usage(links_cancelled=18).value()).result()

    monkeypatch.setattr(runtime, "sleep", later)
    monkeypatch.setattr(task, "_SETTLE_SECONDS", 0.5)
    monkeypatch.setattr(orders.TaskOrders, "cancel", lambda _: orders.Ordered(""))  # it ended as soon as it was given
    assert "links cancelled: 18;" in project.scrapy("task", "cancel", "t").stdout


def test_a_task_is_deleted_when_none_of_its_seeds_is_left(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its crawl would write counts of it behind the records that delete them."""
    refusals = []

    async def answer(request: Request) -> Response:
        refusals.append(await asyncio.to_thread(project.scrapy, "task", "delete", "t"))
        return page(request)

    monkeypatch.setitem(ANSWERS, "/slow", answer)
    declare(project.data)
    crawl(project.data, [{"url": "http://host.test/slow", "meta": {"task_id": "t"}}])
    [refused] = refusals
    assert (refused.returncode, "scrapy task cancel t" in refused.stderr) == (1, True), refused.stderr
    project.scrapy("seed", "-", "--task-id", "t", stdin="http://host.test/2\n")  # it waits
    assert "scrapy task wait t" in project.scrapy("task", "delete", "t").stderr
    declare(project.data, state="cancelled")
    crawl(project.data, [], until=told(project.data))
    assert project.scrapy("task", "delete", "t").stdout == "task t is deleted\n"
    crawl(project.data, [{"url": "http://host.test/other"}])
    for topic in ("seeds.tasks", "seeds.tasks.control", "seeds.tasks.pages"):
        last = {message.key: message.value for message in project.log.read(topic)}
        assert [key for key, value in last.items() if key.startswith(b"t\x1f") and value is not None] == []


def test_a_seed_with_a_callback_of_another_spider_is_one_of_its_task(project: Project) -> None:
    """It was read as crawl_spider reads it, which refuses it, and so its task was deleted while it waited."""
    project.direct("task", "start", "t")
    value = {"url": "http://host.test/1", "callback": "article", "meta": {"task_id": "t"}}
    project.produce("seeds", (None, json.dumps(value).encode()))
    assert "scrapy task wait t" in project.scrapy("task", "delete", "t").stderr
    assert json.loads(project.direct("progress", "--task-id", "t", "--format", "json").stdout)["waiting"] == 1


def test_a_task_is_deleted_when_event_and_webhook_of_its_end_are_out(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would hear of it: the process that tells it may have died, or its topic takes nothing."""
    with closing(Receiver(refusals=1)) as receiver:
        declare(project.data, webhook=receiver.url)
        project.scrapy("seed", "-", "--task-id", "t", "--close", stdin="http://host.test/1\n")
        with monkeypatch.context() as dying:
            dying.setattr(EndAnnouncer, "_send_all", AsyncMock())
            crawl(project.data, [], until=lambda _: getattr(ending_of(project.data), "is_told", False))
        assert "scrapy task wait t" in project.scrapy("task", "delete", "t").stderr
        with monkeypatch.context() as dying:
            dying.setattr(Webhooks, "look", Mock())
            crawl(project.data, [], until=told(project.data))
        assert "scrapy task notify t" in project.scrapy("task", "delete", "t").stderr
        assert project.scrapy("task", "notify", "t", SITE_ALLOW_PRIVATE_HOSTS="true").returncode == 1
        assert project.scrapy("task", "delete", "t").stdout == "task t is deleted\n"
        assert len(events(project.data)) == len(receiver.requests) == 1


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


ONCE = ("-s", "SITE_KAFKA_EXACTLY_ONCE=true")


def test_close_and_wait_are_refused_where_nobody_would_hear_of_the_end(project: Project) -> None:
    """Links leave in the transaction of their tree, before their offsets are known."""
    project.scrapy("task", "start", "t")
    for command in (("task", "close", "t"), ("task", "wait", "t"), ("seed", "-", "--task-id", "t", "--close")):
        ran = project.scrapy(*command, *ONCE, stdin="http://host.test/1\n")
        assert (ran.returncode, "SITE_KAFKA_EXACTLY_ONCE" in ran.stderr) == (78, True), ran.stderr


def test_a_task_whose_end_is_not_told_is_deleted_when_none_of_its_seeds_is_left(project: Project) -> None:
    """The control log knows neither that they are complete nor that the task has ended."""
    declare(project.data)
    project.scrapy("seed", "-", "--task-id", "t", *ONCE, stdin="http://host.test/1\n")
    refused = project.scrapy("task", "delete", "t", *ONCE)
    assert (refused.returncode, refused.stderr.endswith("scrapy task cancel t\n")) == (1, True), refused.stderr
    crawl_trees(project.data, 0)
    declare(project.data, state="cancelled")
    blanks = ("-s", "SITE_CONSUMER_GROUP= site_spider ")  # which the crawl does not take for a part of the name
    assert project.scrapy("task", "delete", "t", *ONCE, *blanks).stdout == "task t is deleted\n"


def test_a_webhook_is_said_not_to_be_sent_where_the_end_is_not_told(project: Project) -> None:
    hook = "http://receiver.test/"
    for words in (("start", "t", "--webhook", hook), ("set", "t", f"webhook={hook}")):
        said = project.scrapy("task", *words, *ONCE)
        assert (said.returncode, "is not sent" in said.stderr) == (0, True), said.stderr


def test_notify_sends_the_webhook_once_more(project: Project) -> None:
    with closing(Receiver(refusals=1)) as receiver:
        declare(project.data, webhook=receiver.url)
        project.scrapy("seed", "-", "--task-id", "t", "--close", stdin="http://host.test/1\n")
        crawl(project.data, [], until=lambda _: attempts(project.data) == [503], SITE_ALLOW_PRIVATE_HOSTS=True)
        sent = project.scrapy("task", "notify", "t", "--json", SITE_ALLOW_PRIVATE_HOSTS="true")
        assert sent.returncode == 0, sent.stderr
        assert [each["status"] for each in json.loads(sent.stdout)["attempts"]] == [503, 204]
        assert attempts(project.data) == [503, 204]
        assert receiver.requests[0][-1] == receiver.requests[1][-1]
