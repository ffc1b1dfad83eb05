"""The tasks of a run: what was asked for each, the commands that ask, and the ends that are told."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from site_spider.contracts.seed_log import TopicReader
from site_spider.errors import LogUnavailable, TopicMissing
from site_spider.tasks.follower import TaskTopics
from tools.deployment.deployment import ROOT, Deployment

TRIES = 20
PAUSE_SECONDS = 2.0
LONGEST_SECONDS = 120.0
MOST_AT_ONCE = 3
LOOK_SECONDS = 1.0
POLL_SECONDS = 0.05
SHOWN = 3


@dataclass
class ChaosTask:
    """One task; threads share it, and each only adds."""

    name: str
    seeds: list[int] = field(default_factory=list)
    is_complete: bool = False  # all its seeds are produced
    is_closed: bool = False  # or somebody was asked to close it
    is_paused: bool = False
    was_paused: bool = False
    is_cancelled: bool = False  # or somebody was asked to cancel it
    is_ended: bool = False  # its end was told


class ToldEnd(NamedTuple):
    """One record of the topic."""

    when: float
    value: bytes

    @property
    def event(self) -> dict[str, Any]:
        """What it says."""
        said: dict[str, Any] = json.loads(self.value)
        return said


class _Asked:
    """One command, until it has succeeded."""

    def __init__(self, verb: str, task: ChaosTask) -> None:
        self.verb = verb
        self.task = task
        self.tries = 0
        self.not_before = self.kill_at = 0.0
        self.process: subprocess.Popen[bytes] | None = None


class TaskCommands:
    """Runs `scrapy task`, and again where it fails. Threads may ask; one looks."""

    def __init__(self, deployment: Deployment) -> None:
        self.wrong: list[str] = []
        self.failures = 0  # of commands that were run again
        self._environment = deployment.environment()
        self._log = deployment.folder / "tasks.log"
        self._asked: deque[_Asked] = deque()

    @property
    def waits_for(self) -> str:
        """What is still to come, in words."""
        return f"{len(self._asked)} commands" if self._asked else ""

    def ask(self, verb: str, task: ChaosTask) -> None:
        """Run `scrapy task VERB ID` when its turn comes; those of one task one after the other."""
        if verb == "close":
            task.is_closed = True
        self._asked.append(_Asked(verb, task))

    def look(self) -> None:
        """Start what may start, and note what has ended."""
        busy: set[str] = set()
        for asked in list(self._asked):
            if asked.process is not None:
                self._look_at(asked, asked.process)
            elif asked.task.name not in busy and len(busy) < MOST_AT_ONCE:
                self._start(asked)
            busy.add(asked.task.name)

    def stop(self) -> None:
        """Leave nothing behind."""
        for asked in self._asked:
            if asked.process is not None:
                asked.process.kill()
                asked.process.wait()

    def _start(self, asked: _Asked) -> None:
        now = time.monotonic()
        if now < asked.not_before:
            return
        asked.kill_at = now + LONGEST_SECONDS
        with self._log.open("ab") as log:
            asked.process = subprocess.Popen(
                [str(Path(sys.executable).with_name("scrapy")), "task", asked.verb, asked.task.name],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _look_at(self, asked: _Asked, process: subprocess.Popen[bytes]) -> None:
        if (code := process.poll()) is None:
            if time.monotonic() > asked.kill_at:
                process.kill()
            return
        asked.process = None
        asked.tries += 1
        is_void = asked.verb in ("pause", "resume") and asked.task.is_cancelled  # refused then
        if code and not is_void and asked.tries < TRIES:
            self.failures += 1
            asked.not_before = time.monotonic() + PAUSE_SECONDS
            return
        if code and not is_void:
            words = f"scrapy task {asked.verb} {asked.task.name}"
            self.wrong.append(f"{words} failed {TRIES} times: see {self._log}")
        self._asked.remove(asked)


class EndWatch:
    """Follows the topic in which the ends of tasks are told."""

    def __init__(
        self, deployment: Deployment, tasks: Mapping[str, ChaosTask], can_answer: Callable[[], bool]
    ) -> None:
        self._log = deployment.log
        self._topic = TaskTopics.read(deployment.scrapy_settings).events
        self._tasks = tasks
        self._can_answer = can_answer  # Kafka lives: else each question would hold the storm up
        self._reader: TopicReader | None = None
        self._look_at = 0.0

    @property
    def waits_for(self) -> str:
        """Which ends are still to come, in words."""
        tasks = list(self._tasks.values())
        due = [task.name for task in tasks if (task.is_closed or task.is_cancelled) and not task.is_ended]
        more = f" and {len(due) - SHOWN} more" if len(due) > SHOWN else ""
        return f"the end of {', '.join(due[:SHOWN])}{more}" if due else ""

    def look(self) -> None:
        """Note what was told, now and then."""
        now = time.monotonic()
        if now < self._look_at or not self._can_answer():
            return
        self._look_at = now + LOOK_SECONDS
        with suppress(LogUnavailable):
            if self._reader is None and self._log.partitions(self._topic):
                self._reader = self._log.reader(self._topic, compacted=False)
            for message in self._reader.poll(POLL_SECONDS) if self._reader else ():
                if task := self._tasks.get((message.key or b"").decode()):
                    task.is_ended = True

    def told(self) -> Iterator[ToldEnd]:
        """All records, from the beginning."""
        with suppress(TopicMissing):
            for message in self._log.read(self._topic):
                yield ToldEnd(message.timestamp_ms / 1000, message.value or b"")

    def close(self) -> None:
        """Release the reader."""
        if self._reader is not None:
            self._reader.close()
