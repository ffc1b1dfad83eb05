"""`scrapy progress`, and waiting until all is done."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from site_spider.commands.progress import Lines, LiveLine, Report, Watch, _voice, line
from site_spider.contracts.seed_log import Partition
from site_spider.errors import LogUnavailable, TopicMissing
from site_spider.observe.progress import Progress
from tests.commands.project import Project
from tests.in_process.engine import crawl


def report(lag: int, *ends: int) -> Report:
    parts = {Partition("seeds", i): Progress(end, 0, lag if i == 0 else 0, end) for i, end in enumerate(ends or (10,))}
    return Report("seeds", "group", "here", parts, None, None)


def watched(*outcomes: Report | Exception) -> tuple[Mock, list[str]]:
    """A watch over these looks, which must all be taken."""
    voice, said, look = Mock(), list[str](), Mock(side_effect=outcomes)
    Watch(look, said.append, voice, owners=frozenset, pause_seconds=0).run()
    assert look.call_count == len(outcomes)
    return voice, said


def lags(told: Mock, *, is_last: bool) -> list[int]:
    return [call.args[0].total.lag for call in told.call_args_list if bool(call.kwargs) is is_last]


def test_partitions_that_nobody_has_are_said_while_something_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """When two looks in a row say so: a rebalance takes a moment."""
    monkeypatch.setattr("site_spider.commands.progress._OWNER_SECONDS", 0)
    said: list[str] = []
    nobodys = iter([{Partition("seeds", 1)}, set(), None, {Partition("seeds", 1)}, {Partition("seeds", 1)}])
    found = [report(9, 10, 4)] * 5 + [report(0, 10, 4)] * 2
    Watch(Mock(side_effect=found), said.append, Mock(), lambda: next(nobodys, frozenset()), pause_seconds=0).run()
    assert [text.count("seeds/1") for text in said] == [1]


@pytest.mark.parametrize(
    ("reports", "shown"),
    [
        pytest.param([report(5), report(1), report(0), report(0)], [5, 1, 0], id="two looks without lag"),
        pytest.param([report(0, 10, 4), report(0, 10, 5), report(0, 10, 5)], [0, 0], id="a link came back as a seed"),
        pytest.param([report(0), report(3), report(0), report(0)], [0, 3, 0], id="lag came back"),
    ],
)
def test_two_looks_alike_without_lag_end_the_watch(reports: list[Report], shown: list[int]) -> None:
    voice, said = watched(*reports)
    assert (lags(voice.show, is_last=False), lags(voice.show, is_last=True), said) == (shown, [0], [])


@pytest.mark.parametrize(("seconds", "spare", "said"), [(30, 0, ""), (0, 2, "Not told within 0 s is the end of a, b")])
def test_ends_of_tasks_are_waited_for_and_not_for_ever(
    seconds: int, spare: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("site_spider.commands.progress._TELL_SECONDS", seconds)
    untold = iter([("a", "b"), ("b",), ()])
    following, words = iter([report(0)] * 4), []
    Watch(lambda _rate: next(following), words.append, Mock(), frozenset, 0, lambda: next(untold)).run()
    assert (len([*following]), "".join(words)) == (spare, said)


def test_the_wait_for_ends_begins_anew_when_lag_came_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1_000, 20))
    monkeypatch.setattr("site_spider.commands.progress.runtime.monotonic", lambda: next(clock))
    untold, words = iter([("a",), ("a",), ()]), []
    reports = Mock(side_effect=[report(0), report(0), *[report(3)] * 9, report(0), report(0), report(0)])
    Watch(reports, words.append, Mock(), frozenset, 0, lambda: next(untold)).run()
    assert words == []


def test_an_outage_is_said_once_and_waited_out() -> None:
    gone = LogUnavailable("no answer")
    voice, said = watched(report(1), gone, gone, gone, report(0), gone, report(0))
    assert said == ["waiting: no answer", "here answers again"] * 2
    assert voice.interrupt.call_count == 4


def test_a_missing_topic_ends_the_watch() -> None:
    """Waiting for it could take for ever."""
    with pytest.raises(TopicMissing):
        watched(report(1), TopicMissing("Topic seeds does not exist."))


def test_lines_are_said_when_something_has_changed() -> None:
    """Neither the same again nor too often, but the end always."""
    said: list[int] = []
    lines = Lines(lambda found: said.append(found.total.lag), gap_seconds=0)
    for lag in (5, 5, 4):
        lines.show(report(lag))
    assert said == [5, 4]
    seldom = Lines(lambda found: said.append(found.total.lag), gap_seconds=3600)
    seldom.show(report(3))
    seldom.show(report(2))
    seldom.show(report(0), is_last=True)
    assert said == [5, 4, 3, 0]


def test_a_live_line_is_drawn_over(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It never gets wider than the terminal, and ends with a line break."""
    monkeypatch.setenv("COLUMNS", "20")
    live = LiveLine()
    live.show(report(5))
    live.show(report(0), is_last=True)
    first, second = capsys.readouterr().out.removesuffix("\n").split("\r\x1b[K")[1:]
    assert first == "done 10, in flight…"
    assert len(second) == 19


