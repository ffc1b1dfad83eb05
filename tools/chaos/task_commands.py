"""Runs `scrapy task` as people do, and once more when it fails.

Acts on tasks are below. What was asked is noted in the roster before the command runs: from then on it may
happen, also when the command itself dies.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import deque
from pathlib import Path

from tools.chaos.acts import Stage, chosen
from tools.chaos.plan import Event
from tools.chaos.roster import ChaosTask, Roster
from tools.deployment.deployment import ROOT, Deployment

TRIES = 20
PAUSE_SECONDS = 2.0
LONGEST_SECONDS = 120.0
MOST_AT_ONCE = 3


class _Asked:
    """One command, until it has succeeded."""

    def __init__(self, verb: str, task: ChaosTask) -> None:
        self.verb = verb
        self.task = task
        self.tries = 0
        self.not_before = self.kill_at = 0.0
        self.process: subprocess.Popen[bytes] | None = None


class TaskCommands:
    """As in storm.Watched. Threads may ask; one looks."""

    is_away = False

    def __init__(self, deployment: Deployment) -> None:
        self.wrong: list[str] = []
        self.failures = 0  # of commands that were run again
        self._environment = deployment.environment()
        self._log = deployment.folder / "tasks.log"
        self._asked: deque[_Asked] = deque()

    @property
    def waits_for(self) -> str:
        """As in Watched."""
        return f"{len(self._asked)} commands" if self._asked else ""

    def ask(self, verb: str, task: ChaosTask) -> None:
        """Run `scrapy task VERB ID` when its turn comes; those of one task one after the other."""
        if verb == "close":
            task.is_closed = True
        self._asked.append(_Asked(verb, task))

    def look(self) -> None:
        """As in Watched."""
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

    def _look_at(self, asked: _Asked, process: subprocess.Popen[bytes]) -> None:
        if (code := process.poll()) is not None:
            asked.process = None
            self._ended(asked, code)
        elif time.monotonic() > asked.kill_at:
            process.kill()

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

    def _ended(self, asked: _Asked, code: int) -> None:
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


def open_first(tasks: list[ChaosTask]) -> list[ChaosTask]:
    """Those that have not ended, if there are any."""
    return [task for task in tasks if not task.is_ended] or tasks


class PauseTask:
    """A task is paused, and resumed later."""

    def __init__(self, roster: Roster, commands: TaskCommands) -> None:
        self._roster = roster
        self._commands = commands

    def happen(self, event: Event, stage: Stage) -> str | None:
        """As in Act."""
        free = [task for task in self._roster.all() if not (task.is_paused or task.is_cancelled)]
        task = chosen(open_first(free), event.victim)
        if task is None:
            return None
        task.is_paused = task.was_paused = True
        self._commands.ask("pause", task)

        def resume() -> bool:
            task.is_paused = False
            if not task.is_cancelled:
                self._commands.ask("resume", task)
                stage.say(f"scrapy task resume {task.name}")
            return True

        stage.later(event.seconds, resume)
        return f"scrapy task pause {task.name} for {event.seconds:.1f} s"


class CancelTask:
    """A task is cancelled."""

    def __init__(self, roster: Roster, commands: TaskCommands) -> None:
        self._roster = roster
        self._commands = commands

    def happen(self, event: Event, stage: Stage) -> str | None:
        """As in Act."""
        free = [task for task in self._roster.all() if not task.is_cancelled]
        task = chosen(open_first(free), event.victim)
        if task is None:
            return None
        task.is_cancelled = True
        self._commands.ask("cancel", task)
        return f"scrapy task cancel {task.name}"


class CloseTask:
    """A task of which all seeds are produced is closed."""

    def __init__(self, roster: Roster, commands: TaskCommands) -> None:
        self._roster = roster
        self._commands = commands

    def happen(self, event: Event, stage: Stage) -> str | None:
        """As in Act."""
        free = [task for task in self._roster.all() if task.is_complete and not task.is_closed]
        task = chosen(free, event.victim)
        if task is None:
            return None
        self._commands.ask("close", task)
        return f"scrapy task close {task.name}"
