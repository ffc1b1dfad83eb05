"""`scrapy service`: what it has the supervisor run."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from scrapy.commands import ScrapyCommand

from site_spider import SeedSpider
from site_spider.commands import service, site_command
from site_spider.errors import EXIT_CONFIG, EXIT_SETUP, EXIT_UNAVAILABLE
from site_spider.service import supervisor
from site_spider.service.check import check_crawl
from tests.commands import project
from tools.deployment.deployment import wait_until


class Became(Exception):
    """The process would be the supervisor now."""


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    found: list[str] = []

    def become(arguments: list[str]) -> None:
        found.extend(arguments)
        raise Became

    monkeypatch.setattr(service, "become_supervisor", become)
    monkeypatch.setenv("SITE_DATA_DIR", str(tmp_path))
    return found


def run(*arguments: str) -> ScrapyCommand:
    return project.run(service.Command(), project.ours(), *arguments)


def test_options_of_a_crawl_are_those_of_every_process(words: list[str]) -> None:
    given = ["-s", "A_B=1", "-a", "city=Oslo", "-o", "items.jsonl", "--logfile=crawl-%p.log", "--loglevel=INFO"]
    with pytest.raises(Became):
        run("crawl_spider", "-n", "4", "--until-done", *given)
    plan = supervisor.Supervision("x", [sys.executable, "-m", "scrapy"], "crawl_spider", given, 4)
    at = words.index("--")
    assert words[at + 1 :] == given
    assert {"--processes=4", "--until-done", "--spider=crawl_spider"} <= set(words[:at])
    assert plan.crawler[3:] == ["crawl", "crawl_spider", *given]
    assert plan.watcher[3:] == ["progress", "--until-done", "-s", "A_B=1"]


def test_a_spider_is_checked_with_its_arguments(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    city = type("City", (SeedSpider,), {"__init__": lambda self, city: SeedSpider.__init__(self, name=city)})
    monkeypatch.setattr(site_command, "usual_spider", lambda _settings: city)
    with pytest.raises(Became):
        run(*(given := ["-a", "city=Oslo"]))
    assert words[-2:] == given
    checked = run("--check", *given)
    assert not checked.exitcode
    check_crawl(checked.options, city)  # of who only counts


def test_scale_reaches_the_one_of_the_same_spider_topic_and_group(words: list[str]) -> None:
    with pytest.raises(Became):
        run("-n", "2", "-s", "SITE_SEED_TOPIC=mine")
    started = [word for word in words if word.startswith("--key=")]
    assert started == [f"--key={key}" for key in (Path.cwd(), "crawl_spider", "site_spider", "mine")]
    words.clear()
    with pytest.raises(Became):
        run("--scale", "3", "-s", "SITE_SEED_TOPIC=mine")
    assert [word for word in words if word.startswith("--key=")] == started
    assert "--scale=3" in words


@pytest.mark.parametrize("given", ["SITE_LINK_SCOPE=galaxy", "LOG_FILE=/", "LOG_FILE=/ --check"])
def test_a_wrong_setting_starts_nothing(words: list[str], capsys: pytest.CaptureFixture[str], given: str) -> None:
    assert run("-s", *given.split()).exitcode == 78
    assert words == []
    assert f"{given.partition('=')[0]} is '" in capsys.readouterr().err


def test_a_check_starts_nothing_and_shows_no_secret(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings with who has set them, servers, and the exit code that a crawl would have."""
    monkeypatch.setenv("SITE_SPILL_KEY", "very-secret-and-long-enough")
    away = "SITE_ELASTICSEARCH_HOSTS=http://crawler:hidden@127.0.0.1:1"
    assert run("--check", "-s", "SITE_SINKS=local,elasticsearch", "-s", away).exitcode == 69
    shown = capsys.readouterr()
    assert words == []
    assert re.search(r"SITE_SPILL_KEY +\*\*\* +environment", shown.out)
    assert re.search(r"SITE_SINKS +local,elasticsearch +command line", shown.out)
    assert re.search(r"yes +sink local +\S+ will be created", shown.out)
    assert re.search(r"no +sink elasticsearch +", shown.out)
    assert "hidden" not in shown.out + shown.err
    assert "secret" not in shown.out + shown.err
    run("--check", "--format", "json")
    document = json.loads(capsys.readouterr().out)
    assert document["settings"]["SITE_LINK_SCOPE"] == {"value": "host", "from": "site_spider.settings"}
    assert document["exit_code"] == 0


