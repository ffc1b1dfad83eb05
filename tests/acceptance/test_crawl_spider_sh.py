"""How `task_shell/crawl_spider.sh` keeps processes: shown with a scripted `scrapy`, and with the real one."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.supervision import ROOT, Script, finish, lives, wait_until


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    """Whatever happens, no process is left."""
    found = Script(tmp_path)
    yield found
    found.close()


def test_options_become_settings_of_every_process_and_a_signal_stops_each_gracefully(script: Script) -> None:
    """What stands behind -- is for scrapy; all run at the project's root, and get one SIGTERM, no more."""
    running = script.start("-c", "5", "-t", "T", "-g", "G", "-n", "3", "--", "-s", "A=1", "--logfile", "x")
    starts = script.wait_for_starts(3)
    options = "-s CONCURRENT_REQUESTS=5 -s SITE_SEED_TOPIC=T -s SITE_CONSUMER_GROUP=G -s A=1 --logfile x"
    assert {tuple(start.arguments) for start in starts} == {("crawl", "crawl_spider", *options.split())}
    assert {start.directory for start in starts} == {str(ROOT)}
    running.terminate()
    assert finish(running) == (0, "")
    signals = script.journal("signal")
    assert sorted(int(words[1]) for words in signals) == sorted(start.pid for start in starts)
    assert {words[2] for words in signals} == {"SIGTERM"}
    assert len(script.journal("stopped")) == 3


def test_without_options_the_settings_decide_and_ctrl_c_is_a_stop(script: Script) -> None:
    """An environment variable is no option: each process reads it, and takes quotes away, as every command does."""
    script.edit(default_topic="edited", default_group="edited")
    running = script.start(SITE_SEED_TOPIC="'news'", CONCURRENT_REQUESTS='"5"')
    [start] = script.wait_for_starts(1)
    assert start.arguments[2:] == ["-s", "SITE_CONSUMER_GROUP=edited"]
    running.send_signal(signal.SIGINT)
    assert finish(running) == (0, "")
    assert [words[2] for words in script.journal("signal")] == ["SIGTERM"]


def test_a_second_signal_kills(script: Script) -> None:
    """Also a process that does not stop; nothing outlives the script."""
    script.plan("stubborn")
    running = script.start("-n", "2")
    script.wait_for_starts(2)
    running.terminate()
    wait_until(lambda: len(script.journal("signal")) == 2)
    assert running.poll() is None
    running.terminate()
    assert finish(running)[0] == 137
    assert script.survivors() == []


def test_no_process_outlives_a_script_that_is_killed(script: Script) -> None:
    """The kernel sees to it."""
    script.plan("stubborn")
    running = script.start("-n", "2")
    script.wait_for_starts(2)
    running.kill()
    running.wait(300)
    wait_until(lambda: script.survivors() == [])


def test_a_process_that_ends_is_started_again_after_a_pause_that_grows(script: Script) -> None:
    """The others go on; each is told how its slot has ended before."""
    script.plan("run run exit-70 exit-75 run")
    running = script.start("-n", "2")
    first, second = script.wait_for_starts(2)
    os.kill(first.pid, signal.SIGKILL)
    script.wait_for_starts(5)
    assert lives(second.pid)
    told = wait_until(lambda: found if len(found := script.journal("restarts")) == 5 else [])
    assert [words[1] for words in told[:4]] == ["none", "none", "137:1", told[3][1]]
    assert set(told[3][1].split(",")) == {"137:1", "70:1"}
    assert set(told[4][1].split(",")) == {"137:1", "70:1", "75:1"}
    running.terminate()
    code, complaints = finish(running)
    assert code == 0
    assert "was killed by signal KILL" in complaints
    assert re.findall(r"starting again in (\S+) s", complaints) == ["0.5", "1.0", "2.0"]


@pytest.mark.parametrize(
    ("plan", "arguments", "code"),
    [
        ({"crawl": "run exit-78"}, ("-n", "2"), 78),
        ({"crawl": "exit-69"}, (), 69),  # the process itself has waited for its server long enough
        ({"progress": "exit-1"}, ("--until-done",), 1),  # the watcher has said why
        ({"progress": "exit-2"}, ("--until-done",), 2),
    ],
)
def test_what_starting_again_would_not_mend_stops_all(
    script: Script, plan: dict[str, str], arguments: tuple[str, ...], code: int
) -> None:
    script.plan(**plan)
    assert finish(script.start(*arguments))[0] == code
    assert len(script.starts()) <= 2
    assert script.survivors() == []


