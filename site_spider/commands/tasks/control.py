"""`scrapy task pause`, `resume`, `cancel` and `delete`."""

from __future__ import annotations

import argparse
import time

from site_spider.commands.tasks.verb import Call
from site_spider.tasks.changes import in_state
from site_spider.tasks.overview import TaskFacts
from site_spider.tasks.record import BadTask, Task, usual_task

_SETTLE_SECONDS = 2.0  # without news, then the totals are printed
_LONGEST_SECONDS = 15.0
_LOOK_SECONDS = 0.2


class _StateVerb:
    """A verb without words of its own."""

    most_words = 0

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As in Verb: none."""


class PauseTask(_StateVerb):
    """Nothing of the task begins any more."""

    usage = "pause ID"

    def work(self, call: Call) -> None:
        """As in Verb."""
        _order(call, "paused")
        call.answer(f"task {call.task_id} is paused", state="paused")


class Resume(_StateVerb):
    """What was parked comes back."""

    usage = "resume ID"

    def work(self, call: Call) -> None:
        """As in Verb."""
        _order(call, "running")
        back = call.desk.put_back(call.task_id)
        phase = call.desk.board.phase(call.task_id)
        said = f", but {phase.name}: {phase.reason}" if phase.name == "paused" else ""
        call.answer(
            f"task {call.task_id} is resumed, {back} parked messages put back{said}",
            state=phase.name,
            reason=phase.reason,
            returned=back,
        )


class Cancel(_StateVerb):
    """What has not begun ends."""

    usage = "cancel ID"

    def work(self, call: Call) -> None:
        """As in Verb: prints the totals when they change no more."""
        _order(call, "cancelled")
        back = call.desk.put_back(call.task_id)
        facts = _settled(call)
        call.answer(
            f"task {call.task_id} is cancelled; {facts.said()}; links cancelled: {facts.links_cancelled}; "
            f"{back} parked messages put back",
            state="cancelled",
            returned=back,
            seeds=dict(facts.seeds),
            moved=dict(facts.moved),
            partial=facts.is_partial,
            links_cancelled=facts.links_cancelled,
            pages=facts.pages,
            bytes=facts.bytes,
        )


class Delete(_StateVerb):
    """Nothing is known of the task any more."""

    usage = "delete ID"

    def work(self, call: Call) -> None:
        """As in Verb. Results stay; seeds that wait have the settings of the crawl."""
        facts = call.known(may_be_new=False)
        if facts.parked:
            raise BadTask(
                f"{facts.parked} messages of {call.task_id!r} are parked; resume or cancel it first"
            )
        if not facts.is_ended and (facts.is_closed or facts.is_over):
            raise BadTask(f"{call.task_id!r} is about to end; say first: scrapy task wait {call.task_id}")
        call.desk.forget(call.task_id)
        call.answer(f"task {call.task_id} is deleted", deleted=True)


def _order(call: Call, state: str) -> None:
    call.going_on()

    def change(task: Task | None) -> Task:
        if task is not None and task.state == "cancelled" != state:
            raise BadTask(f"{call.task_id!r} is cancelled; declare it anew with: scrapy task start")
        return in_state(task or usual_task(call.task_id), state)

    call.desk.order(call.task_id, change)


def _settled(call: Call) -> TaskFacts:
    """What is known, once the processes have told nothing new for a while."""
    deadline = time.monotonic() + _LONGEST_SECONDS
    last, since = call.facts(), time.monotonic()
    while time.monotonic() < min(deadline, since + _SETTLE_SECONDS) and not last.is_ended:
        time.sleep(_LOOK_SECONDS)
        call.desk.read()
        if (now := call.facts()) != last:
            last, since = now, time.monotonic()
    return last