def test_the_exit_codes_of_the_supervisor_are_those_of_crawls() -> None:
    """It is a program that imports nothing of the package."""
    assert (supervisor.UNAVAILABLE, supervisor.SETUP, supervisor.CONFIG) == (EXIT_UNAVAILABLE, EXIT_SETUP, EXIT_CONFIG)


@pytest.mark.parametrize(("processes", "said"), [(1, False), (9_999, True)])
def test_more_processes_than_the_memory_holds_are_warned_of(
    processes: int, said: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start, and where more are wanted."""
    monkeypatch.setattr(supervisor.os, "sysconf", lambda name: 4_096 if name == "SC_PAGE_SIZE" else 1_000_000)
    running = supervisor.Supervisor(supervisor.Supervision("test", [], "quotes", [], processes), Mock())
    running._warn_of_memory()
    assert ("9999 processes need 999.9 GB of memory" in capfd.readouterr().err) is said


def test_a_process_that_cannot_be_started_ends_none_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the limit of open files."""
    monkeypatch.setattr(supervisor.os, "pipe", Mock(side_effect=OSError(24, "Too many open files")))
    running = supervisor.Supervisor(supervisor.Supervision("test", ["scrapy"], "quotes", [], 2), Mock())
    slot = running._slot(2)
    running._start(slot)
    assert slot.begins_at is not None


@pytest.mark.parametrize("lived_seconds", [1, 61])
def test_a_server_that_is_away_stops_none_that_have_worked(lived_seconds: int) -> None:
    """A process that --scale adds in an outage is started again, while those that were there live through it."""
    plan = supervisor.Supervision("test", [sys.executable], "crawl_spider", [], 2)
    running = supervisor.Supervisor(plan, supervisor.ScaleControl(["test"]))
    old, added = running._slot(1), running._slot(2)
    old.process, running._starts[2], added.began = Mock(), 1, time.monotonic() - 70  # servers may be waited for so long
    old.began = added.began - lived_seconds
    running._ended(added, EXIT_UNAVAILABLE)
    assert (added.begins_at is not None) is (lived_seconds > 60)
    assert old.process.send_signal.called is (lived_seconds < 60)  # of a start that finds no server all stop


def test_a_process_that_comes_back_knows_that_it_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """However it left, by --scale or idle: it must not begin the feeds anew that it has written."""
    started = Mock()
    monkeypatch.setattr(supervisor.subprocess, "Popen", started)
    running = supervisor.Supervisor(supervisor.Supervision("test", [], "quotes", [], 2), Mock())
    for number in (1, 2):
        running._start(running._slot(number))
    running._control.wanted.side_effect = [1, 2]
    running._keep_as_many_as_wanted()
    running._ended(running._slot(2), 0)
    running._keep_as_many_as_wanted()
    seen = [call.kwargs["env"] for call in started.call_args_list]
    assert [(env["CRAWL_SPIDER_SLOT"], env["CRAWL_SPIDER_STARTS"]) for env in seen] == [
        ("1", "1"),
        ("2", "1"),
        ("2", "2"),
    ]


@pytest.mark.parametrize("trap", ["link", "writable", "file"])
def test_a_folder_that_others_can_reach_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str) -> None:
    """It keeps no supervisor from its start: the next folder is taken."""
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    folder = tmp_path / "site_spider-control"
    if trap == "link":
        folder.symlink_to(tmp_path / "elsewhere")
    elif trap == "file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o777)
    control = supervisor.ScaleControl(["/a/folder/\udce4"])
    assert control.claim() is None
    assert [*(tmp_path / "home").rglob("*.scale")]
    assert not [*(tmp_path / "elsewhere").iterdir()]
    assert supervisor.ScaleControl(["other"]).scale(2) is False