@pytest.mark.parametrize("plan", ["exit-71", "exit-71 exit-1"])  # 1: Python itself could not begin
def test_processes_that_can_never_begin_are_given_up(script: Script, plan: str) -> None:
    """Each has been started three times by then, and none runs: they meet in a pause."""
    script.edit(setup_tries=3, longest_pause_seconds=8)  # longer than a start: soon both are in one
    script.plan(plan)
    code, complaints = finish(script.start("-n", "2"))
    assert code == 71
    assert "no process could take seeds in 3 starts" in complaints
    assert len(script.starts()) >= 6


STEADY = "exit-71 exit-71 exit-71 exit-71 run"


@pytest.mark.parametrize(
    "plan", ["exit-75 exit-71 exit-71 exit-71 run", "run exit-71", "exit-75 exit-69 exit-1", STEADY]
)
def test_nobody_is_given_up_who_has_worked_or_beside_whom_another_works(script: Script, plan: str) -> None:
    """Its set-up may fail, or its server be away, for long; a signal during a pause ends at once."""
    longest, steady = 60 if "69" in plan else 0, 0 if plan == STEADY else 60
    script.edit(setup_tries=2, longest_pause_seconds=longest, steady_seconds=steady)
    script.plan(plan)
    running = script.start("-n", "1" if plan.startswith("exit") else "2")
    script.wait_for_starts(3 if "69" in plan else 5)
    running.terminate()
    assert finish(running)[0] == 0


def test_a_log_that_cannot_be_written_ends_nothing(script: Script) -> None:
    """Nobody reads what is said: the crawler that ended is started again all the same."""
    script.plan("exit-75 run")
    running = script.start()
    assert running.stderr is not None
    running.stderr.close()
    script.wait_for_starts(2)
    running.terminate()
    assert running.wait(300) == 0


def test_a_script_that_was_stopped_for_a_while_goes_on(script: Script) -> None:
    """As by Ctrl-Z and fg: Python then tells of a signal that was none, as its wait should have been over."""
    running = script.start()
    script.wait_for_starts(1)
    for _ in range(2):
        running.send_signal(signal.SIGSTOP)
        time.sleep(1.3)  # a wait takes a second at most
        running.send_signal(signal.SIGCONT)
    assert script.start("--scale", "2").wait(300) == 0
    script.wait_for_starts(2)
    running.terminate()
    assert finish(running)[0] == 0
    assert len(script.journal("signal")) == 2


def test_scale_reaches_the_script_that_is_left(script: Script) -> None:
    """Of two with the same names first the older one, and after its end the other."""
    first = script.start()
    script.wait_for_starts(1)
    second = script.start()
    script.wait_for_starts(2)
    first.terminate()
    assert finish(first) == (0, "")
    wait_until(lambda: script.start("--scale", "2").wait(300) == 0)
    script.wait_for_starts(3)
    second.terminate()
    code, complaints = finish(second)
    assert code == 0
    assert "another one runs" in complaints
    assert "from 1 to 2 processes" in complaints


def test_until_done_stops_all_when_the_watcher_says_so(script: Script) -> None:
    """It watches the same topic and group, with the same settings."""
    options = "-s books -t T --until-done -n 2 -- -s A=1 --set=B=2 -a c=3"
    running = script.start(*options.split())
    assert {tuple(start.arguments[:2]) for start in script.wait_for_starts(2)} == {("crawl", "books")}
    [watcher] = script.wait_for_starts(1, "progress")
    asked = "progress --until-done --spider books -s SITE_SEED_TOPIC=T -s A=1 --set=B=2"
    assert " ".join(watcher.arguments) == asked
    script.plan(progress="exit-0")
    os.kill(watcher.pid, signal.SIGKILL)  # starts again, and then finds that all is done
    code, complaints = finish(running)
    assert code == 0
    assert "the watcher was killed by signal KILL" in complaints
    assert len(script.journal("stopped")) == 2


def test_a_wrong_option_is_exit_code_2_and_help_shows_all(script: Script) -> None:
    """Nothing is started, as without a virtual environment."""
    for arguments, wanted, *said in (
        (["--unitl-done"], 2, "unknown option '--unitl-done'"),
        (["-n", "0"], 2, "-n is '0', but must be a number from 1 to 9999"),
        (["--scale", "10000"], 2, "--scale needs a number from 0 to 9999"),
        (["-t"], 2, "option -t needs a value"),
        (["-v", "no-such-folder"], 1, "'no-such-folder'", "task_shell/quickstart.sh"),
        (["--help"], 0, "-c ", "-t ", "-g ", "-v ", "-n ", "--until-done", "-- "),
    ):
        running = script.start(*arguments)
        written, complaints = running.communicate(timeout=300)
        assert running.returncode == wanted
        assert all(words in (complaints if wanted else written) for words in said)
    assert script.starts() == []
