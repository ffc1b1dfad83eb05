"""`scrapy task`: what the verbs print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from site_spider.tasks.declaration import Task
from tests.commands.project import Project


def test_a_task_is_declared_listed_shown_changed_and_controlled(project: Project) -> None:
    """The whole of it by the real command, once."""
    ran = project.scrapy("task", "start", "spring", "--weight", "5", "--rate", "300/m", "--deny", "/a", "--deny", "/b")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "task spring is declared\n", "")
    found = json.loads(project.direct("task", "show", "spring", "--json").stdout)
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
    found = json.loads(project.direct("task", "show", "t", "--json").stdout)
    assert (found["weight"], found["max_pages"], found["allow"]) == (4.0, 10, ["/x/"])
    assert (found["drop_params"], found["follow_duplicates"]) == (["a", "b"], False)
    assert found["expires_at"] is not None


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["start", "t", "--deny", "(?=x)"], "RE2 does not take the pattern", 2),
        (["start", "t", "--scope", "world"], "scope is 'world'", 2),
        (["start", "t", "--weight", "0"], "weight", 2),
        (["start", "a\x07b"], "control character", 2),
        (["start", ""], "empty", 2),
        (["show", "t"], "never declared", 1),
        (["set", "t"], "set needs a change", 2),
        (["set", "t", "colour=red"], "is no change", 2),
        (["set", "t", "state=cancelled"], "is no change", 2),
        (["start", "t", "--file", "/nowhere"], "cannot be read", 1),
        (["pause", "t"], "'t' is not known", 1),
        (["cancel", "t"], "--new", 1),
        (["close", "t"], "--new", 1),
        (["set", "t", "weight=2"], "--new", 1),
        (["wait", "t"], "'t' is not known", 1),
        (["delete", "t"], "'t' is not known", 1),
        (["set", "t", "max_time=15"], "15: its unit is missing; write 15s, 15m, 15h or 15d", 2),
    ],
)
def test_what_cannot_be_done_is_said_and_nothing_is_written(
    project: Project, arguments: list[str], said: str, code: int
) -> None:
    ran = project.scrapy("task", *arguments)
    assert ran.returncode == code
    assert said in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert project.log.partitions("seeds.tasks") == 0


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


@pytest.mark.parametrize(
    "arguments", [["cancel", "t", "--dry-run"], ["resume", "t", "--max-pages", "0"], ["start", "t", "--again"]], ids=str
)
def test_an_option_of_another_verb_is_refused(project: Project, arguments: list[str]) -> None:
    """Who cancels with --dry-run means to look."""
    assert project.direct("task", "start", "t").returncode == 0
    ran = project.direct("task", *arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"{arguments[2]} is for: scrapy task" in ran.stderr
    assert json.loads(project.direct("task", "show", "t", "--json").stdout)["state"] == "running"


@pytest.mark.parametrize("arguments", [[], ["grow", "t"], ["pause"], ["pause", "t", "u"], ["list", "t"]])
def test_other_words_are_refused_with_the_right_ones(project: Project, arguments: list[str]) -> None:
    ran = project.direct("task", *arguments)
    assert ran.returncode == 2
    assert "say" in ran.stderr


def test_a_task_is_declared_once_and_anew_when_it_is_over(project: Project) -> None:
    project.direct("task", "start", "t")
    ran = project.scrapy("task", "start", "t")
    assert (ran.returncode, "scrapy task set" in ran.stderr) == (1, True)
    project.direct("task", "cancel", "t")
    assert "scrapy task start" in project.scrapy("task", "resume", "t").stderr
    assert project.direct("task", "start", "t").returncode == 0


def test_a_task_topic_of_several_partitions_is_refused(project: Project) -> None:
    """Its records would have no one order."""
    project.produce("seeds.tasks", (b"t", b"{}"))
    ran = project.scrapy("task", "start", "t")
    assert (ran.returncode, "must have one" in ran.stderr) == (78, True)
    ran = project.scrapy("task", "list", "-s", "SITE_TASK_TOPIC=seeds")
    assert (ran.returncode, "SITE_TASK_TOPIC is 'seeds'" in ran.stderr) == (78, True)


@pytest.mark.parametrize("option", ["--max-time", "--expires"])
def test_a_span_of_time_without_a_unit_is_refused_as_it_was_typed(project: Project, option: str) -> None:
    ran = project.scrapy("task", "start", "t", option, "15")
    assert ran.returncode == 2
    assert f"argument {option}: '15': its unit is missing; write 15s" in ran.stderr


def test_an_id_that_begins_with_a_dash_stands_behind_two_of_them(project: Project) -> None:
    refused = project.scrapy("task", "start", "-job")
    assert (refused.returncode, "stands behind --" in refused.stderr) == (2, True)
    assert project.scrapy("task", "start", "--weight", "2", "--", "-job").returncode == 0
    assert project.scrapy("task", "pause", "--", "-job").stdout == "task -job is paused\n"


def test_an_order_may_come_before_its_task(project: Project) -> None:
    assert project.direct("task", "pause", "t", "--new").returncode == 0
    assert json.loads(project.direct("task", "show", "t", "--json").stdout)["state"] == "paused"


def test_a_closed_task_that_nobody_declared_is_listed(project: Project) -> None:
    assert project.direct("task", "close", "t", "--new").returncode == 0
    found = json.loads(project.direct("task", "list", "--json").stdout)
    assert (found["task_id"], found["declared"], found["closed"]) == ("t", False, True)


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
