"""`task_shell/chaos.sh`: short runs, in which processes and servers die and nothing is lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools.deployment.deployment import wait_until

SCRIPT = Path(__file__).resolve().parents[2] / "task_shell" / "chaos.sh"
RUN_SECONDS = 580
CLEAN_UP_SECONDS = 300


class Chaos:
    """One `chaos.sh` with its folder inside the test's."""

    def __init__(self, folder: Path, arguments: str) -> None:
        self.output = folder / "output"
        with self.output.open("wb") as stream:
            self.process = subprocess.Popen(
                [str(SCRIPT), *arguments.split()],
                env=os.environ | {"TMPDIR": str(folder)},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )

    def wait(self) -> int:
        return self.process.wait(RUN_SECONDS)

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def table(self) -> dict[str, str]:
        lines = self.text().partition("\nchaos\n")[2].splitlines()
        pairs = (re.split(r" {2,}", line, maxsplit=1) for line in lines)
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}

    def end(self) -> None:
        """Interrupt it if it still runs, as Ctrl-C does: it stops what it has started."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(CLEAN_UP_SECONDS)


@pytest.fixture
def chaos(tmp_path: Path) -> Iterator[Callable[[str], Chaos]]:
    started: list[Chaos] = []

    def start(arguments: str) -> Chaos:
        started.append(Chaos(tmp_path, arguments))
        return started[-1]

    yield start
    for run in started:
        run.end()


def still_running(folder: Path) -> list[str]:
    """The command lines of processes that know this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (process / "environ").read_bytes().decode(errors="replace")
            directory = str((process / "cwd").readlink())  # Redis writes over the other two
        except OSError:  # it ended while we looked, or is somebody else's
            continue
        if line and int(process.name) != os.getpid() and str(folder) in line + environment + directory:
            found.append(line)
    return found


def assert_nothing_lost(run: Chaos, pages: int, seeds: int | None = None) -> dict[str, str]:
    """The table of a run in which all went well."""
    assert run.wait() == 0, run.text()
    table = run.table()
    expected = {"seeds": str(seeds or pages), "results": str(pages)}
    expected |= dict.fromkeys(("lost", "dead letters", "wrong"), "0")
    assert {name: table.get(name) for name in expected} == expected, run.text()
    return table


def test_nothing_is_lost_and_every_task_has_one_end_in_a_storm(chaos: Callable[[str], Chaos], tmp_path: Path) -> None:
    """Kills, a run stopped and replaced, tasks paused and cancelled; counts agree with the site's record."""
    options = "--embedded --kills 2 --terms 1 --tasks 5 --pauses 1 --cancels 1 --items --random-seed 4"
    run = chaos(f"--seeds 160 --processes 2 --concurrency 2 {options}")
    assert run.wait() == 0, run.text()
    table = run.table()
    names = ("deaths", "SIGTERM of a run", "pause of a task", "cancel of a task", "close of a task")
    assert [table.get(name) for name in names] == ["2", "1", "1", "1", "2"], run.text()
    assert [table.get(name) for name in ("lost", "wrong", "dead letters")] == ["0", "0", "0"], run.text()
    assert sum(map(int, re.findall(r"\d+", table["ends told"]))) == 5
    assert int(table["items"]) >= 2 * int(table["results"])
    assert still_running(tmp_path) == []


@pytest.mark.nightly
@pytest.mark.servers
def test_nothing_is_lost_while_crawlers_kafka_and_elasticsearch_die(
    chaos: Callable[[str], Chaos], tmp_path: Path
) -> None:
    """Three kill -9, a run stopped and replaced, Kafka and Elasticsearch killed and started again."""
    options = "--kills 3 --terms 1 --broker-restarts 1 --elasticsearch-restarts 1"
    run = chaos(f"--seeds 450 --processes 3 --concurrency 3 {options} --random-seed 5")
    table = assert_nothing_lost(run, 450)
    names = ("deaths", "SIGTERM of a run", "kill -9 of Kafka", "kill -9 of Elasticsearch")
    assert [table.get(name) for name in names] == ["3", "1", "1", "1"]
    assert still_running(tmp_path) == []


@pytest.mark.nightly
def test_nothing_is_lost_while_members_come_and_go(chaos: Callable[[str], Chaos], tmp_path: Path) -> None:
    """A rebalance every two seconds, and a kill -9, while links are followed."""
    options = "--embedded --kills 1 --terms 0 --rebalance-every 2 --random-seed 3"
    run = chaos(f"--seeds 15 --tree 10 --processes 2 --concurrency 2 {options}")
    table = assert_nothing_lost(run, 150, seeds=15)
    rebalances = re.match(r"\d+", table["rebalances, every 2 s"])
    assert rebalances
    assert int(rebalances[0]) >= 3
    assert still_running(tmp_path) == []


@pytest.mark.nightly
def test_an_interrupted_run_leaves_nothing_behind(chaos: Callable[[str], Chaos], tmp_path: Path) -> None:
    """Ctrl-C in mid-crawl: processes and files are gone."""
    run = chaos("--seeds 20000 --processes 2 --concurrency 1 --embedded --kills 0 --terms 0")
    wait_until(lambda: "crawlers" in run.text() or run.process.poll() is not None, RUN_SECONDS, "the crawl")
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(CLEAN_UP_SECONDS) == 130, run.text()
    assert still_running(tmp_path) == []
    assert list(tmp_path.glob("chaos-*")) == []
