"""How `task_shell/crawl_spider.sh` keeps processes: shown with a scripted `scrapy`, and with the real one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.supervision import ROOT, SCRIPT, Script, finish, lives, own_control_files, wait_until


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


def test_another_spider_is_run_and_watched(script: Script) -> None:
    """With the topic and the group of its custom_settings."""
    running = script.start("-s", "books", "--until-done", "-n", "2")
    crawlers, watchers = script.wait_for_starts(2), script.wait_for_starts(1, "progress")
    assert {tuple(start.arguments) for start in crawlers} == {("crawl", "books")}
    assert watchers[0].arguments == ["progress", "--until-done", "--spider", "books"]
    running.terminate()
    assert finish(running) == (0, "")


def test_without_options_the_settings_decide_and_ctrl_c_is_a_stop(script: Script) -> None:
    """An environment variable is no option, but wins over the defaults of the script."""
    running = script.start(SITE_SEED_TOPIC="from-environment")
    [start] = script.wait_for_starts(1)
    assert start.arguments[2:] == ["-s", "SITE_SEED_TOPIC=from-environment"]
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


def test_a_signal_during_a_pause_ends_at_once(script: Script) -> None:
    """There is nothing to wait for."""
    script.plan("exit-1")
    running = script.start()
    script.wait_for_starts(3)
    running.terminate()
    assert finish(running)[0] == 0


def test_a_wrong_setting_stops_all(script: Script) -> None:
    """Starting again would not help; the others stop gracefully."""
    script.plan("run exit-78")
    running = script.start("-n", "2")
    assert finish(running)[0] == 78
    assert len(script.starts()) == 2
    assert script.survivors() == []


def test_processes_that_can_never_begin_are_given_up(script: Script) -> None:
    """Each has been started five times by then."""
    script.edit(longest_pause_seconds=0)
    script.plan("exit-71")
    code, complaints = finish(script.start("-n", "2"))
    assert code == 71
    assert "no process could take seeds in 5 starts" in complaints
    assert len(script.starts()) >= 10


@pytest.mark.parametrize("plan", ["exit-75 exit-71 exit-71 exit-71 run", "run exit-71"])
def test_nobody_is_given_up_who_has_worked_or_beside_whom_another_works(script: Script, plan: str) -> None:
    """Its set-up may fail as long as it likes; the pauses grow."""
    script.edit(setup_tries=2, longest_pause_seconds=0)
    script.plan(plan)
    running = script.start("-n", "1" if plan.startswith("exit") else "2")
    script.wait_for_starts(5)
    running.terminate()
    assert finish(running)[0] == 0


def test_a_server_that_is_away_at_the_start_stops_all(script: Script) -> None:
    """The process itself has waited for it long enough."""
    script.plan("exit-69")
    assert finish(script.start())[0] == 69
    assert len(script.starts()) == 1


def test_a_server_that_is_away_later_is_waited_for(script: Script) -> None:
    """A process that has worked is started until it works again."""
    script.plan("exit-75 exit-69 run")
    running = script.start()
    script.wait_for_starts(3)
    running.terminate()
    assert finish(running)[0] == 0


def test_until_done_stops_all_when_the_watcher_says_so(script: Script) -> None:
    """It watches the same topic and group, with the same settings."""
    running = script.start("-t", "T", "--until-done", "-n", "2", "--", "-s", "A=1", "--set=B=2", "-a", "c=3")
    script.wait_for_starts(2)
    [watcher] = script.wait_for_starts(1, "progress")
    assert " ".join(watcher.arguments) == "progress --until-done -s SITE_SEED_TOPIC=T -s A=1 --set=B=2"
    script.plan(progress="exit-0")
    os.kill(watcher.pid, signal.SIGKILL)  # starts again, and then finds that all is done
    code, complaints = finish(running)
    assert code == 0
    assert "the watcher was killed by signal KILL" in complaints
    assert len(script.journal("stopped")) == 2


def test_until_done_fails_when_it_cannot_be_told(script: Script) -> None:
    """The watcher has said why; the crawlers are stopped."""
    script.plan(progress="exit-1")
    assert finish(script.start("--until-done"))[0] == 1
    assert script.survivors() == []


def test_a_wrong_option_is_exit_code_2(script: Script) -> None:
    """Nothing is started."""
    for arguments, said in (
        (["--unitl-done"], "unknown option '--unitl-done'"),
        (["crawl_spider"], "unknown option 'crawl_spider'"),
        (["-n", "0"], "-n is '0', but must be a number from 1 to 9999"),
        (["-c", "many"], "-c is 'many'"),
        (["-t"], "option -t needs a value"),
    ):
        code, complaints = finish(script.start(*arguments))
        assert code == 2
        assert said in complaints
    assert script.starts() == []


def test_a_missing_virtual_environment_is_named(script: Script) -> None:
    """With what makes one."""
    code, complaints = finish(script.start("-v", "no-such-folder"))
    assert code == 1
    assert "'no-such-folder'" in complaints
    assert "task_shell/quickstart.sh" in complaints


def test_help_shows_every_option(script: Script) -> None:
    """On stdout, exit code 0."""
    running = script.start("--help")
    text, _ = running.communicate(timeout=120)
    assert running.returncode == 0
    assert all(option in text for option in ("-c ", "-t ", "-g ", "-v ", "-n ", "--until-done", "-- "))


class Real:
    """The script with the `scrapy` of these tests, and data of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.venv = Path(sys.executable).parents[1]

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SITE_")}
        return subprocess.run(
            [str(SCRIPT), "-v", str(self.venv), *arguments],
            env=kept | own_control_files(self.folder) | {"SITE_DATA_DIR": str(self.folder)} | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


def test_until_done_of_a_topic_that_does_not_exist_is_exit_code_1(tmp_path: Path) -> None:
    """The reason is on stderr."""
    ran = Real(tmp_path).run("--until-done", "-t", "none-such", "--", "--nolog")
    assert ran.returncode == 1
    assert ran.stderr.startswith("scrapy progress: Topic none-such does not exist")


def test_a_wrong_setting_is_said_once_by_the_process(tmp_path: Path) -> None:
    """One line, exit code 78."""
    ran = Real(tmp_path).run("--", "--nolog", SITE_FOLLOW_NOFOLLOW="perhaps")
    assert ran.returncode == 78
    assert ran.stderr == "scrapy crawl: SITE_FOLLOW_NOFOLLOW is 'perhaps', but must be true or false.\n"
