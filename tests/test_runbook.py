"""docs/operations.md: its commands run against one crawl, and print what stands there, up to numbers."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import debian
from tests.commands.project import environment
from tests.reader import ROOT, Block, Terminal, blocks, copy_of_the_project, program, shape

DOCUMENT = ROOT / "docs" / "operations.md"
ALERTS = ROOT / "resources" / "prometheus" / "alerts.yml"
_QUESTION = re.compile(r"^\| \[[^\]]+\]\(#([\w-]+)\) \| (.+) \|$", re.MULTILINE)
QUESTIONS: dict[str, str] = dict(_QUESTION.findall(DOCUMENT.read_text(encoding="utf-8")))  # anchor, alerts
_READS = re.compile(  # a command that changes nothing
    r"(?!.*--until-done)"
    r"(journalctl|\.venv/bin/scrapy (top|frontier|results|progress|task list|dead-letters list))\b"
)
_MOVED = re.compile(r"; moved: [^;]*")  # how much was told when a command that changes something looked
_PATIENCE_SECONDS = 300.0
_SLOW_SEEDS = 2_000  # of 1.5 s each, eight at a time: more than the test waits for


class Story:
    """One crawl of the sample site; before some sections something happens to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.folder.mkdir()
        copy_of_the_project(self.folder)
        self._journal = self.folder / "journal"
        program(self.folder / ".venv" / "bin" / "journalctl", f"cat {self._journal}")
        runtime = folder / "run"
        runtime.mkdir()
        variables = environment(
            Path("data"),
            SITE_ALLOW_PRIVATE_HOSTS="true",
            SITE_STATS_INTERVAL_SECONDS="1",
            PATH=f"{self.folder}/.venv/bin:{os.environ['PATH']}",
            XDG_RUNTIME_DIR=str(runtime),
            TMPDIR=str(runtime),
        )
        self._stack = ExitStack()
        self.terminal = self._stack.enter_context(Terminal(self.folder, variables))
        self._site = ""
        self._happens: dict[str, Callable[[], None]] = {
            "It is slow": self._begin,
            "A sink is away": self._lock,
            "Rebalances are frequent": self._unlock,
            "There are dead letters": self._produce_bad_messages,
            "Processes restart again and again": self._kill,
            "Back up and restore": self._begin_another_job,
        }
        self._lock_of_results: sqlite3.Connection | None = None

    def close(self) -> None:
        """End what runs."""
        self._unlock()
        self._stack.close()

    def read(self) -> Iterator[tuple[Block, str]]:
        """Each block with what it printed."""
        for block in blocks(DOCUMENT):
            self._happens.pop(block.heading, _nothing)()
            if "mv data" in block.command:
                self.terminal.paste("kill $crawl; wait $crawl")
            yield block, self._run(block)
        assert not self._happens, f"no section has these headings any more: {[*self._happens]}"

    def _run(self, block: Block) -> str:
        """What only reads is run until it prints what stands there, as one looks again a little later."""
        give_up = time.monotonic() + _PATIENCE_SECONDS
        while True:
            printed = self.terminal.paste(block.command)
            is_right = block.output is None or shape(printed) == shape(block.output)
            if is_right or not _READS.match(block.command) or time.monotonic() > give_up:
                return printed
            time.sleep(1)  # as often as statistics come: each command starts a process

    def _begin(self) -> None:
        self.terminal.paste("scrapy demo > site.txt &")
        site = self.folder / "site.txt"
        _until(lambda: "127.0.0.6" in _text(site))
        self._site = f"{_text(site).split()[3]}slow"
        self._seed("wrong", _SLOW_SEEDS)
        self.terminal.paste(f"./task_shell/crawl_spider.sh >> {self._journal} 2>&1 &\ncrawl=$!")

    def _produce_bad_messages(self) -> None:
        self.terminal.paste("scrapy demo --produce > /dev/null 2>&1 &")

    def _seed(self, task_id: str, count: int) -> None:
        urls = "".join(f"{self._site}?{task_id}={number}\n" for number in range(count))
        (self.folder / "urls.txt").write_text(urls)
        self.terminal.paste(f"scrapy seed urls.txt --task-id {task_id} --not-extract")

    def _lock(self) -> None:
        self._lock_of_results = sqlite3.connect(
            self.folder / "data" / "results.sqlite", timeout=300, isolation_level=None
        )
        self._lock_of_results.execute("BEGIN IMMEDIATE")

    def _unlock(self) -> None:
        if self._lock_of_results is not None:
            self._lock_of_results.close()
            self._lock_of_results = None

    def _kill(self) -> None:
        _until(lambda: "is back" in _text(self._journal))
        process = json.loads(self.terminal.paste("scrapy frontier --hosts 0 --format json"))
        os.kill(process["pid"], signal.SIGKILL)

    def _begin_another_job(self) -> None:
        self.terminal.paste("scrapy task start spring --weight 2 --deny /calendar/")
        self._seed("spring", 40)
        _until(lambda: "Results: 0" not in self.terminal.paste("scrapy results --task-id spring"))


def _nothing() -> None:
    """Before most sections."""


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _until(is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.1)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Block, str]]:
    for name in ("jq", "sqlite3"):
        debian.program(name, name)
    story = Story(tmp_path_factory.mktemp("runbook"))
    try:
        yield dict(story.read())
    finally:
        story.close()


@pytest.mark.nightly
@pytest.mark.parametrize("block", [*blocks(DOCUMENT)], ids=lambda block: block.command.splitlines()[0])
def test_a_command_prints_what_the_runbook_says(block: Block, printed: dict[Block, str]) -> None:
    assert block.output is not None or "--format json >" in block.command
    if block.output is not None:
        assert shape(_MOVED.sub("", printed[block])) == shape(_MOVED.sub("", block.output))


def test_every_alert_leads_to_one_question() -> None:
    alerts = re.findall(r"^  - alert: (\w+)$", ALERTS.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(QUESTIONS.values()))) == sorted(alerts)


def test_each_question_has_a_command_with_its_output() -> None:
    """But for Kafka, which is not there."""
    headings = {block.heading for block in blocks(DOCUMENT)}
    answered = {heading.lower().replace(",", "").replace(" ", "-") for heading in headings}
    assert len(QUESTIONS) >= 10
    assert QUESTIONS.keys() - answered - {"kafka-is-away"} == set()