@pytest.mark.parametrize(("module", "call"), [("fcntl", "lockf"), ("os", "open")])
def test_a_folder_without_locks_or_room_ends_no_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, call: str
) -> None:
    """As a home in the network, or a full disk: --scale is all that does not work."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(getattr(supervisor, module), call, Mock(side_effect=OSError(errno.ENOSPC, "No room")))
    control = supervisor.ScaleControl(["key"])
    assert "--scale cannot reach this" in (control.claim() or "")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert control.claim() is None  # it is tried again


def test_no_folder_is_made_that_the_system_would_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a user without a home, as of a service, or after the end of the session whose XDG_RUNTIME_DIR is left."""
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    for name in ("HOME", "XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    (tmp_path / "TMPDIR").mkdir()
    assert supervisor.ScaleControl(["key"]).claim() is None
    assert [*tmp_path.iterdir()] == [tmp_path / "TMPDIR"]


_HOLDER = """
import signal
from site_spider.service.supervisor import ScaleControl
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
control = ScaleControl(["key", "\\udce4"])
print(control.claim(), flush=True)
signal.sigwait({signal.SIGUSR1})
print(control.wanted())
"""


def test_an_order_goes_to_the_one_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never to a process with the number of a dead one, whose file is still there."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    control = supervisor.ScaleControl(["key", "\udce4"])
    assert control.scale(9) is False
    with subprocess.Popen([sys.executable, "-c", _HOLDER], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "None\n"
        assert "another one runs" in (control.claim() or "")
        assert control.scale(12) is True
        assert holder.stdout.read() == "12\n"
    assert control.scale(9) is False
    assert control.claim() is None


def test_what_is_said_goes_into_no_file_of_a_supervisor_without_stderr(tmp_path: Path) -> None:
    command = f"exec {sys.executable} {supervisor.__file__} --program false --setup-tries 1 2>&-"
    ran = subprocess.run(["sh", "-c", command], env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}, check=False)
    assert ran.returncode == EXIT_SETUP
    assert next(tmp_path.rglob("*.scale")).read_text() == ""


_WAITS = """
import signal
from unittest.mock import Mock
from site_spider.service import supervisor
signal.pthread_sigmask(signal.SIG_BLOCK, supervisor._SIGNALS)
signal.sigtimedwait = lambda *_: signal.struct_siginfo((signal.SIGHUP, -1574065920, 0, 0, 0, 0, 0))
running = supervisor.Supervisor(supervisor.Supervision("test", ["scrapy"], "quotes", [], 1), Mock())
slot = running._slot(1)
for slot.begins_at in (None, 0.0):
    running._await()
print(running._signals, running._is_stopping)
"""


def test_a_wait_that_a_standstill_made_too_long_is_taken_for_no_signal() -> None:
    """Python's `sigtimedwait` then returns what was in memory: on some machines the number of SIGHUP."""
    ran = subprocess.run([sys.executable, "-c", _WAITS], capture_output=True, text=True, check=True)
    assert ran.stdout == "0 False\n"


def test_a_hangup_that_nohup_has_ignored_ends_nothing(tmp_path: Path) -> None:
    words = ["--program=sh", "--program=-c", "--program=echo; exec sleep 99"]
    command = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", sys.executable, supervisor.__file__, *words]
    own = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    with subprocess.Popen(command, env=own, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.readline()  # a process has started
        running.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(2)
        running.terminate()
    assert running.returncode == 0


_FIRST = """
import ctypes, sys
from site_spider.service import supervisor
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
sys.exit(supervisor.main(sys.argv[1:]))
"""


def test_the_first_process_of_a_container_buries_what_crawlers_leave(tmp_path: Path) -> None:
    """An orphan comes to it: one that has ended would keep its number for ever."""
    words = ["--program=sh", "--program=-c", "--program=(sleep 0.1 & echo $!); exec sleep 99"]
    own = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", _FIRST, *words], env=own, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        orphan = Path("/proc") / running.stdout.readline().decode().strip()
        try:
            wait_until(lambda: not orphan.exists(), 60, "the end of the orphan")
        finally:
            running.terminate()
    assert running.returncode == 0