def test_no_line_is_drawn_over_where_log_lines_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """crawl_spider.sh says so to the watcher of its crawl: TERM is dumb then."""
    monkeypatch.setattr("sys.stdout", Mock(isatty=lambda: True))
    for terminal, kind in (("xterm", LiveLine), ("dumb", Lines)):
        monkeypatch.setenv("TERM", terminal)
        assert type(_voice("table")) is kind


def test_a_crawl_does_not_end_because_nobody_takes_what_its_watcher_says(project: Project) -> None:
    """As on a full disk, or after the end of a terminal; without a crawl it is an error."""
    project.produce("seeds", (b"k", b"1"))
    crawl(project.data, [])
    for variables, code in (({}, 1), ({"CRAWL_SPIDER_PROCESSES": "1"}, 0)):
        with (
            Path("/dev/full").open("wb") as full,
            project.started("progress", "--until-done", **variables, stdout=full, stderr=full) as running,
        ):
            assert running.wait(300) == code


def test_a_report_is_one_line() -> None:
    """Unknown numbers are dashes."""
    parts = {Partition("t", 0): Progress(10, 2, 90, 100)}
    assert line(Report("t", "g", "a", parts, 2.0, 45.0)) == (
        "done 10, in flight 2, lag 90, rate 2.0/s, time left 0:00:45"
    )
    assert line(Report("t", "g", "a", parts, None, None)).endswith("rate -, time left -")


def test_the_command_shows_partitions_and_their_sum(project: Project) -> None:
    """A table, and all in one line below it."""
    project.produce("seeds", (b"k", b"1"), (b"k", b"2"))
    ran = project.direct("progress")
    lines = ran.stdout.splitlines()
    assert ran.returncode == 0
    assert lines[0].startswith("Group site_spider on topic seeds at ")
    assert lines[-2].split() == ["total", "0", "0", "2", "-"]
    assert lines[-1] == "done 0, in flight 0, lag 2, rate 0.0/s, time left -"
    assert "No process of group site_spider has a partition" in ran.stderr


def test_the_command_writes_json(project: Project) -> None:
    project.produce("mine", (b"k", b"1"))
    ran = project.direct("progress", "--topic", "mine", "--group", "other", "--format", "json")
    found = json.loads(ran.stdout)
    assert (found["topic"], found["group"], found["done"], found["lag"]) == ("mine", "other", 0, 1)
    assert sum(part["end"] for part in found["partitions"]) == 1
    assert found["seconds_left"] is None
    assert [part["partition"] for part in found["partitions_without_owner"]] == [0, 1, 2, 3]


def test_until_done_ends_when_nothing_is_left(project: Project) -> None:
    """A topic whose only message was committed."""
    crawl(project.data, [{"url": "http://host.test/"}])
    ran = project.scrapy("progress", "--until-done")
    assert ran.returncode == 0
    assert ran.stdout.splitlines()[-1].startswith("done 1, in flight 0, lag 0, ")


@pytest.mark.parametrize(("closed", "said"), [(True, "is the end of spring\n"), (False, "")])
def test_the_watcher_of_processes_names_tasks_whose_end_is_not_told(
    closed: bool, said: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed behind the crawl; processes that had no seed were stopped before one of them had read that."""
    monkeypatch.setattr("site_spider.commands.progress._TELL_SECONDS", 0)
    crawl(project.data, [{"url": "http://host.test/", "meta": {"task_id": "spring"}}])
    if closed:
        project.scrapy("task", "close", "spring", "--new")
    ran = project.scrapy("progress", "--until-done", CRAWL_SPIDER_PROCESSES="1")
    assert (ran.returncode, ran.stderr.endswith(said)) == (0, True)
    assert bool(ran.stderr) is closed
    assert project.scrapy("progress", "--until-done").stderr == ""


@pytest.mark.parametrize("options", [[], ["--until-done"]])
def test_a_topic_that_does_not_exist_is_exit_code_1(project: Project, options: list[str]) -> None:
    """With the reason, whether it was to wait or not."""
    ran = project.scrapy("progress", *options)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("scrapy progress: Topic seeds does not exist in ")
    assert ran.stderr.endswith(" Produce seeds to it, or name another one (SITE_SEED_TOPIC, --topic).\n")
