"""`scrapy task pause`, `resume` and `cancel`."""

from __future__ import annotations

import argparse
import time

from site_spider.commands.tasks.declare import task_or_usual
from site_spider.commands.tasks.verb import Call
from site_spider.tasks.board import Board
from site_spider.tasks.changes import in_state
from site_spider.tasks.record import BadTask
from site_spider.tasks.usage import Usage

_SETTLE_SECONDS = 2.0  # without news, then the totals are printed
_LONGEST_SECONDS = 15.0


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
        _refuse_cancelled(call)
        call.desk.write(in_state(task_or_usual(call), "paused"))
        call.answer(f"task {call.task_id} is paused", state="paused")


class Resume(_StateVerb):
    """What was parked comes back."""

    usage = "resume ID"

    def work(self, call: Call) -> None:
        """As in Verb."""
        _refuse_cancelled(call)
        call.desk.write(in_state(task_or_usual(call), "running"))
        back = call.desk.put_back(call.task_id)
        phase = call.desk.board.phase(call.task_id, time.time())
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
        call.desk.write(in_state(task_or_usual(call), "cancelled"))
        back = call.desk.put_back(call.task_id)
        used = _settled(call)
        counts = (
            ", ".join(f"{count} {outcome}" for outcome, count in sorted(used.seeds.items())) or "none known"
        )
        call.answer(
            f"task {call.task_id} is cancelled; seeds: {counts or 'none known'}; links cancelled: "
            f"{used.links_cancelled}; pages: {used.pages}; {back} parked messages put back",
            state="cancelled",
            returned=back,
            seeds=used.seeds,
            links_cancelled=used.links_cancelled,
            pages=used.pages,
            bytes=used.bytes,
        )


def _settled(call: Call) -> Usage:
    """The totals, once the processes have told nothing new for a while."""
    last = call.desk.board.used(call.task_id)
    since = time.monotonic()

    def is_enough(board: Board) -> bool:
        nonlocal last, since
        now = board.used(call.task_id)
        if now != last:
            last, since = now, time.monotonic()
        return time.monotonic() - since > _SETTLE_SECONDS

    call.desk.watch(is_enough, _LONGEST_SECONDS)
    return last


def _refuse_cancelled(call: Call) -> None:
    task = call.desk.board.task(call.task_id)
    if task is not None and task.state == "cancelled":
        raise BadTask(f"{call.task_id!r} is cancelled; declare it anew with: scrapy task start")
